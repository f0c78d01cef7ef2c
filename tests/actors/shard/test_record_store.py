"""Tests of the record store: the lifetime of records in memory and in separate files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import structlog

from tests.support.shard import ShardHarness
from topics.actors.shard import record_store
from topics.engine.topic import RESERVE_MIN
from topics.storage.disk import Damaged
from topics.storage.wal.log_file import NoSpace

FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Lifetime of stored records


async def test_records_in_memory_are_freed_with_their_topic_or_with_a_failed_write(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="ephemeral")
    harness.append("a", 1)
    harness.append("a", 2)
    assert len(harness.commits.store._in_memory) == 2
    harness.append("a", *range(RESERVE_MIN))  # waits for a reservation
    assert len(harness.commits.store._in_memory) == 3
    harness.failed(FULL)
    assert len(harness.commits.store._in_memory) == 2
    harness.delete("a")
    assert len(harness.commits.store._in_memory) == 2, "the delete may still fail"
    harness.synced()
    assert harness.commits.store._in_memory == {}


async def test_many_records_that_are_removed_together_are_freed_in_steps(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_store, "RELEASE_STEP", 2)
    store, kept = harness.commits.store, harness.commits.store._in_memory
    harness.make("a", durability="ephemeral")
    harness.make("b", durability="ephemeral", cap_records=1)
    for number in range(5):
        harness.append("a", number)
        harness.append("b", number)
    harness.delete("a")
    harness.synced()
    assert len(kept) == 6
    for left in (4, 2, 1):
        assert store.release_next() == (left > 1)
        assert len(kept) == left


async def test_the_files_of_a_topic_are_removed_once_its_deletion_is_durable(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    topic = harness.engine.topics["a"]
    harness.log.blobs.add(topic.id, 1, 0)
    path = harness.log.blobs.path(topic.id, 1)
    path.touch()
    harness.delete("a")
    harness.written()
    assert path.exists()
    harness.synced()
    assert not path.exists()


# Damage


async def test_damage_is_logged_once_for_each_location_up_to_a_maximum(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(record_store, "REPORTED_MAX", 3)
    store = harness.commits.store
    with structlog.testing.capture_logs() as logged:
        for offset in (0, 8, 8, 0, 16, 24, 32, 0):
            store.report(Damaged(tmp_path / "a", offset, "wrong checksum"))
    assert [(line["event"], line.get("offset")) for line in logged] == [
        *(("data damaged", offset) for offset in (0, 8, 16)),
        ("more damage not logged", None),
    ]
    assert len(store._reported) == 3
