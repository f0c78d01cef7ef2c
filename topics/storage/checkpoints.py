"""Checkpoints: what a shard knows at one moment, so that its log need not be kept for ever.

One file each (bytes: ``formats/disk/checkpoint.py``). It is written aside piece by piece, its
header last, synced and renamed to NUMBER.ckpt. It is read in two passes, of which neither holds
more than a piece: the first one checks every byte, the second one gives the items.

The newest two are kept, and the newest that is whole is used. The file ``next.reserve`` has no
content: it holds room for the next checkpoint, which is written into those blocks on a full disk
(``decisions/0015``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from topics.formats.disk.checkpoint import (
    HEADER_BYTES,
    PIECE_HEADER_BYTES,
    Header,
    Item,
    PieceBuilder,
    UnknownVersion,
    check_piece,
    decode_header,
    is_sealed,
    items_of_piece,
    piece_length,
)
from topics.formats.disk.versions import VERSION_AT
from topics.storage.disk import FULL, Damaged, check_room, make_directory, sync_directory, write_all
from topics.storage.mapped_file import FILE_ERRORS
from topics.storage.names import CHECKPOINT, own_files

KEEP = 2
SUFFIX, ASIDE = ".ckpt", ".tmp"
RESERVE_NAME = "next.reserve"
RESERVE_MIN_BYTES = 1 << 20
COPY_BYTES = 1 << 20
Beat = Callable[[], None]


class Checkpoint(NamedTuple):
    """What one file says.

    ``lsn``: the log was synced up to here. ``replay_from``: LSN of the first frame to replay.
    """

    path: Path
    lsn: int
    replay_from: int
    clean: bool
    shard: dict[str, Any]

    @property
    def segments(self) -> list[int]:
        """Numbers of the segments that count."""
        return self.shard["segments"]  # type: ignore[no-any-return]

    @property
    def boot(self) -> str:
        """The run of the machine in which it was written."""
        return self.shard["boot"]  # type: ignore[no-any-return]

    def items(self) -> Iterator[Item]:
        """All items but the shard's, read piece by piece. Raises `Damaged` when the file is not as
        it was when it was checked.
        """
        items = _items(self.path)
        next(items)
        return items

    def topics(self) -> Iterator[Item]:
        """The items that are topics."""
        return (item for item in self.items() if "config" in item)


class Kept(NamedTuple):
    """What a checkpoint on the disk needs: the log from ``replay_from`` on, and its segments."""

    replay_from: int
    segments: frozenset[int]


# Writing


class CheckpointWriter:
    """A checkpoint that is written aside: `write` each piece, then `finish` or `abandon`.

    On a full disk it moves into the room that is kept for it.
    """

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        make_directory(folder)
        self._folder, self._earlier = folder, _paths(folder)
        number = int(self._earlier[0].stem, 16) + 1 if self._earlier else 1
        self.path = folder / f"{number:016x}{SUFFIX}"
        self._aside = self.path.with_name(self.path.name + ASIDE)
        self._reserve, self._fd, self._end = folder / RESERVE_NAME, -1, HEADER_BYTES
        self._has_reserve = False  # the file aside was the reserve
        try:
            self._fd = _open(self._aside, os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            self._move_into_reserve(error)

    def write(self, piece: bytes) -> None:
        """Write the next piece. Raises OSError: then `abandon`."""
        self._write(piece, self._end)
        self._end += len(piece)

    def finish(self, header: bytes, pinned: Path | None = None) -> None:
        """Make the checkpoint durable, then remove all before it but the newest that is whole, and
        the one that is ``pinned``.

        Raises OSError: then there is no new checkpoint.
        """
        try:
            self._write(header, 0)
            self._sync()
            self._aside.replace(self.path)
            sync_directory(self._folder)
        except OSError:
            self.abandon()
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)  # its name may be there and not be durable
            raise
        self._close()
        with contextlib.suppress(OSError):  # the next one tries again
            # A damaged one does not count: a start would fall back on the one before it.
            kept = next((old for old in self._earlier if is_whole(old)), None)
            for old in self._earlier:
                if old not in (kept, pinned):
                    old.unlink()
        with contextlib.suppress(OSError):
            keep_room(self._folder, self._end)

    def abandon(self) -> None:
        """Leave everything as it was: a full disk needs the room, and the next checkpoint its
        reserve.
        """
        self._close()
        with contextlib.suppress(OSError):
            if self._has_reserve and self._aside.exists():
                self._aside.replace(self._reserve)
            else:
                self._aside.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes, offset: int) -> None:
        try:
            write_all(self._fd, [data], offset)
        except OSError as error:
            self._move_into_reserve(error)
            write_all(self._fd, [data], offset)

    def _sync(self) -> None:
        os.ftruncate(self._fd, self._end)
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._move_into_reserve(error)
            os.ftruncate(self._fd, self._end)
            # After a sync that failed, what was copied may not be what was written.
            if not is_whole(self._aside):
                raise
            os.fdatasync(self._fd)

    def _move_into_reserve(self, error: OSError) -> None:
        """After ``error`` go on in the blocks of the reserve; those so far are free again.

        Raises ``error`` when that does not help.
        """
        if error.errno not in FULL or not self._reserve.exists():
            raise error
        fd = _open(self._reserve, 0)
        try:
            for offset in range(0, self._end if self._fd >= 0 else 0, COPY_BYTES):
                length = min(COPY_BYTES, self._end - offset)
                write_all(fd, [os.pread(self._fd, length, offset)], offset)
            self._reserve.replace(self._aside)
            self._has_reserve = True
        except BaseException:
            os.close(fd)
            raise
        self._close()
        self._fd = fd


def write(
    folder: Path, lsn: int, replay_from: int, items: Iterable[Item], *, clean: bool = False
) -> None:
    """Make a checkpoint of these items, the shard's first. Raises OSError: then there is no new
    one.
    """
    writer, builder = CheckpointWriter(folder), PieceBuilder()
    try:
        for item in items:
            piece = builder.add(item)
            if piece is not None:
                writer.write(piece)
        writer.write(builder.take() or b"")
    except BaseException:
        writer.abandon()
        raise
    writer.finish(builder.header(lsn, replay_from, clean=clean))


def _open(path: Path, flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)


def keep_room(folder: Path, size: int = 0) -> None:
    """Hold room for the next checkpoint; ``size``: bytes of the last one.

    Raises OSError where there is no room.
    """
    wanted = max(RESERVE_MIN_BYTES, 2 * size)
    fd = os.open(folder / RESERVE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        held = os.fstat(fd).st_size
        if held < wanted:
            check_room(folder, wanted - held)
            os.posix_fallocate(fd, 0, wanted)
    finally:
        os.close(fd)


# Reading


def _nothing() -> None:
    pass


def read(path: Path, beat: Beat = _nothing) -> Checkpoint | None:
    """The checkpoint, None when the file is not a whole one. Raises `Damaged` when its version is
    unknown.
    """
    if not is_whole(path, beat):
        return None
    with path.open("rb") as file:
        header = decode_header(file.read(HEADER_BYTES))
    shard = next(_items(path), None)
    if header is None or shard is None:
        return None
    return Checkpoint(path, header.lsn, header.replay_from, header.clean, shard)


def is_whole(path: Path, beat: Beat = _nothing) -> bool:
    """Whether every byte is as it was written. Raises `Damaged` when its version is unknown.
    ``beat``: called between two steps.
    """
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
        try:
            header = decode_header(head)
        except UnknownVersion as error:
            raise Damaged(path, VERSION_AT, str(error)) from error
        if header is None or os.fstat(file.fileno()).st_size != HEADER_BYTES + header.body_len:
            return False
        crc: int | None = 0
        for _, found in _pieces(file, header):
            crc = found
            beat()
        return crc is not None and is_sealed(header, head, crc)


def _items(path: Path) -> Iterator[Item]:
    """The items of a file that was checked, the shard's first."""
    with path.open("rb") as file:
        header = decode_header(file.read(HEADER_BYTES))
        assert header is not None, "the file was checked"
        for body, crc in _pieces(file, header):
            if crc is None:
                raise Damaged(path, file.tell(), "the checkpoint changed while it was read")
            yield from items_of_piece(body)


def _pieces(file: BinaryIO, header: Header) -> Iterator[tuple[bytes, int | None]]:
    """The body of each piece, and its checksum; None for one that is damaged, the last one."""
    crc: int | None = 0
    left = header.body_len
    while left and crc is not None:
        head = file.read(PIECE_HEADER_BYTES)
        if len(head) < PIECE_HEADER_BYTES or piece_length(head) > left - PIECE_HEADER_BYTES:
            yield b"", None
            return
        body = file.read(piece_length(head))
        left -= PIECE_HEADER_BYTES + len(body)
        crc = check_piece(head, body, crc)
        yield body, crc


def whole(folder: Path, beat: Beat = _nothing) -> list[Checkpoint]:
    """All whole checkpoints, the newest first. Raises `Damaged` at an unknown version."""
    found = [_read_if_possible(path, beat) for path in _paths(folder)]
    return [checkpoint for checkpoint in found if checkpoint is not None]


def _read_if_possible(path: Path, beat: Beat) -> Checkpoint | None:
    """The checkpoint, None when the file is not whole or the disk cannot read it."""
    try:
        return read(path, beat)
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        return None


def _paths(folder: Path) -> list[Path]:
    return own_files(folder, CHECKPOINT)[::-1]
