"""Restore: creates a complete data directory from a backup (``formats/disk/backup_archive.py``), or
none.

    tar -> files in a temporary directory next to the final one, hashed as they are written
        -> compared with the manifest -> delete flags and log file lengths set -> `verify`
        -> each shard started and stopped [as new] -> `verify` -> synced -> renamed

A restore that is refused or fails leaves no files. A server that starts in the new directory
continues as if it had been killed at the moment of the backup. The shards are started and stopped
here without a server, because only a restore knows that each log is complete up to its end. Startup
on another machine would assume that a power loss may have cut the log.

In a restore as new, each topic gets its next epoch, so that readers notice that their cursors
belong to a different incarnation. The checkpoint of each shard then contains the new epochs, and
all other checkpoints are removed. Routers, and the keys of records that are being moved between
topics, get the new epochs too, so that no record is copied twice.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count, zip_longest
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from topics.engine.changes.start import skip_seqs
from topics.engine.now import Now
from topics.engine.snapshot import checkpoint_items
from topics.formats.disk import backup_archive
from topics.formats.disk.backup_archive import BadManifest, Manifest
from topics.formats.disk.frame_bodies import router_set_frame
from topics.formats.disk.frames import Frame
from topics.formats.disk.segment import BadSegment, decode_ends
from topics.storage import checkpoints
from topics.storage.data_dir import decode_meta
from topics.storage.disk import MARGIN_BYTES, Damaged, check_version, sync_directory, write_all
from topics.storage.file_names import CHECKPOINT, LOG, LOG_RESERVE, NEXT_RESERVE, SPARE, own_files
from topics.storage.recovery.shard_recovery import RecoveredShard, recover
from topics.storage.segments.segment_file import SUFFIX as SEGMENT
from topics.storage.verify import Finding, verify_directory
from topics.storage.wal.spares import FIRST_FILE_BYTES

CHUNK_BYTES: Final = 1 << 20
SYNC_MS: Final = 200
MANIFEST_MAX_BYTES: Final = 1 << 28  # a manifest has about 200 bytes per file
FILE_MAX_BYTES: Final = 1 << 33  # settings limit a log file to 1 GiB plus one longer frame
# The errors that `tarfile` raises for invalid input. An OSError is a disk error.
BAD_TAR: Final = (
    *(tarfile.TarError, ArithmeticError, AttributeError, EOFError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError),
)

Parsed = TypeVar("Parsed")
Epochs = Mapping[tuple[str, int], int]
"""Maps the name and old epoch of each topic to its new epoch."""


class NotABackup(Exception):
    """The stream is not a complete backup."""


class CannotRestore(Exception):
    """The directory cannot be created at this path."""


class BackupDamaged(Exception):
    """The files were already damaged when the backup was made. ``findings`` lists the damage."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__(f"the server had damaged files when the backup was made: {findings[:1]}")
        self.findings = findings


def restore(
    unpack: IO[bytes] | Callable[[Path], Manifest],
    directory: Path,
    *,
    as_new: bool,
    with_damage: bool,
) -> tuple[Manifest, list[str]]:
    """Create ``directory``, which must not exist or must be empty, from a backup.

    ``unpack`` is the backup's tar, or a function that writes a backup's files to a folder.

    Return the backup's manifest and a list of damage and warnings. Raise `NotABackup`,
    `CannotRestore`, OSError or, unless ``with_damage`` is true, `BackupDamaged`. If an error is
    raised, the directory is unchanged.
    """
    directory = directory.resolve()
    _check_directory(directory)
    # The staging directory is on the file system of the final one, so that the rename is atomic.
    staging = Path(tempfile.mkdtemp(".restore", f".{directory.name}.", directory.parent))
    try:
        manifest = unpack(staging) if callable(unpack) else _unpack(unpack, staging)
        findings = build(staging, directory, manifest, as_new=as_new, with_damage=with_damage)
        _publish(staging, directory)
    # BaseException, because an interrupted restore must leave no files either.
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return manifest, findings


def build(
    staging: Path,
    directory: Path,
    manifest: Manifest,
    *,
    as_new: bool,
    with_damage: bool,
    skip: int = 0,
) -> list[str]:
    """Turn a backup's files in ``staging`` into a data directory, which will be moved to
    ``directory``.

    ``skip`` has the same meaning as in `skip_seqs`. Return a list of damage and warnings. Raise
    the same errors as `restore`.

    The steps run in ``staging``. ``directory`` is used in messages and for the check of free
    space.
    """
    # The order matters: `_verified` needs complete files, and shards are started only on verified
    # ones.
    _complete(staging, manifest)
    findings = _verified(staging, directory, manifest.shards, with_damage=with_damage)
    if as_new or skip or not findings:  # damage may require a repair before startup
        now = Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)
        _restart_shards(staging, manifest.shards, now, as_new=as_new, skip=skip)
        findings = _verified(staging, directory, manifest.shards, with_damage=with_damage)
    return findings + _lacking_space(staging, directory, manifest.shards)


def _lacking_space(staging: Path, directory: Path, shards: int) -> list[str]:
    """Return a warning if the disk lacks space for the server's next files.

    Without this space the server would refuse appends.
    """
    # The total size of the files that the first startup creates in each shard: log file, reserve
    # and checkpoint.
    needed = 0
    for shard in range(shards):
        log, checkpoint = (staging / part / f"{shard:02d}" for part in ("wal", "checkpoint"))
        sizes = [path.stat().st_size for path in own_files(log, LOG)[-1:]]
        file_bytes = max([FIRST_FILE_BYTES, *sizes])
        has_spare = bool(own_files(log, SPARE))
        has_reserve = bool(own_files(log, LOG_RESERVE))
        needed += file_bytes * ((not has_reserve) + (not has_spare))
        if not own_files(checkpoint, NEXT_RESERVE):
            needed += checkpoints.RESERVE_MIN_BYTES
    found = os.statvfs(staging)
    free, needed = found.f_bavail * found.f_frsize, needed + MARGIN_BYTES
    if not found.f_blocks or free >= needed:
        # If a file system reports no blocks, its size is unknown. In that case, there is no
        # warning.
        return []
    wanted = f"with less than {-(-needed >> 20)} MiB a server refuses appends (disk_full)"
    return [f"{directory}: only {free >> 20} MiB of the disk are free; {wanted}"]


def _check_directory(directory: Path) -> None:
    """Raise `CannotRestore` unless the directory can be created or is empty."""
    if not directory.parent.is_dir():
        raise CannotRestore(f"{directory.parent} is not a directory")
    if directory.is_mount():
        raise CannotRestore(f"{directory} is a mount point; specify a directory in it")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CannotRestore(f"{directory} is not an empty directory")


def _publish(staging: Path, directory: Path) -> None:
    """Make all files durable, then rename the directory."""
    # An existing directory determines the owner of all files.
    # Sync the data before the rename, so that after a power loss the directory is either missing
    # or complete.
    sync_files(staging, directory.stat() if directory.exists() else None)
    staging.rename(directory)
    sync_directory(directory.parent)


def sync_files(directory: Path, owner: os.stat_result | None) -> None:
    """Make all files below a directory durable, and set their owner to ``owner``."""
    for folder, _, names in os.walk(directory):
        for path in (Path(folder, name) for name in names):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if owner is not None:
                    os.fchown(fd, owner.st_uid, owner.st_gid)
                os.fsync(fd)
            finally:
                os.close(fd)
        if owner is not None:
            os.chown(folder, owner.st_uid, owner.st_gid)
        sync_directory(Path(folder))


def _verified(staging: Path, directory: Path, shards: int, *, with_damage: bool) -> list[str]:
    """Return the damage, with the final paths of the files. Raise `BackupDamaged`."""
    found = verify_directory(staging, shards)
    findings = [
        str(each).replace(str(staging), str(directory))
        for each in found
        if isinstance(each, Finding)
    ]
    if findings and not with_damage:
        raise BackupDamaged(findings)
    return findings


# The tar


def read_archive(
    stream: IO[bytes], store: Callable[[tarfile.TarInfo, IO[bytes]], object]
) -> Manifest:
    """Call ``store`` with each file in a backup's tar and the file's contents. Return the manifest,
    which must be the last member.

    ``store`` must check the names. Raise `NotABackup`, or the errors of ``store`` and ``stream``.
    """
    manifest = None
    try:
        # Read the archive as a stream (``r|``), because it may come from a pipe and exceed the
        # memory.
        with _parsed(lambda: tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK_BYTES)) as tar:
            while info := _parsed(tar.next):
                if manifest is not None:
                    raise NotABackup(f"it contains {info.name!r} after its manifest")
                # Links, devices and sparse files never occur in a backup. Following a link could
                # overwrite files.
                content = tar.extractfile(info) if info.isreg() and not info.issparse() else None
                if content is None:
                    raise unexpected(info)
                if info.name == backup_archive.MANIFEST:
                    data = content.read(MANIFEST_MAX_BYTES)
                    manifest = backup_archive.unsealed(data, Manifest)
                else:
                    store(info, content)
            _check_end(tar)
    except BadManifest as error:
        raise NotABackup(str(error)) from error
    except tarfile.TarError as error:
        raise NotABackup(f"it is truncated: {error}") from error
    # The manifest is written last. If it is missing, the backup was interrupted.
    if manifest is None:
        raise NotABackup("it is truncated or not a backup: no manifest at its end")
    return manifest


def unexpected(info: tarfile.TarInfo) -> NotABackup:
    """Return the error for a member that a backup does not contain."""
    return NotABackup(f"it contains {info.name!r}, which is not a backup file")


def _parsed(parse: Callable[[], Parsed]) -> Parsed:
    """Return the result of a `tarfile` function. Raise `NotABackup` for invalid input."""
    try:
        return parse()
    except BAD_TAR as error:
        raise NotABackup(f"it is truncated or not a tar archive: {error}") from error


def _check_end(tar: tarfile.TarFile) -> None:
    """Raise `NotABackup` if the tar's end is followed by anything but zeros."""
    rest: Any = tar.fileobj
    while chunk := rest.read(CHUNK_BYTES):
        if chunk.strip(b"\0"):
            raise NotABackup("it is followed by other data")


def _unpack(stream: IO[bytes], folder: Path) -> Manifest:
    """Write all members as files and compare them with the manifest.

    Raise `NotABackup` or OSError.
    """
    found: list[tuple[str, int, str]] = []

    def store(info: tarfile.TarInfo, content: IO[bytes]) -> None:
        # No such name refers to a path outside of the directory.
        if not backup_archive.NAME.fullmatch(info.name):
            raise unexpected(info)
        found.append((info.name, info.size, _write(content, folder / info.name, info.size)))

    manifest = read_archive(stream, store)
    _compare(found, manifest)
    return manifest


def _write(content: IO[bytes], path: Path, size: int) -> str:
    """Write a member and return its SHA-256. Raise `NotABackup` if it is shorter than ``size``."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest, written = hashlib.sha256(), 0
    if path.exists():
        raise NotABackup(f"it contains {path.name} twice")
    with path.open("wb") as file:
        # Records may be confidential, so only the owner may read them.
        path.chmod(0o600)
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
            written += file.write(chunk)
    if written != size:
        raise NotABackup(f"it is truncated within {path.name}")
    return digest.hexdigest()


def _compare(found: Iterable[tuple[str, int, str]], manifest: Manifest) -> None:
    """Raise `NotABackup` unless the unpacked files match the manifest."""
    wanted = ((each.path, each.bytes, each.sha256) for each in manifest.members)
    for own, named in zip_longest(found, wanted):
        if own != named:
            path = (named or own or ("",))[0]
            raise NotABackup(f"{path} is missing or was changed")


def _complete(folder: Path, manifest: Manifest) -> None:
    """Turn the unpacked files into a data directory. Raise `NotABackup` or OSError."""
    # Check the format version first. Otherwise, files of a later version would be reported as
    # damaged.
    for member in manifest.members:
        try:
            check_version(folder / member.path)
        except Damaged as error:
            raise NotABackup(f"{member.path}, offset {error.offset}: {error.reason}") from error
    try:
        shards = decode_meta((folder / "meta").read_bytes()).shards
    except (FileNotFoundError, ValueError) as error:
        raise NotABackup(f"its file meta is missing or damaged: {error}") from error
    if shards != manifest.shards:
        raise NotABackup("its manifest belongs to a different server")
    # A backup contains a checkpoint of each shard, without which the log cannot be replayed.
    for shard in range(shards):
        if not own_files(folder / "checkpoint" / f"{shard:02d}", CHECKPOINT):
            raise NotABackup(f"it has no checkpoint for shard {shard}")
    for member in manifest.members:
        # Check the size before space is allocated, because a manifest with a wrong size could
        # fill the disk.
        if member.size > FILE_MAX_BYTES:
            raise NotABackup(f"{member.path} has an invalid size of {member.size} bytes")
        # Only a log file is smaller than its size, because its space is allocated before its frames
        # are written.
        if member.size > member.bytes:
            with (folder / member.path).open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, member.size)
    _set_flags(folder)
    (folder / "LOCK").touch(mode=0o600)


def _set_flags(folder: Path) -> None:
    """Set each segment's delete flags to the flags at the time of the backup's cut.

    The segment files may contain later flags.
    """
    flags = folder / backup_archive.FLAGS
    for path in (folder / "segment").glob(f"*/*{SEGMENT}"):
        held = flags / path.relative_to(folder / "segment")
        with path.open("r+b") as file:
            fd = file.fileno()
            try:
                _, trailer, _ = decode_ends(
                    lambda offset, length, fd=fd: os.pread(fd, length, offset),  # type: ignore[misc]
                    os.fstat(fd).st_size,
                )
            except BadSegment:
                continue  # `verify` reports it
            # If the backup has no flags for a segment, the segment had no deleted records.
            data = held.read_bytes() if held.exists() else bytes(trailer.record_count)
            # A wrong length would write beyond the flags, into the next part of the segment.
            if len(data) != trailer.record_count:
                raise NotABackup(f"the delete flags of {path.name} belong to a different file")
            write_all(fd, [data], trailer.flags_at)
    if flags.exists():
        shutil.rmtree(flags)


# The shards


def _restart_shards(folder: Path, shards: int, now: Now, *, as_new: bool, skip: int) -> None:
    """Start and stop each shard. With ``as_new``, all topics get their next epochs.

    Raise `Damaged` or OSError.
    """
    epochs: dict[tuple[str, int], int] = {}
    # ``epochs`` is used for the sources of routers and of copies, ``by_id`` for the topics in
    # checkpoints.
    by_id: dict[int, int] = {}
    # Shard 0 owns the routers, so it is processed last and uses the new epochs of the other shards.
    for number in reversed(range(shards)):
        shard = recover(
            *(folder, number, shards, now),
            wal_file_bytes=FIRST_FILE_BYTES,
            wal_sync_ms=SYNC_MS,
            has_tail=True,
        )
        # The new epochs are above all earlier epochs of this shard.
        first = max(shard.engine.table.last_epoch + 1, now.ts)
        for topic, epoch in zip(shard.engine.by_id.values() if as_new else (), count(first)):
            epochs[topic.name, topic.epoch] = by_id[topic.id] = epoch
        _stop_shard(shard, epochs, skip_seqs(shard.engine.table, skip, now) if skip else [], now)
    # All new epochs are known only after the last shard was processed, and a checkpoint may refer
    # to topics in other shards.
    for number in range(shards if as_new else 0):
        _write_renewed(folder / "checkpoint" / f"{number:02d}", by_id, epochs)


def _stop_shard(shard: RecoveredShard, epochs: Epochs, more: list[Frame], now: Now) -> None:
    """Update the epochs of the routers' sources, and write the checkpoint for a clean shutdown.

    ``more`` contains additional frames to write.
    """
    table, wal = shard.engine.table, shard.wal
    frames = [*shard.unwritten_frames, *more]
    # A router stores the epoch of its source. With the old epoch, it would treat the source as
    # deleted.
    for router in [*table.routers.by_id.values()]:
        if epoch := epochs.get((router.source, router.source_epoch)):
            table.routers.put(replace(router, source_epoch=epoch))
            frames.append(router_set_frame(table.routers.by_id[router.id].packed, now.ts))
    # The frames must be durable before the checkpoint that contains their effects.
    if frames:
        wal.begin(frames)
        wal.wait_synced()
    wal.stop()
    # No frame before the checkpoint is replayed, so the segments' delete flags must be on disk
    # before it is written.
    shard.segments.flags.sync(wal.synced_lsn)
    kept = shard.kept[-1]
    # A checkpoint lists its segments in the order of the log.
    numbers = sorted(kept.segments, key=lambda each: shard.segments.segments[each].header.base)
    known = {"segments": numbers, "boot": shard.boot}
    items = checkpoint_items(table, known, lambda _: wal.next_lsn, lambda: now, is_last=True)
    # With ``clean``, the next startup treats the log as complete up to this LSN.
    checkpoints.write(
        shard.folders.checkpoint,
        wal.next_lsn,
        kept.replay_from,
        (item for item in items if item is not None),
        clean=True,
    )
    shard.segments.maps.close()


def _write_renewed(folder: Path, by_id: Mapping[int, int], epochs: Epochs) -> None:
    """Write the newest checkpoint again with the new epochs, and remove all other checkpoints."""
    newest, *others = checkpoints.intact_checkpoints(folder)
    checkpoints.write(
        folder, newest.lsn, newest.replay_from, _renewed(newest, by_id, epochs), clean=True
    )
    # If startup fell back to an older checkpoint, it would restore the old epochs.
    for other in (newest, *others):
        other.path.unlink(missing_ok=True)
    sync_directory(folder)


def _renewed(
    checkpoint: checkpoints.Checkpoint, by_id: Mapping[int, int], epochs: Epochs
) -> Iterator[dict[str, Any]]:
    """Yield the items of a checkpoint with the new epochs."""
    last_epoch = max([checkpoint.shard["last_epoch"], *by_id.values()])
    yield checkpoint.shard | {"last_epoch": last_epoch}
    # Only topics, which have a config, and keys of copies contain epochs.
    for item in checkpoint.items():
        if "config" in item:
            yield item | {"epoch": by_id[item["id"]]}
        elif "moved" in item:
            yield item | {"moved": [(_renamed(key, epochs), *rows) for key, *rows in item["moved"]]}
        else:
            yield item


def _renamed(source: str, epochs: Epochs) -> str:
    """Return the source of copies (``engine/moved_keys.py``) with its new epoch."""
    # The format is ``what:name:epoch``. A name may contain colons, so the epoch is split off at
    # the end.
    what, _, named = source.partition(":")
    name, _, epoch = named.rpartition(":")
    new = epochs.get((name, int(epoch)))
    return source if new is None else f"{what}:{name}:{new}"
