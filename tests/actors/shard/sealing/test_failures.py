"""Tests of failed sealing steps: the state is unchanged, and a later round succeeds."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    check_kill_and_restart,
    delete,
    extents,
    files,
    fill,
    findings,
    free_all,
    seen,
)
from tests.support.log import failing
from topics.actors.shard.sealing import rewriting
from topics.engine.locators import split_locator
from topics.formats.api.diff_body import TagMatch
from topics.storage.checkpoints import CheckpointWriter
from topics.storage.disk import Damaged
from topics.storage.segments.delete_flags import PendingFlags
from topics.storage.segments.segment_file import Segment, SegmentWriter
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.wal.spares import SpareFiles

pytestmark = pytest.mark.slow

FAILING: list[tuple[Any, str]] = [
    (SegmentStore, "begin"),
    (SegmentWriter, "write"),
    (SegmentWriter, "finish"),
    (Segment, "entries"),
    (rewriting, "MappedSegment"),
    (PendingFlags, "sync"),
    (CheckpointWriter, "write"),
    (CheckpointWriter, "finish"),
    (SpareFiles, "add"),
    (SegmentStore, "unlink"),
    (SegmentStore, "punch"),
]


@pytest.mark.parametrize(("where", "what"), FAILING, ids=[what for _, what in FAILING])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_changes_nothing_and_a_later_round_succeeds(
    where: Any, what: str, code: int, client: Sealer
) -> None:
    fill(client, "a", "b", "deleted", rounds=10)
    client.checkpoint()
    client.delete("deleted")
    delete(client, "a", before_seq=12)
    fill(client, "b", rounds=6)
    before, failures = seen(client), 0
    with pytest.MonkeyPatch.context() as patch:

        def fails(*_: object, **__: object) -> None:
            nonlocal failures
            failures += 1
            raise OSError(code, os.strerror(code))

        patch.setattr(where, what, fails)
        for _ in range(4):
            client.sealing.checkpoints.written_at = float("-inf")
            try:
                client.seal()
            except OSError as error:
                assert error.errno == code  # noqa: PT017 - most rounds fail, one in which nothing is due does not
            assert seen(client) == before
    assert failures
    fds = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    free_all(client)
    assert seen(client) == before
    assert not [path for path in client.path.rglob("*") if path.suffix in (".tmp", ".new")]
    assert len(files(client.path, "segment")) == len(
        {split_locator(locator)[0] for locator in extents(client)}
    )
    assert len(os.listdir("/proc/self/fd")) <= fds  # noqa: PTH208
    assert findings(client.path) == []
    check_kill_and_restart(client, before)


def test_a_segment_that_reads_back_differently_is_written_again(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "a", "b", rounds=6)
    before = seen(client)
    with monkeypatch.context() as patch:
        patch.setattr("topics.storage.segments.segment_file.crc32c", SimpleNamespace(crc32c=hash))
        with pytest.raises(Damaged, match="tables"):
            client.seal()
    assert not extents(client)
    assert not files(client.path, "segment")
    assert seen(client) == before
    client.seal()
    assert extents(client)
    assert seen(client) == before
    check_kill_and_restart(client, before)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_flag_that_the_disk_refuses_takes_effect_immediately_and_is_written_later(
    code: int, client: Sealer
) -> None:
    fill(client, "a", "b", rounds=10)
    client.seal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topics.storage.segments.delete_flags.write_all", failing(code))
        delete(client, "a", match=TagMatch("Eq", "odd"))
        delete(client, "a", before_seq=4)
        before = seen(client)
        assert not [
            record
            for record in client.shown("a")
            if record["$tag"] == "odd" and record["$seq"] < 12
        ]
        with pytest.raises(OSError):
            client.checkpoint()
        assert seen(client) == before
    client.checkpoint()
    client.checkpoint()
    assert not client.shard.segments.flags._queue
    assert seen(client) == before
    check_kill_and_restart(client, before)


def test_after_a_failed_sync_all_flags_are_written_again(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "a", rounds=10)
    client.seal()
    delete(client, "a", match=TagMatch("Eq", "odd"))
    store = client.shard.segments
    with monkeypatch.context() as patch:
        patch.setattr("topics.storage.segments.delete_flags.sync_segment", failing(errno.EIO))
        with pytest.raises(OSError):
            store.flags.sync(client.wal.next_lsn)
    before = seen(client)
    for number, segment in store.segments.items():  # lose the data in the page cache
        data = bytearray(segment.path.read_bytes())
        start = segment.trailer.flags_at
        if any(split_locator(queued.locator)[0] == number for queued in store.flags._queue):
            data[start : start + segment.trailer.record_count] = bytes(segment.trailer.record_count)
            segment.path.write_bytes(data)
    assert store.flags._queue
    store.flags.sync(client.wal.next_lsn)
    assert not store.flags._queue
    assert seen(client) == before
