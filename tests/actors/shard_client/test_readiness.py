"""Readiness: what the front says of its shards, and the reason of the failure."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from topics.actors.link.board import Board, ShardState, ShardWords
from topics.actors.shard_client.readiness import not_ready, readiness_of, trouble_of


@dataclass
class View:
    words: ShardWords
    is_connected: bool = True
    is_stalled: bool = False


def view(
    state: ShardState = ShardState.READY,
    *,
    progress_ppm: int = 0,
    silent_ms: int = 0,
    **fields: bool,
) -> View:
    words = Board(1).shard(0)
    words.state, words.progress_ppm, words.disk_silent_ms = state, progress_ppm, silent_ms
    words.topics = 3
    return View(words, **fields)


TROUBLES = [
    (view(), "", None),
    (view(ShardState.READ_ONLY), "", None),
    (view(is_connected=False), "connecting", None),
    (view(is_stalled=True), "stalled", "stalled"),
    (view(ShardState.DAMAGED, is_connected=False), "damaged", "damaged"),
    (view(ShardState.RECOVERING, is_connected=False), "recovering", None),
    (view(silent_ms=10_000), "disk_stalled", "disk_stalled"),
    (view(silent_ms=9_999), "", None),
    (view(silent_ms=10_000, is_stalled=True), "disk_stalled", "disk_stalled"),
    (view(silent_ms=9_999, is_stalled=True), "stalled", "stalled"),
]


@pytest.mark.parametrize(("shard", "trouble", "reason"), TROUBLES, ids=range(len(TROUBLES)))
def test_each_trouble_has_its_word_and_its_reason(
    shard: View, trouble: str, reason: str | None
) -> None:
    assert trouble_of(shard) == trouble
    assert not_ready(shard).detail.get("reason") == reason


def test_progress_is_that_of_all_shards_together() -> None:
    replaying = view(ShardState.RECOVERING, progress_ppm=500_000, is_connected=False)
    found = readiness_of([view(), replaying], draining=False)
    assert (found.ready, found.progress, found.topics) == (False, 0.75, 6)
    assert found.unwell == ((1, "recovering"),)
    assert not_ready(replaying).detail == {"replay_progress": 0.5}


def test_a_shard_that_serves_readers_only_is_ready_and_limited() -> None:
    found = readiness_of([view(), view(ShardState.NO_ROOM)], draining=True)
    assert (found.ready, found.draining, found.limited) == (True, True, ((1, "no_room"),))
