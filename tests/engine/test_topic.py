"""State of one topic."""

from __future__ import annotations

from tests.engine.shard_support import Desk


def test_priority_falls_by_one_each_second_after_a_read(desk: Desk) -> None:
    desk.put("a")
    topic = desk.engine.topic("a")
    assert topic.effective_priority(desk.now.ms) == 0
    topic.touch(*desk.now)
    assert [
        topic.effective_priority(desk.now.ms + ms) for ms in (0, 999, 1000, 499_000, 500_000, 10**9)
    ] == [
        500,
        500,
        499,
        1,
        0,
        0,
    ]
    desk.put("a", auto_priority=False)
    assert topic.effective_priority(desk.now.ms) == 0
    desk.put("a", priority=-7)
    assert topic.effective_priority(desk.now.ms) == -7
