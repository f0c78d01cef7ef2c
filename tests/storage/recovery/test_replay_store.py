"""The store of a replay: records of segments and of the log, and delete flags of deletes that the
replay has not reached yet.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.formats.disk.segment_support import plain
from tests.storage.segments.segments_support import add
from tests.support.log import Client, append_streamed, log_files
from topics.engine.locators import in_extent
from topics.formats.ranges import SeqRun
from topics.storage.recovery.replay_store import ReplayStore
from topics.storage.segments.segment_store import SegmentStore

EXTENT = in_extent(1, 0)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """Return a shard whose first segment holds seqs 5 to 9 of topic 1. The records at 6 and 7 are
    flagged as deleted.
    """
    client = Client(tmp_path)
    add(client.shard.segments, 1, [(1, 5, [plain(5)])])
    client.shard.segments.flag_deleted(EXTENT, [1, 2], 0)
    return client


@pytest.fixture
def store(client: Client) -> ReplayStore:
    return store_of(client)


def store_of(client: Client) -> ReplayStore:
    """Return the store that a replay of the client's log uses."""
    wal = client.wal
    return ReplayStore(client.engine, client.shard.segments, wal._files, wal.frames)


def flags(store: ReplayStore | SegmentStore) -> bytes:
    return bytes(store.delete_flags(EXTENT) or b"")


def test_records_that_the_replay_deletes_later_are_live_until_then(
    client: Client, store: ReplayStore
) -> None:
    [(_, entry)] = client.shard.segments.entries(1)
    assert flags(store) == b"\0\1\1\0\0"
    store.restore_live(EXTENT, entry, [SeqRun(1, 6), SeqRun(100, 5)])
    assert flags(store) == b"\0\0\1\0\0"
    assert flags(client.shard.segments) == b"\0\1\1\0\0", "the flags of the segment are unchanged"
    store.flag_deleted(EXTENT, 5, [(0, 2)], 2)
    assert flags(store) == b"\1\1\1\0\0"
    client.kill()


def test_a_replayed_delete_is_also_flagged_in_the_segment(
    client: Client, store: ReplayStore
) -> None:
    store.flag_deleted(EXTENT, 5, [(3, 5)], 2)
    assert flags(store) == flags(client.shard.segments) == b"\0\1\1\1\1"
    client.kill()


def test_records_are_found_in_the_log_file_that_contains_their_frame(tmp_path: Path) -> None:
    client = Client(tmp_path, file_bytes=8192)
    for number in range(30):
        client.append("a", "x" * 500, number)
    store = store_of(client)
    assert len(log_files(tmp_path)) > 1
    for locator in client.engine.topic("a").index.locators():
        assert bytes(store.records(locator).blob) == bytes(client.wal.records(locator).blob)
    client.kill()


def test_a_missing_blob_is_replaced_by_records_of_one_byte(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put("a")
    append_streamed(client, "a", 1, 2, 3).unlink()
    (locator,) = client.engine.topic("a").index.locators()
    assert store_of(client).records(locator).count == 3
    client.kill()
