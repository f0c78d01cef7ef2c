"""Blob files: complete or refused, and never a file name without its bytes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from topics.formats.disk import blob
from topics.storage.disk import Damaged
from topics.storage.wal import blobs
from topics.storage.wal.blobs import BlobStore

BODY = bytes(range(256)) * 40


def body(store: BlobStore) -> bytes:
    return bytes(blob.body_of(store.file(5, 10).data))


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blob" / "00")


def put(store: BlobStore, topic_id: int = 5, first_seq: int = 10) -> Path:
    writer = store.begin(topic_id, first_seq, len(BODY))
    for start in range(0, len(BODY), 3000):
        writer.write([BODY[start : start + 1000], BODY[start + 1000 : start + 3000]])
    writer.finish()
    store.add(topic_id, first_seq, 0)
    return store.path(topic_id, first_seq)


def reopened(store: BlobStore) -> BlobStore:
    """Open the folder as another process does."""
    found = BlobStore(store.folder)
    found.add(5, 10, 0)
    return found


def test_a_blob_is_read_as_it_was_written(store: BlobStore) -> None:
    put(store)
    store.verify(5, 10)
    assert body(store) == BODY


def test_a_blob_of_another_process_is_verified_once_before_any_byte_is_used(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(store)
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 1000)
    heartbeats: list[int] = []
    for found in (store, reopened(store)):
        found.heartbeat = lambda: heartbeats.append(1)
        assert body(found) == body(found) == BODY
    assert len(heartbeats) == -(-len(BODY) // 1000), "a blob of this process is not read again"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(Damaged):
        reopened(store).file(5, 10)


@pytest.mark.parametrize("length", [0, 64, len(BODY)])
def test_a_blob_that_was_cut_after_it_was_written_is_not_mapped(
    store: BlobStore, length: int
) -> None:
    os.truncate(put(store), length)
    with pytest.raises(Damaged):
        store.file(5, 10)


def test_a_blob_that_the_disk_cannot_read_is_damage(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    found = reopened(store)
    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(Damaged, match="Input/output"):
        found.file(5, 10)


def test_an_abandoned_blob_leaves_no_file(store: BlobStore) -> None:
    writer = store.begin(5, 10, len(BODY))
    writer.write([BODY[:100]])
    writer.abandon()
    writer.abandon()
    assert list(store.folder.iterdir()) == []


def test_a_blob_without_disk_space_leaves_no_file(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        store.begin(5, 10, len(BODY))
    assert list(store.folder.iterdir()) == []


def test_a_sweep_keeps_the_blobs_that_the_log_names_and_foreign_files(store: BlobStore) -> None:
    kept = put(store)
    put(store, topic_id=6)
    removed = store.drop(6)
    (store.folder / "7-1.new").write_bytes(b"half")
    (store.folder / "notes.blob").write_bytes(b"a foreign file")
    store.sweep({})
    assert sorted(store.folder.iterdir()) == [kept, store.folder / "notes.blob"]
    assert removed == [store.path(6, 10)]
