"""Tests of pins: the shard keeps the files that a backup copies, unless it needs their space."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    check_restart,
    copy,
    delete,
    eager_merges,
    files,
    fill,
    free_all,
    sealed,
    seen,
)
from tests.support.log import append_streamed, failing
from topics.actors.shard.sealing.reclaim import Pin
from topics.engine.now import Now
from topics.storage import checkpoints
from topics.storage.checkpoints import CheckpointWriter
from topics.storage.segments.segment_file import SegmentWriter
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.wal import spares
from topics.storage.wal.log import Wal

WAIT_S = 60.0


def pinned(client: Sealer) -> Pin:
    """Return a pin that a round has applied to a new checkpoint."""
    pin, results = Pin(), list[OSError | None]()
    client.sealing.request_checkpoint(pin, results.append)
    client.seal()
    assert results == [None]
    assert pin.checkpoint is not None
    return pin


def needed(client: Sealer, pin: Pin) -> dict[Path, bytes]:
    """Return the files that a start from the pinned checkpoint needs, with their current bytes."""
    assert pin.checkpoint is not None
    found = checkpoints.read(pin.checkpoint)
    assert found is not None
    segments = [client.shard.segments.segments[number].path for number in found.segments]
    log = [file.path for file, _ in client.wal.files_between(found.replay_from, found.lsn)]
    blobs = client.wal.blobs.below(found.lsn)
    return {path: path.read_bytes() for path in (pin.checkpoint, *segments, *log, *blobs)}


@pytest.mark.slow
def test_files_of_a_pinned_checkpoint_are_kept(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager_merges(monkeypatch)
    client.put("blob")
    blob = append_streamed(client, "blob", *range(20))
    fill(client, "a", "b", "deleted", rounds=30)
    client.seal()
    second = append_streamed(client, "blob", *range(20))
    pin = pinned(client)
    before, kept = seen(client), needed(client, pin)
    assert {blob, second} & {*kept}
    for round_ in range(4):
        delete(client, "a", before_seq=10 * round_)
        fill(client, "a", "b", rounds=20)
        client.seal()
        client.checkpoint()
    client.delete("deleted")
    client.delete("blob")
    client.checkpoint()
    assert {path for path in kept if not path.exists()} == set()
    assert len(files(client.path, "checkpoint")) == checkpoints.CHECKPOINTS_KEPT + 1
    for path, content in kept.items():
        if path.suffix != ".seg":  # delete flags change
            assert path.read_bytes().startswith(content[: len(content.rstrip(b"\0"))]), path
    assert not client.sealing.reclaim.has_garbage
    after = seen(client)
    client.sealing.release_pin(pin)
    free_all(client)
    assert len(files(client.path, "checkpoint")) == checkpoints.CHECKPOINTS_KEPT
    assert not second.exists()
    assert before != after == seen(client)


@pytest.mark.slow
def test_a_start_treats_a_pinned_checkpoint_like_any_other(client: Sealer, tmp_path: Path) -> None:
    fill(client, "a", "b", rounds=30)
    client.seal()
    pinned(client)
    for _ in range(3):
        fill(client, "a", rounds=20)
        client.checkpoint()
    before = seen(client)
    client.kill()
    other = copy(client.path, tmp_path / "copy")
    check_restart(client, before)
    again = Sealer(other, now=Now(client.now.ts, client.now.ms))
    fill(again, "a", rounds=40)
    free_all(again)
    assert len(files(other, "checkpoint")) == checkpoints.CHECKPOINTS_KEPT
    again.kill()


def test_a_blob_that_the_log_named_after_the_pin_is_included(client: Sealer) -> None:
    client.put("blob")
    fill(client, "a")
    pin = pinned(client)
    blob = append_streamed(client, "blob", *range(20))
    fill(client, "a", rounds=30)
    client.checkpoint()
    assert blob in {*client.wal.blobs.below(client.wal.next_lsn), *pin.blobs}
    client.delete("blob")
    assert blob in pin.blobs
    assert blob.exists()


def test_a_shard_without_space_breaks_the_pin(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "big", rounds=30)
    client.seal()
    pin = pinned(client)
    client.delete("big")
    fill(client, "a", rounds=20)
    before = len(files(client.path, "segment"))
    with monkeypatch.context() as patch:
        patch.setattr(SegmentStore, "begin", failing(errno.ENOSPC))
        with pytest.raises(OSError):
            client.seal()
    assert pin.is_broken
    free_all(client)
    assert len(files(client.path, "segment")) <= before


class FullOnce:
    """A call that fails for lack of space the first time."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call, self.calls = call, 0

    def __get__(self, instance: object, owner: type) -> Callable[..., Any]:
        return partial(self, instance)

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._call(*arguments)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(SegmentStore, "begin"), (SegmentWriter, "write"), (CheckpointWriter, "finish")],
)
def test_a_segment_or_checkpoint_without_space_breaks_the_pin_and_is_written_again(
    client: Sealer, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    fill(client, "big", rounds=30)
    client.seal()
    pin = pinned(client)
    client.delete("big")
    fill(client, "a", rounds=20)
    full = FullOnce(getattr(owner, name))
    monkeypatch.setattr(owner, name, full)
    client.seal()
    assert pin.is_broken
    assert full.calls > 1
    assert sealed(client, "a")


def test_a_pin_is_kept_while_there_is_space_for_all_files(client: Sealer) -> None:
    fill(client, "a", rounds=30)
    client.seal()
    pin = pinned(client)
    client.wal.writer.spares.is_incomplete = True  # set by an earlier attempt
    client.seal()
    assert not pin.is_broken
    assert not client.wal.lacks_files


def test_a_spare_log_file_without_space_breaks_the_pin(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "a", rounds=30)
    client.seal()
    pin = pinned(client)
    with monkeypatch.context() as patch:
        patch.setattr(spares, "prepare", failing(errno.ENOSPC))
        while client.wal.writer.spares.take():
            pass
        fill(client, "a", rounds=8)
        tried = threading.Event()
        client.wal.writer.syncer.run_later(tried.set)  # runs after the spare was tried
        assert tried.wait(WAIT_S)
        assert client.wal.lacks_files
        assert not client.wal.lacks_space, "nothing is refused yet"
        client.seal()
    assert pin.is_broken


def test_blobs_of_deleted_topics_are_freed_when_the_pin_breaks(client: Sealer) -> None:
    client.put("blob")
    blob = append_streamed(client, "blob", *range(20))
    pin = pinned(client)
    client.delete("blob")
    assert blob.exists()
    checkpoint = client.sealing.checkpoints.written
    client.sealing._break_pin()
    client.step()
    while blob.exists():
        assert client.step(), "the next round frees them"
    assert client.sealing.checkpoints.written == checkpoint, "they are freed without a checkpoint"
    assert pin.is_broken
    client.seal()


def test_a_log_without_space_breaks_the_pin(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "a", rounds=30)
    client.seal()
    pin = pinned(client)
    fill(client, "a", rounds=30)
    client.checkpoint()
    assert not pin.is_broken
    monkeypatch.setattr(Wal, "lacks_space", True)
    monkeypatch.setattr(Wal, "allocate_files", lambda _: False)
    client.seal()
    assert pin.is_broken
    assert client.sealing.reclaim.pin is None


def test_a_failed_checkpoint_pins_nothing(client: Sealer, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client, "a")
    results = list[OSError | None]()
    monkeypatch.setattr(checkpoints.CheckpointWriter, "finish", failing(errno.EIO))
    client.sealing.request_checkpoint(Pin(), results.append)
    with pytest.raises(OSError):  # the checkpoint of the round itself fails, too
        client.seal()
    assert [error.errno for error in results if error is not None] == [errno.EIO]
    assert client.sealing.reclaim.pin is None
