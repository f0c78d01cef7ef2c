"""Reads: a page now or later."""

from __future__ import annotations

from tests.support.shard import Desk


async def test_a_diff_is_answered_at_once_when_there_is_something_or_nobody_waits(
    desk: Desk,
) -> None:
    desk.make("a")
    nothing = desk.diff("a")
    assert desk.answers() == [(nothing, 200)]
    desk.append("a", 1)
    desk.synced()
    desk.answers()
    something = desk.diff("a", wait_ms=30_000)
    assert desk.answers() == [(something, 200)]
    desk.diff("a", from_seq=1, wait_ms=30_000)
    assert desk.answers() == []
