"""Readiness: how far the shards are, what is wrong with each, and the error for calls to a shard
that does not serve (§8.2, §0.6).

A shard's words on the board say what its own process knows; whether it is connected and shows a
heartbeat, the front knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from topics.actors.link.board import ShardState, ShardWords
from topics.actors.link.pulse import DAMAGED, DISK_STALLED, DISK_STALLED_S, STALLED
from topics.errors import NotReady

LIMITED: Final = (ShardState.READ_ONLY, ShardState.NO_ROOM)
SERVING: Final = (ShardState.READY, *LIMITED)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Of all shards together.

    ``progress``: share of the logs that is replayed, 0 to 1. ``topics`` is up to a heartbeat old.
    ``unwell``: shards that do not serve as they should, each with its trouble in a word.
    ``limited``: shards that serve readers and not all writers, each with its state.
    """

    ready: bool
    progress: float
    topics: int
    draining: bool
    unwell: tuple[tuple[int, str], ...] = ()
    limited: tuple[tuple[int, str], ...] = ()


class ShardView(Protocol):
    """One shard, as its front knows it."""

    @property
    def words(self) -> ShardWords:
        """The shard's own words on the board."""

    @property
    def is_connected(self) -> bool:
        """A link session is open."""

    @property
    def is_stalled(self) -> bool:
        """A link session is open, and no heartbeat comes."""


def readiness_of(shards: Sequence[ShardView], *, draining: bool) -> Readiness:
    """Of all shards; numbers in the result are indexes of ``shards``."""
    troubles = [(number, trouble_of(shard)) for number, shard in enumerate(shards)]
    unwell = tuple((number, trouble) for number, trouble in troubles if trouble)
    states = [(number, shard.words.state) for number, shard in enumerate(shards)]
    return Readiness(
        ready=not unwell,
        progress=sum(map(progress_of, shards)) / len(shards),
        topics=sum(shard.words.topics for shard in shards),
        draining=draining,
        unwell=unwell,
        limited=tuple((number, state.name.lower()) for number, state in states if state in LIMITED),
    )


def trouble_of(shard: ShardView) -> str:
    """Why the shard does not serve, in a word; empty when it does."""
    if shard.is_stalled:
        return DISK_STALLED if waits_for_disk(shard.words) else STALLED
    state = shard.words.state
    if state not in SERVING:
        return state.name.lower()
    if not shard.is_connected:
        return "connecting"
    return DISK_STALLED if waits_for_disk(shard.words) else ""


def progress_of(shard: ShardView) -> float:
    """Share of the shard's log that is replayed."""
    serves = shard.is_connected and shard.words.state in SERVING
    return 1.0 if serves else shard.words.progress_ppm / 1e6


def waits_for_disk(words: ShardWords) -> bool:
    """The shard's writes have hung in the kernel for long."""
    return words.disk_silent_ms >= DISK_STALLED_S * 1000


def not_ready(shard: ShardView) -> NotReady:
    """The failure of a call that the shard cannot serve now."""
    progress = progress_of(shard)
    for applies, text, reason in (
        (
            shard.words.state is ShardState.DAMAGED,
            "the data of this topic's shard is damaged",
            DAMAGED,
        ),
        (
            shard.is_connected and waits_for_disk(shard.words),
            "the disk of this topic's shard does not answer",
            DISK_STALLED,
        ),
        (shard.is_stalled, "the shard of this topic does not answer", STALLED),
    ):
        if applies:
            return NotReady(text, reason=reason, replay_progress=progress)
    return NotReady("the shard of this topic is not ready", replay_progress=progress)
