"""Checkpoints: snapshots of a shard's state. Startup needs only the newest one and the log that
follows it.

Each checkpoint is one file (bytes: ``formats/disk/checkpoint.py``). It is written under a temporary
name in chunks (`ChunkBuilder`), the header last, then synced and renamed to NUMBER.ckpt. It is read
in two passes. The first pass checks every byte, the second pass returns the items. Neither pass
holds more than one chunk in memory.

The newest two intact checkpoints are kept, and startup uses the newest one. The file
``next.reserve`` has no contents. It reserves space for the next checkpoint, which is written into
its blocks if the disk is full (``decisions/0015``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from topics.formats.disk.checkpoint import (
    CHUNK_HEADER_BYTES,
    HEADER_BYTES,
    CheckpointHeader,
    ChunkBuilder,
    Item,
    UnknownVersion,
    check_chunk,
    chunk_length,
    decode_header,
    is_sealed,
    items_of_chunk,
)
from topics.formats.disk.versions import VERSION_AT
from topics.storage.disk import (
    FULL,
    Damaged,
    check_space,
    make_directory,
    sync_directory,
    write_all,
)
from topics.storage.file_names import CHECKPOINT, own_files
from topics.storage.mapped_file import FILE_ERRORS

CHECKPOINTS_KEPT = 2
SUFFIX, ASIDE = ".ckpt", ".tmp"
RESERVE_NAME = "next.reserve"
RESERVE_MIN_BYTES = 1 << 20
COPY_BYTES = 1 << 20
Heartbeat = Callable[[], None]


class Checkpoint(NamedTuple):
    """The header and the shard item of one checkpoint file.

    ``lsn`` is the LSN up to which the log was synced, and ``replay_from`` is the LSN of the first
    frame to replay. ``clean`` means that a clean shutdown wrote the checkpoint, after the last
    frame.
    """

    path: Path
    lsn: int
    replay_from: int
    clean: bool
    shard: dict[str, Any]

    @property
    def segments(self) -> list[int]:
        """Numbers of the segments that belong to the shard's data."""
        return self.shard["segments"]  # type: ignore[no-any-return]

    @property
    def boot(self) -> str:
        """Identifier of the machine's boot during which the checkpoint was written."""
        return self.shard["boot"]  # type: ignore[no-any-return]

    def items(self) -> Iterator[Item]:
        """Return an iterator over all items except the item of the shard. It reads the file in
        chunks.

        It raises `Damaged` if the file has changed since it was checked.
        """
        items = _items(self.path)
        next(items)
        return items

    def topics(self) -> Iterator[Item]:
        """Return an iterator over the items that are topics."""
        return (item for item in self.items() if "config" in item)


class CheckpointNeeds(NamedTuple):
    """The data that an existing checkpoint needs: the log starting at ``replay_from``, and
    segments.
    """

    replay_from: int
    segments: frozenset[int]


# Writing


class CheckpointWriter:
    """Writes a checkpoint under a temporary name: call `write` for each chunk, then `finish` or
    `abandon`.

    If the disk is full, the checkpoint moves into the reserved space.
    """

    def __init__(self, folder: Path) -> None:
        """Create the temporary file. Raise OSError."""
        make_directory(folder)
        self._folder, self._earlier = folder, _paths(folder)
        # The numbers increase, so the newest checkpoint is the one with the highest number.
        number = int(self._earlier[0].stem, 16) + 1 if self._earlier else 1
        self.path = folder / f"{number:016x}{SUFFIX}"
        self._temporary_path = self.path.with_name(self.path.name + ASIDE)
        # The file descriptor, and the end of the written part. The header is at the beginning of
        # the file, but it is written last, so that an unfinished file is never intact.
        self._reserve, self._fd, self._end = folder / RESERVE_NAME, -1, HEADER_BYTES
        self._has_reserve = False  # true if the reserve became the temporary file
        try:
            self._fd = _open(self._temporary_path, os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            self._move_into_reserve(error)

    def write(self, chunk: bytes) -> None:
        """Write the next chunk. If this raises OSError, the caller must call `abandon`."""
        self._write(chunk, self._end)
        self._end += len(chunk)

    def finish(self, header: bytes, pinned: Path | None = None) -> None:
        """Make the checkpoint durable and remove older checkpoints.

        The newest intact older checkpoint is kept, and so is the checkpoint at the path ``pinned``.
        Raise OSError if the checkpoint could not be made durable. In that case, all earlier
        checkpoints remain.
        """
        try:
            # Sync the complete file before the rename. A crash before the rename leaves the
            # earlier checkpoints, and a crash after it leaves the complete new one.
            self._write(header, 0)
            self._sync()
            self._temporary_path.replace(self.path)
            sync_directory(self._folder)
        except OSError:
            self.abandon()
            with contextlib.suppress(OSError):
                # The rename may have succeeded without being durable.
                self.path.unlink(missing_ok=True)
            raise
        self._close()
        # The new checkpoint is durable. Failures from here on only waste space.
        with contextlib.suppress(OSError):  # the next checkpoint removes the remaining files
            # Keep an intact checkpoint, because startup would need it if the new one is damaged.
            kept = next((old for old in self._earlier if is_intact(old)), None)
            for old in self._earlier:
                if old not in (kept, pinned):
                    old.unlink()
        # Adapt the size of the reserve, because the next checkpoint may be longer than the last.
        with contextlib.suppress(OSError):
            reserve_space(self._folder, self._end)

    def abandon(self) -> None:
        """Remove the temporary file, or rename it back to the reserve.

        A full disk needs the space, and the next checkpoint needs the reserve.
        """
        self._close()
        with contextlib.suppress(OSError):
            # If the temporary file is the reserve, rename it back. Otherwise the next checkpoint
            # on the full disk would have no space.
            if self._has_reserve and self._temporary_path.exists():
                self._temporary_path.replace(self._reserve)
            else:
                self._temporary_path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes, offset: int) -> None:
        try:
            write_all(self._fd, [data], offset)
        except OSError as error:
            # Continue in the reserve and write the same bytes again. A second failure is final.
            self._move_into_reserve(error)
            write_all(self._fd, [data], offset)

    def _sync(self) -> None:
        # The file may be longer than the checkpoint if it was the reserve.
        os.ftruncate(self._fd, self._end)
        try:
            os.fdatasync(self._fd)
        # Some file systems allocate at the sync, so a full disk may be detected only here.
        except OSError as error:
            self._move_into_reserve(error)
            os.ftruncate(self._fd, self._end)
            # After a failed sync, the copied bytes may differ from the bytes that were written.
            if not is_intact(self._temporary_path):
                raise
            os.fdatasync(self._fd)

    def _move_into_reserve(self, error: OSError) -> None:
        """Continue in the blocks of the reserve after ``error``, and free the blocks used before.

        Raise ``error`` again if the disk is not full or the reserve is missing.
        """
        # The reserve helps only if the disk is full.
        if error.errno not in FULL or not self._reserve.exists():
            raise error
        fd = _open(self._reserve, 0)
        try:
            # Copy the bytes that were already written. The blocks of the old file are freed when
            # it is replaced.
            for offset in range(0, self._end if self._fd >= 0 else 0, COPY_BYTES):
                length = min(COPY_BYTES, self._end - offset)
                write_all(fd, [os.pread(self._fd, length, offset)], offset)
            self._reserve.replace(self._temporary_path)
            self._has_reserve = True
        except BaseException:
            os.close(fd)
            raise
        # Close the old file after the rename, which has removed its name.
        self._close()
        self._fd = fd


def write(
    folder: Path, lsn: int, replay_from: int, items: Iterable[Item], *, clean: bool = False
) -> None:
    """Write a checkpoint of these items. The first item must be the item of the shard.

    Raise OSError if the checkpoint could not be made durable.
    """
    writer, builder = CheckpointWriter(folder), ChunkBuilder()
    try:
        for item in items:
            chunk = builder.add(item)
            if chunk is not None:
                writer.write(chunk)
        writer.write(builder.take() or b"")
    except BaseException:
        writer.abandon()
        raise
    writer.finish(builder.header(lsn, replay_from, clean=clean))


def _open(path: Path, flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)


def reserve_space(folder: Path, size: int = 0) -> None:
    """Reserve space for the next checkpoint. ``size`` is the length of the last checkpoint in
    bytes.

    Raise OSError if the disk has no space for it.
    """
    # Reserve twice the length, because the state may grow before the next checkpoint.
    wanted = max(RESERVE_MIN_BYTES, 2 * size)
    fd = os.open(folder / RESERVE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        held = os.fstat(fd).st_size
        if held < wanted:
            check_space(folder, wanted - held)
            os.posix_fallocate(fd, 0, wanted)
    finally:
        os.close(fd)


# Reading


def _no_heartbeat() -> None:
    pass


def read(path: Path, heartbeat: Heartbeat = _no_heartbeat) -> Checkpoint | None:
    """Return the checkpoint, or None if the file is not intact.

    Raise `Damaged` if its version is unknown, and OSError if it cannot be read. ``heartbeat`` is
    called after each chunk.
    """
    # Two passes are needed, because no item may be used before all bytes have been checked.
    if not is_intact(path, heartbeat):
        return None
    with path.open("rb") as file:
        header = decode_header(file.read(HEADER_BYTES))
    shard = next(_items(path), None)
    if header is None or shard is None:
        return None
    return Checkpoint(path, header.lsn, header.replay_from, header.clean, shard)


def is_intact(path: Path, heartbeat: Heartbeat = _no_heartbeat) -> bool:
    """Return whether every byte of the file is intact.

    Raise `Damaged` if its version is unknown. ``heartbeat`` is called after each chunk.
    """
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
        try:
            header = decode_header(head)
        except UnknownVersion as error:
            raise Damaged(path, VERSION_AT, str(error)) from error
        if header is None or os.fstat(file.fileno()).st_size != HEADER_BYTES + header.body_len:
            return False
        # The checksum of each chunk covers the chunks before it, so the last one covers the file.
        crc: int | None = 0
        for _, found in _chunks(file, header):
            crc = found
            heartbeat()
        return crc is not None and is_sealed(header, head, crc)


def _items(path: Path) -> Iterator[Item]:
    """Yield the items of a checked file, beginning with the item of the shard."""
    with path.open("rb") as file:
        header = decode_header(file.read(HEADER_BYTES))
        assert header is not None, "the file was checked"
        for body, crc in _chunks(file, header):
            if crc is None:
                raise Damaged(path, file.tell(), "the checkpoint changed while it was read")
            yield from items_of_chunk(body)


def _chunks(file: BinaryIO, header: CheckpointHeader) -> Iterator[tuple[bytes, int | None]]:
    """Yield the body and the checksum of each chunk.

    The checksum is None for a damaged chunk, after which the iterator stops.
    """
    crc: int | None = 0
    left = header.body_len
    while left and crc is not None:
        head = file.read(CHUNK_HEADER_BYTES)
        # A length that exceeds the file indicates damage and must not be used for a read.
        if len(head) < CHUNK_HEADER_BYTES or chunk_length(head) > left - CHUNK_HEADER_BYTES:
            yield b"", None
            return
        body = file.read(chunk_length(head))
        left -= CHUNK_HEADER_BYTES + len(body)
        crc = check_chunk(head, body, crc)
        yield body, crc


def intact_checkpoints(folder: Path, heartbeat: Heartbeat = _no_heartbeat) -> list[Checkpoint]:
    """Return all intact checkpoints, newest first. Raise `Damaged` for an unknown version."""
    found = [_read_if_possible(path, heartbeat) for path in _paths(folder)]
    return [checkpoint for checkpoint in found if checkpoint is not None]


def damaged_checkpoints(folder: Path, intact: Iterable[Checkpoint]) -> list[Path]:
    """Return all checkpoints that are not in ``intact``.

    They are damaged, because a checkpoint gets its name when it is complete.
    """
    paths = {each.path for each in intact}
    return [path for path in own_files(folder, CHECKPOINT) if path not in paths]


def _read_if_possible(path: Path, heartbeat: Heartbeat) -> Checkpoint | None:
    """Return the checkpoint, or None if the file is not intact or the disk cannot read it."""
    try:
        return read(path, heartbeat)
    # A disk that cannot read a file makes this checkpoint unusable. Other errors are temporary,
    # and startup must not skip an intact checkpoint because of them.
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        return None


def _paths(folder: Path) -> list[Path]:
    return own_files(folder, CHECKPOINT)[::-1]
