"""Snapshot and replay: a checkpoint restores each committed item once, and nothing uncommitted."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from tests.engine.shard_support import EngineHarness, fill
from topics.engine.changes import append
from topics.engine.dedupe import DIGEST_BYTES, digest_of
from topics.engine.locators import in_extent
from topics.engine.losses import skip_trimmed
from topics.engine.moved_keys import copy_key
from topics.engine.now import Now
from topics.engine.record_index import IndexEntry
from topics.engine.replay import Replay, StateMismatch
from topics.engine.snapshot import (
    key_items,
    moved_key_items,
    restore_extent,
    restore_moved,
    restore_shard,
    restore_topic,
    snapshot_shard,
    snapshot_topic,
    topic_items,
)
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.disk.checkpoint import KEY_ROW
from topics.formats.disk.frames import FrameHeader, FrameKind
from topics.formats.ranges import SeqRange


def kept(harness: EngineHarness, lsn: int = 100) -> Any:
    """Return the topic as a checkpoint encodes it in CBOR."""
    return cbor2.loads(cbor2.dumps(snapshot_topic(harness.engine.topic("a"), lsn)))


def restored(harness: EngineHarness, lsn: int = 100) -> tuple[Replay, Topic]:
    again = EngineHarness()
    replay = Replay(again.engine.table)
    return replay, restore_topic(replay, kept(harness, lsn))


def extent(first_seq: int, count: int) -> IndexEntry:
    return IndexEntry(first_seq, count, in_extent(1, first_seq), 100 * count, 5)


def test_a_topic_is_restored_with_its_config_floors_and_reservations(
    harness: EngineHarness,
) -> None:
    fill(harness, 2, 3, ttl_ms=7_000_000, cap_records=3)
    topic = harness.engine.topic("a")
    replay, again = restored(harness)
    for name in ("id", "name", "epoch", "config", "floors", "start_seq", "last_ts"):
        assert getattr(again, name) == getattr(topic, name), name
    for name in ("last_write_ts", "reserved_seq", "logged_seq", "keys_from_seq", "damaged"):
        assert getattr(again, name) == getattr(topic, name), name
    assert (replay.restored_head(again), replay.covered_lsn(again)) == (5, 100)
    assert replay.table.by_name == {"a": again}


def test_uncommitted_changes_are_not_in_a_snapshot(harness: EngineHarness) -> None:
    fill(harness, 2)
    before = kept(harness)
    harness.append("a", 3)
    harness.put("a", ttl_ms=9)
    assert kept(harness) == before


def test_records_in_memory_are_stored_as_losses(harness: EngineHarness) -> None:
    fill(harness, 3, durability="ephemeral")
    assert kept(harness)["losses"] == [[1, 3]]
    assert restored(harness)[1].losses == ((1, 3),)


def test_skipped_seqs_and_their_floor_are_restored(harness: EngineHarness) -> None:
    fill(harness)
    topic = harness.engine.topic("a")
    skip_trimmed(topic, SeqRange(1, 2))
    fill(harness, 1)
    skip_trimmed(topic, SeqRange(4, 6))
    again = restored(harness)[1]
    assert (again.trimmed, again.trim_floor) == (topic.trimmed, topic.trim_floor) == (((4, 6),), 3)


def test_ids_epochs_and_reserved_ts_of_a_shard_never_decrease(harness: EngineHarness) -> None:
    table = harness.engine.table
    table.last_id, table.last_epoch, table.reserving_ts = 8, 50, 777
    again = TopicTable()
    again.last_epoch = 60
    restore_shard(again, snapshot_shard(table))
    assert (again.last_id, again.last_epoch, again.reserved_ts) == (8, 60, 777)


def test_topics_may_be_created_and_deleted_during_a_checkpoint(harness: EngineHarness) -> None:
    for name in "abc":
        harness.put(name)
    harness.commit()
    found = topic_items(harness.engine.table)
    assert next(found).name == "a"
    harness.delete("b")
    harness.put("d")
    harness.commit()
    assert [topic.name for topic in found] == ["c"]


def test_a_restored_extent_counts_its_live_records_and_is_dropped_without_any(
    harness: EngineHarness,
) -> None:
    fill(harness, 2, 3, 4)
    harness.delete_records("a", before_seq=4)
    harness.commit()
    replay, topic = restored(harness)
    assert not restore_extent(replay, topic.id, extent(1, 3), 0, 0), "it is below the start"
    assert not restore_extent(replay, topic.id, extent(4, 2), 2, 200), "all its records are deleted"
    assert restore_extent(replay, topic.id, extent(6, 4), 1, 100)
    assert (topic.count, topic.bytes, topic.head_seq, topic.sealed_seq) == (3, 300, 9, 9)
    assert not restore_extent(replay, 99, extent(1, 1), 0, 0), "its topic is deleted"
    with pytest.raises(StateMismatch, match="already exists"):
        restore_extent(replay, topic.id, extent(9, 1), 0, 0)


def test_only_unexpired_keys_of_writes_without_records_are_stored_in_the_checkpoint(
    harness: EngineHarness,
) -> None:
    harness.append("a", 0, key="over", config={"idempotency_window_ms": 1000})
    harness.commit()
    harness.later(600)
    harness.append("a", 1, key="expired")
    harness.append("a", 2, key="here")
    harness.commit()
    harness.delete_records("a", before_seq=3)
    harness.commit()
    topic, now = harness.engine.topic("a"), Now(harness.now.ts + 500, harness.now.ms + 500)
    digest = digest_of("expired").to_bytes(DIGEST_BYTES, "little")
    assert [*key_items(topic, now)] == [KEY_ROW.pack(digest, 2, 1, harness.now.ts), None]


@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
def test_keys_of_copies_are_stored_unless_the_copies_are_in_memory(
    harness: EngineHarness, durability: str
) -> None:
    fill(harness, 1, durability=durability, idempotency_window_ms=0)
    topic = harness.engine.topic("a")
    key = copy_key("dead_letter", "q", 7, 3)
    topic.dedupe.add(key, 1, 1, harness.now.ms, 0)
    replay, again = restored(harness)
    restore_moved(replay, again.id, cbor2.loads(cbor2.dumps([*moved_key_items(topic)])))
    found = again.dedupe.find(key, harness.now.ms + (1 << 40), 0)
    assert found == (None if durability == "ephemeral" else (1, 1))


# Replay: which frames the checkpoint covers


def header(topic_id: int) -> FrameHeader:
    return FrameHeader(b"", 0, 0, 0, topic_id, 1, 0, 0, 0, 0, FrameKind.FLOOR, 0, 0)


def test_each_restored_topic_has_its_own_lsn_in_the_checkpoint(harness: EngineHarness) -> None:
    for name in "abc":
        harness.put(name)
    replay = Replay(harness.engine.table)
    topics = [harness.engine.topic(name) for name in "abc"]
    for topic, lsn in zip(topics, (7, 9, 7), strict=True):
        assert replay.covered_lsn(topic) == 0
        replay.note_restored(topic, 5, lsn)
    assert [*map(replay.covered_lsn, topics)] == [7, 9, 7]
    heads = [header(topic.id)._replace(lsn=8) for topic in topics]
    assert [*map(replay.is_newer, heads)] == [True, False, True]
    assert not replay.is_newer(header(99)._replace(lsn=8))


def test_a_write_is_replayed_once_and_caps_apply_only_after_the_checkpoint(
    harness: EngineHarness,
) -> None:
    """The state at the checkpoint was within the caps, even if a deleted record made space for
    others.
    """
    harness.put("a", cap_records=2)
    harness.commit()
    replay, topic = Replay(harness.engine.table), harness.engine.topic("a")
    replay.note_restored(topic, 0, 4096)
    frame = header(topic.id)._replace(kind=FrameKind.APPEND, record_count=1, body_len=50)
    for seq in (1, 2, 3):
        append.replay(replay, frame._replace(lsn=seq * 100, first_seq=seq), checkpointed=True)
        assert (topic.start_seq, topic.count) == (1, seq)
    assert append.replay(replay, frame._replace(first_seq=3), checkpointed=True) is None
    with pytest.raises(StateMismatch, match="seq 3 already exists"):
        append.replay(replay, frame._replace(first_seq=3))
    append.replay(replay, frame._replace(lsn=4096, first_seq=4))
    assert (topic.start_seq, topic.count) == (3, 2)
