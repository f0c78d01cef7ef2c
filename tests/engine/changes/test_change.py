"""Changes: what is pending on a topic, and for how long."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk


@pytest.mark.parametrize(("durability", "syncs"), [("disk", 0), ("fsync", 1)])
def test_a_change_is_pending_until_it_is_committed(desk: Desk, durability: str, syncs: int) -> None:
    desk.put("a", durability=durability)
    desk.commit()
    topic = desk.engine.topic("a")
    desk.append("a", 1)
    desk.append("a", 2)
    assert (topic.pending, topic.pending_sync) == (2, 2 * syncs)
    desk.commit_next()
    assert (topic.pending, topic.pending_sync) == (1, syncs)
    desk.commit()
    assert (topic.pending, topic.pending_sync) == (0, 0)


def test_a_change_that_is_undone_is_not_pending_any_more(desk: Desk) -> None:
    desk.put("a")
    desk.commit()
    topic = desk.engine.topic("a")
    desk.put("a", ttl_ms=5)
    desk.append("a", 1)
    assert (topic.pending, topic.pending_sync) == (2, 2), "the append waits for the put"
    desk.undo()
    assert (topic.pending, topic.pending_sync) == (0, 0)
