"""Appends: what they wait for, what a key stands for, and what is undone."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk
from topics.engine.changes.append import Append
from topics.engine.dedupe import DedupeEntry


@pytest.mark.parametrize(
    ("durability", "sync"),
    [("ephemeral", False), ("memory", False), ("disk", False), ("fsync", True)],
)
def test_only_the_class_fsync_waits_for_the_disk(desk: Desk, durability: str, sync: bool) -> None:
    desk.put("a", durability=durability)
    desk.commit()
    change = desk.append("a", 1)
    assert isinstance(change, Append)
    assert change.sync is sync
    assert bool(change.frames) is (durability != "ephemeral")


def test_a_write_behind_one_that_waits_for_the_disk_waits_too(desk: Desk) -> None:
    desk.put("a")
    change = desk.append("a", 1)
    assert isinstance(change, Append)
    assert change.sync, "the topic itself is not on the disk yet"


def test_a_key_whose_time_is_over_does_not_come_back_with_a_longer_window(desk: Desk) -> None:
    desk.put("a", idempotency_window_ms=100)
    desk.append("a", 1, key="old")
    desk.commit()
    desk.later(60)
    desk.append("a", 2, key="young")
    desk.commit()
    desk.later(40)
    desk.put("a", idempotency_window_ms=1000)
    desk.commit()
    assert desk.append("a", 3, key="young") == DedupeEntry(2, 1)
    assert isinstance(desk.append("a", 3, key="old"), Append)
