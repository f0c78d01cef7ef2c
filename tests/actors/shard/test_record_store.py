"""Tests of the record store: the lifetime of records in memory and in separate files."""

from __future__ import annotations

import errno
import os

import pytest

from tests.support.shard import Desk
from topics.actors.shard import record_store
from topics.engine.topic import RESERVE_MIN
from topics.storage.wal.log_file import NoSpace

FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Lifetime of stored records


async def test_records_in_memory_are_freed_with_their_topic_or_with_the_write_that_failed(
    desk: Desk,
) -> None:
    desk.make("a", durability="ephemeral")
    desk.append("a", 1)
    desk.append("a", 2)
    assert len(desk.commits.store._in_memory) == 2
    desk.append("a", *range(RESERVE_MIN))  # waits for a reservation
    assert len(desk.commits.store._in_memory) == 3
    desk.failed(FULL)
    assert len(desk.commits.store._in_memory) == 2
    desk.delete("a")
    assert len(desk.commits.store._in_memory) == 2, "the deletion may fail yet"
    desk.synced()
    assert desk.commits.store._in_memory == {}


async def test_many_records_that_go_at_once_are_freed_step_by_step(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_store, "RELEASE_STEP", 2)
    store, kept = desk.commits.store, desk.commits.store._in_memory
    desk.make("a", durability="ephemeral")
    desk.make("b", durability="ephemeral", cap_records=1)
    for number in range(5):
        desk.append("a", number)
        desk.append("b", number)
    desk.delete("a")
    desk.synced()
    assert len(kept) == 6
    for left in (4, 2, 1):
        assert store.release_next() == (left > 1)
        assert len(kept) == left


async def test_the_files_of_a_topic_are_removed_once_its_deletion_is_durable(desk: Desk) -> None:
    desk.make("a")
    topic = desk.engine.topics["a"]
    desk.log.blobs.add(topic.id, 1, 0)
    path = desk.log.blobs.path(topic.id, 1)
    path.touch()
    desk.delete("a")
    desk.written()
    assert path.exists()
    desk.synced()
    assert not path.exists()
