"""Tests of restore: it creates the state at the cut of the backup, or leaves no files."""

from __future__ import annotations

import errno
import io
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    Seen,
    delete,
    eager_merges,
    ended,
    fill,
    seen,
)
from tests.actors.shard.sealing.test_pins import pinned
from tests.support.log import append_streamed, failing
from topics.actors.shard.backups import Backups, _Backup
from topics.engine.moved_keys import copy_key
from topics.formats.api.diff_body import TagMatch
from topics.formats.disk import backup_archive
from topics.formats.disk.backup_archive import ArchiveFile, Manifest
from topics.storage import backup_restore as restoring
from topics.storage.backup_restore import BackupDamaged, CannotRestore, NotABackup, restore
from topics.storage.backup_writer import BackupWriter
from topics.storage.data_dir import encode_meta
from topics.storage.segments.segment_file import segment_path


class Taken:
    """A backup that is taken step by step."""

    def __init__(self, client: Sealer) -> None:
        (client.path / "meta").write_bytes(encode_meta(1))
        self._client, self._pin = client, pinned(client)
        context = cast("Any", SimpleNamespace(wal=client.wal))
        self._service = Backups(context, client.shard, client.sealing)
        self._begun = self._service._pinned(self._pin)
        self._stream, self._parts = BackupWriter(1), list[bytes]()

    def add(self, files: Any) -> None:
        self._parts += self._stream.add(map(ArchiveFile._make, files))

    def flags(self) -> None:
        """Add the delete flags, before the cut."""
        self.add(self._begun.flags)

    def cut(self) -> list[ArchiveFile]:
        """Cut the log. Return the log files of the backup."""
        client = self._client
        client.wal.flush(sync=True)
        client.advance()
        found = _Backup(cast("Any", None), 1, self._pin)
        self.lsn = client.wal.next_lsn
        return [*self._service._log(found, self.lsn)]

    def end(self, log: list[ArchiveFile]) -> bytes:
        """Add the remaining files. Return the complete archive."""
        self.add([*self._begun.files, *log])
        manifest = Manifest(backup_archive.FORMAT, "test", 1, 1, [self.lsn], self._stream.members)
        return b"".join([*self._parts, self._stream.end(manifest)])


def take(client: Sealer) -> bytes:
    """Take a backup of an idle shard."""
    taken = Taken(client)
    taken.flags()
    return taken.end(taken.cut())


def restored(data: bytes, folder: Path, **options: bool) -> list[str]:
    arguments = {"as_new": False, "with_damage": False} | options
    return restore(io.BytesIO(data), folder, **arguments)[1]


def busy(client: Sealer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create records of all kinds: sealed, deleted, streamed and in the log."""
    eager_merges(monkeypatch)
    client.put("blob")
    fill(client, "a", "b", "deleted", rounds=25)
    delete(client, "a", before_seq=12)
    delete(client, "b", match=TagMatch("Eq", "even"))
    client.seal()
    append_streamed(client, "blob", *range(20))
    fill(client, "a", rounds=4)
    client.delete("deleted")


def start(client: Sealer, folder: Path) -> Seen:
    """Start a shard in the folder and return its observable state."""
    with ended(Sealer(folder, now=client.now)) as again:
        return seen(again)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "restored" / "data"


@pytest.fixture(autouse=True)
def parent(target: Path) -> None:
    target.parent.mkdir()


@pytest.fixture(autouse=True)
def clocks(client: Sealer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore with the clock of the client."""
    now = client.now
    shown = SimpleNamespace(
        time_ns=lambda: now.ts * 1_000_000, monotonic_ns=lambda: now.ms * 1_000_000
    )
    monkeypatch.setattr(restoring, "time", shown)


@pytest.mark.slow
def test_a_restored_shard_equals_the_original(
    client: Sealer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(client, monkeypatch)
    before = seen(client)
    restored(take(client), target)
    assert [path.name for path in target.parent.iterdir()] == ["data"]
    assert start(client, target) == before


def test_a_start_on_another_machine_reports_no_loss(client: Sealer, target: Path) -> None:
    client.put("later")
    fill(client, "a")
    before = seen(client)
    restored(take(client), target)
    with ended(Sealer(target, now=client.now, boot="another")) as again:
        assert seen(again) == before
        assert again.append("a", 1) == client.append("a", 1)


@pytest.mark.slow
def test_changes_after_the_cut_are_not_in_the_backup(
    client: Sealer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(client, monkeypatch)
    taken = Taken(client)
    taken.flags()
    delete(client, "a", before_seq=20)  # between the checkpoint and the cut
    fill(client, "c")
    log, before = taken.cut(), seen(client)
    delete(client, "a", before_seq=40)
    delete(client, "b", match=TagMatch("Glob", "o"))
    fill(client, "a", "d", rounds=30)
    client.checkpoint()  # the files of segments have the flags of these deletes now
    client.delete("blob")
    client.checkpoint()
    client.checkpoint()
    restored(taken.end(log), target)
    assert start(client, target) == before


@pytest.mark.slow
def test_a_restore_as_new_gives_each_topic_a_new_epoch(
    client: Sealer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(client, monkeypatch)
    client.put("q", type="queue", dead_letter="dead", max_deliveries=1)
    epoch = client.engine.topics["q"].epoch
    client.append("dead", 1)
    client.engine.topics["dead"].dedupe.note_copy(copy_key("dead_letter", "q", epoch, 7), 1)
    before = seen(client)
    epochs = {topic.name: topic.epoch for topic in client.engine.by_id.values()}
    restored(take(client), target, as_new=True)
    with ended(Sealer(target, now=client.now)) as again:
        assert seen(again) == before
        new = {topic.name: topic.epoch for topic in again.engine.by_id.values()}
        assert new.keys() == epochs.keys()
        assert min(new.values()) > max(epochs.values())
        assert len({*new.values()}) == len(new)
        moved = again.engine.topics["dead"].dedupe.moved
        assert moved is not None
        assert moved.find(copy_key("dead_letter", "q", new["q"], 7)) == 1
        again.put("later")
        assert again.engine.topics["later"].epoch > max(new.values())
        # A second start, or a start from the log alone, does not restore the old epochs either.
        fill(again, "a", rounds=30)
        again.checkpoint()
        again.kill()
    with ended(Sealer(target, now=client.now)) as again:
        found = {topic.name: topic.epoch for topic in again.engine.by_id.values()}
        assert new.items() < found.items()


def members(data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = [(info, tar.extractfile(info)) for info in tar]
        return [(info, content.read() if content else b"") for info, content in found]


def packed(found: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, content in found:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def named(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), b"x"


def link(name: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info, b""


Members = list[tuple[tarfile.TarInfo, bytes]]

ALTERATIONS: dict[str, Callable[[Members], Members]] = {
    "nothing": lambda _: [],
    "without a manifest": lambda found: found[:-1],
    "without a member": lambda found: found[1:],
    "reordered": lambda found: [found[1], found[0], *found[2:]],
    "a member twice": lambda found: [found[0], *found],
    "a member after the manifest": lambda found: [*found, named("meta")],
    "absolute": lambda found: [named("/etc/x"), *found],
    "upwards": lambda found: [named("wal/../../x"), *found],
    "another name": lambda found: [named("LOCK"), *found],
    "a link": lambda found: [link("meta"), *found[1:]],
    "a longer member": lambda found: [(found[0][0], found[0][1] + b"x"), *found[1:]],
    "another manifest": lambda found: [
        *found[:-1],
        (found[-1][0], found[-1][1].replace(b'"shards":1', b'"shards":2')),
    ],
    "another format": lambda found: [
        *found[:-1],
        (found[-1][0], backup_archive.sealed(Manifest(9, "", 1, 1, [], []))),
    ],
    "an empty manifest": lambda found: [*found[:-1], (found[-1][0], b"{}")],
}


@pytest.fixture
def archive(client: Sealer, monkeypatch: pytest.MonkeyPatch) -> bytes:
    busy(client, monkeypatch)
    return take(client)


def is_unchanged(target: Path) -> bool:
    return not [*target.parent.iterdir()]


@pytest.mark.slow
def test_a_tar_that_is_no_backup_leaves_no_files(archive: bytes, target: Path) -> None:
    taken = []
    for how, alter in ALTERATIONS.items():
        try:
            restored(packed(alter(members(archive))), target)
        except NotABackup:
            assert is_unchanged(target), how
        else:
            taken.append(how)
    assert not taken


@pytest.mark.slow
def test_a_truncated_or_altered_backup_leaves_no_files(archive: bytes, target: Path) -> None:
    rng = random.Random(1)
    manifest_end = len(archive) - 2 * backup_archive.BLOCK_BYTES - 600
    for _ in range(12):
        at = rng.randrange(manifest_end)
        with pytest.raises(NotABackup):
            restored(archive[:at], target)
        assert is_unchanged(target)
    offsets = [info.offset_data for info, content in members(archive) if content]
    with pytest.raises(NotABackup):
        restored(b"not a tar" * 1000, target)
    for at in offsets:
        altered = bytearray(archive)
        altered[at] ^= 1 << rng.randrange(8)
        with pytest.raises(NotABackup):
            restored(bytes(altered), target)
        assert is_unchanged(target)


def test_a_restore_on_a_full_disk_leaves_no_files(
    archive: bytes, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    with pytest.raises(OSError):
        restored(archive, target)
    assert is_unchanged(target)


@pytest.mark.slow
def test_a_restore_does_not_change_a_directory_that_is_not_empty(
    archive: bytes, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.mkdir()
    (target / "file").touch()
    with pytest.raises(CannotRestore, match="not an empty directory"):
        restored(archive, target)
    assert [path.name for path in target.iterdir()] == ["file"]
    with pytest.raises(CannotRestore, match="is not a directory"):
        restored(archive, target / "file" / "data")
    (target / "file").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_mount", lambda _: True)
        with pytest.raises(CannotRestore, match="mount point"):
            restored(archive, target)
    restored(archive, target)
    assert (target / "meta").exists()
    assert target.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_damage_in_a_backup_is_reported_and_restored_only_on_request(
    client: Sealer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(client, monkeypatch)
    client.checkpoint()
    number = client.sealing.reclaim.named_segments[0]
    path = segment_path(client.shard.segments.folder, number)
    data = bytearray(path.read_bytes())
    data[4096 + 20] ^= 1
    path.write_bytes(data)
    taken = take(client)
    with pytest.raises(BackupDamaged) as failure:
        restored(taken, target)
    assert failure.value.findings == [
        f"{target}/segment/00/{path.name}, offset 4096: records are damaged"
    ]
    assert is_unchanged(target)
    for as_new in (False, True):
        folder = target.with_name(f"new-{as_new}")
        (finding,) = restored(taken, folder, with_damage=True, as_new=as_new)
        assert "records are damaged" in finding
        assert set(start(client, folder)) == set(seen(client))


def test_idempotency_keys_of_copies_are_renamed_if_their_epoch_has_changed() -> None:
    epochs = {("a:b", 7): 9}
    renamed = restoring._renamed
    assert renamed("$dead_letter:a:b:7", epochs) == "$dead_letter:a:b:9"
    assert renamed("$redrive:a:b:8", epochs) == "$redrive:a:b:8"
    assert renamed("$dead_letter:7", epochs) == "$dead_letter:7"
