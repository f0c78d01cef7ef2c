"""Readiness: the state of all shards, and the error for calls that they cannot serve (§8.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from topics.actors.link.board import ShardState, StartFailure
from topics.actors.link.liveness import DAMAGED, DIRECTORY_LOST, DISK_STALLED, STALLED
from topics.errors import NotReady

LIMITED: Final = (ShardState.READ_ONLY, ShardState.NO_ROOM, ShardState.DIRECTORY_LOST)
SERVING: Final = (ShardState.READY, *LIMITED)
START_FAILURES: Final = {failure: failure.name.lower() for failure in StartFailure if failure}
STATE_REASONS: Final = {
    DAMAGED: "has damaged data",
    DIRECTORY_LOST: "is waiting for its data directory, which was moved, replaced or removed",
    STALLED: "does not respond",
    DISK_STALLED: "is waiting for its disk",
    START_FAILURES[
        StartFailure.PERMISSION_DENIED
    ]: "cannot start: permission to open its files denied",
    START_FAILURES[StartFailure.DISK_FULL]: "cannot start: its disk is full",
    START_FAILURES[StartFailure.DISK_FAILED]: "cannot start: its disk has failed",
    START_FAILURES[StartFailure.START_FAILED]: "cannot start: the server's log has the cause",
}


@dataclass(frozen=True, slots=True)
class Readiness:
    """The combined state of all shards.

    ``progress``: fraction of the logs that has been replayed, 0 to 1. ``topics``: number of topics,
    up to one tick old. ``unavailable``: shards that are not serving normally, each with a keyword
    for the reason. ``limited``: shards that serve reads but not all writes, each with its state.
    """

    ready: bool
    progress: float
    topics: int
    draining: bool
    unavailable: tuple[tuple[int, str], ...] = ()
    limited: tuple[tuple[int, str], ...] = ()


def unavailable_error(readiness: Readiness) -> NotReady:
    """Return the error of §8.2, with all unavailable shards and the first known cause."""
    shards = [{"shard": shard, "state": state} for shard, state in readiness.unavailable]
    for shard, state in readiness.unavailable:
        if state in STATE_REASONS:
            return NotReady(
                f"shard {shard} {STATE_REASONS[state]}",
                reason=state,
                replay_progress=readiness.progress,
                shards=shards,
            )
    return NotReady("the log is being replayed", replay_progress=readiness.progress, shards=shards)
