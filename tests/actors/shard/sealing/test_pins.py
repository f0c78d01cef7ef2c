"""Pins: what a backup copies stays, whatever the shard does meanwhile, unless it needs the room."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    comes_back,
    copy,
    delete,
    eager_merges,
    files,
    fill,
    free_all,
    seen,
)
from tests.support.log import append_streamed, failing
from topics.actors.shard.sealing.reclaim import Pin
from topics.engine.now import Now
from topics.storage import checkpoints
from topics.storage.segments.store import SegmentStore
from topics.storage.wal.log import Wal


def pinned(client: Sealer) -> Pin:
    """A pin that the next round has taken up."""
    pin, told = Pin(), list[OSError | None]()
    client.sealing.ask_for(pin, told.append)
    client.seal()
    assert told == [None]
    assert pin.checkpoint is not None
    return pin


def needed(client: Sealer, pin: Pin) -> dict[Path, bytes]:
    """The files that a start from the pinned checkpoint needs, as they are now."""
    assert pin.checkpoint is not None
    found = checkpoints.read(pin.checkpoint)
    assert found is not None
    segments = [client.shard.segments.segments[number].path for number in found.segments]
    log = [file.path for file, _ in client.wal.files_between(found.replay_from, found.lsn)]
    blobs = client.wal.blobs.below(found.lsn)
    return {path: path.read_bytes() for path in (pin.checkpoint, *segments, *log, *blobs)}


def test_what_a_pinned_checkpoint_names_stays(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager_merges(monkeypatch)
    client.put("blob")
    blob = append_streamed(client, "blob", *range(20))
    fill(client, "a", "b", "gone", rounds=30)
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
    client.delete("gone")
    client.delete("blob")
    client.checkpoint()
    assert {path for path in kept if not path.exists()} == set()
    assert len(files(client.path, "checkpoint")) == checkpoints.KEEP + 1
    for path, content in kept.items():
        if path.suffix != ".seg":  # delete flags change
            assert path.read_bytes().startswith(content[: len(content.rstrip(b"\0"))]), path
    assert not client.sealing.reclaim.has_garbage
    after = seen(client)
    client.sealing.let_go(pin)
    free_all(client)
    assert len(files(client.path, "checkpoint")) == checkpoints.KEEP
    assert not second.exists()
    assert before != after == seen(client)


def test_a_start_with_a_pinned_checkpoint_is_one_like_any(client: Sealer, tmp_path: Path) -> None:
    fill(client, "a", "b", rounds=30)
    client.seal()
    pinned(client)
    for _ in range(3):
        fill(client, "a", rounds=20)
        client.checkpoint()
    before = seen(client)
    client.kill()
    other = copy(client.path, tmp_path / "copy")
    comes_back(client, before)
    again = Sealer(other, now=Now(client.now.ts, client.now.ms))
    fill(again, "a", rounds=40)
    free_all(again)
    assert len(files(other, "checkpoint")) == checkpoints.KEEP
    again.kill()


def test_a_blob_that_the_log_has_named_since_is_known(client: Sealer) -> None:
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


def test_a_shard_without_room_breaks_the_pin(
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


def test_a_log_short_of_room_is_given_what_is_pinned(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "a", rounds=30)
    client.seal()
    pin = pinned(client)
    fill(client, "a", rounds=30)
    client.checkpoint()
    assert not pin.is_broken
    monkeypatch.setattr(Wal, "short_of_room", True)
    assert client.sealing.reclaim.has_garbage
    client.checkpoint()
    assert pin.is_broken
    assert client.sealing.reclaim.pin is None


def test_a_checkpoint_that_fails_pins_nothing(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "a")
    told = list[OSError | None]()
    monkeypatch.setattr(checkpoints.CheckpointWriter, "finish", failing(errno.EIO))
    client.sealing.ask_for(Pin(), told.append)
    with pytest.raises(OSError):  # nor does the round's own come to be
        client.seal()
    assert [error.errno for error in told if error is not None] == [errno.EIO]
    assert client.sealing.reclaim.pin is None
