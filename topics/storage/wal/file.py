"""One file of the log: allocated whole and synced before its first frame, mapped for reading.

    NAME.new      being made; a start removes it
    BASE.wal      a file of the log
    NAME.spare    waits to become one, see `spares`
    log.reserve   the same, for frames that free room

A file keeps its length for its whole life: a shorter one was cut at rest, and is damage.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from topics.formats.disk.frames import FRAME_HEADER_BYTES, header_at
from topics.formats.disk.wal import (
    FILE_HEADER_BYTES,
    BadHeader,
    FileHeader,
    decode_file_header,
    encode_file_header,
)
from topics.storage import names
from topics.storage.disk import Damaged, allocate, sync_directory, write_again, write_zeros, zero
from topics.storage.mapped_file import CANNOT_READ, MappedFile, read_at
from topics.storage.names import own_files

ASKED_BYTES = 256 << 10  # asked for at once
BODY_BYTES = 32 << 10
LOG, NEW, SPARE, RESERVE = ".wal", ".new", ".spare", ".reserve"


class NoRoom(OSError):
    """The next log file could not be made; nothing was written and nothing is in doubt."""


def log_name(base: int) -> str:
    """A file is named by the LSN of its first frame, so that names sort as the log runs."""
    return f"{base:016x}{LOG}"


def log_paths(folder: Path, shard: int) -> list[Path]:
    """The files of a shard's log, oldest first.

    A spare that becomes a file of the log gets its name without waiting for the disk, which would
    keep all writes waiting. After a power loss it may still have the old name. Its header then says
    what it is: files that the log no longer needs begin before the oldest one.
    """
    paths = {path.name: path for path in own_files(folder, names.LOG)}
    oldest = next(iter(paths), None)
    for spare in own_files(folder, names.SPARE, names.LOG_RESERVE):
        with contextlib.suppress(BadHeader, Damaged), spare.open("rb") as file:
            header = decode_file_header(read_at(spare, file.fileno(), FILE_HEADER_BYTES, 0))
            if oldest is not None and header.shard == shard and log_name(header.base) > oldest:
                paths.setdefault(log_name(header.base), spare)
    return [paths[name] for name in sorted(paths)]


class WalFile:
    """A log file. ``base``: LSN of its first frame; ``size``: its bytes, header included."""

    def __init__(self, folder: Path, header: FileHeader, size: int) -> None:
        self.folder, self.header, self.size = folder, header, size
        self.base, self.seed = header.base, header.seed
        self.path = folder / log_name(header.base)
        self._fd = -1
        self._mapped: MappedFile | None = None
        self.data: memoryview | None = None  # what `view` gives, once it is mapped
        # Offsets of frames that could be read a moment ago, but for what of a body is above
        # `BODY_BYTES`.
        self.asked_from = self.asked_to = 0

    def offset(self, lsn: int) -> int:
        """Offset in the file of the frame at ``lsn``."""
        return FILE_HEADER_BYTES + lsn - self.base

    def holds(self, lsn: int, length: int) -> bool:
        """Whether a frame of this length has room at ``lsn``."""
        return FILE_HEADER_BYTES + lsn - self.base + length <= self.size

    def create(self, spare: Path | None = None) -> None:
        """Allocate the whole file, so that a full disk shows here and not in the middle of a write.

        ``spare``: a file of the same size that nobody needs any more. It becomes this one: its
        blocks and its pages need not be found again. What it holds stays behind the new header, and
        the new salt keeps it from passing for frames. See `log_paths` for its name.

        Raises `NoRoom` while the log is as it was. Any other OSError came when the file had its
        name: whether a next start finds it is in doubt, so nothing may be written from its base on.
        """
        aside = spare or self.path.with_suffix(NEW)
        try:
            self._fd = os.open(
                aside,
                os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if spare is None else 0),
                0o600,
            )
            if spare is None:
                allocate(self._fd, self.folder, self.size)
            os.pwrite(self._fd, encode_file_header(self.header), 0)
            os.fdatasync(self._fd)
        except OSError as error:
            self.close()
            aside.unlink(missing_ok=True)
            raise NoRoom(
                error.errno, f"no new log file: {error.strerror}", str(self.path)
            ) from error
        aside.replace(self.path)
        if spare is None or self._is_first():
            sync_directory(self.folder)

    def _is_first(self) -> bool:
        """Whether no older file of the log is there, by which `log_paths` knows a spare that has
        lost its name.
        """
        return all(path == self.path for path in own_files(self.folder, names.LOG))

    @classmethod
    def open(cls, path: Path, shard: int, *, writable: bool = True) -> WalFile:
        """An existing file. Raises `Damaged` when it is not what its name says."""
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            header = decode_file_header(read_at(path, fd, FILE_HEADER_BYTES, 0))
            named = log_name(header.base) == path.name or path.suffix in (SPARE, RESERVE)
            if header.shard != shard or not named:
                raise BadHeader(f"belongs to shard {header.shard}, LSN {header.base:#x}")
        except BadHeader as error:
            os.close(fd)
            raise Damaged(path, 0, str(error)) from error
        except BaseException:
            os.close(fd)
            raise
        size = os.fstat(fd).st_size
        if size < header.size:
            os.close(fd)
            raise Damaged(path, size, f"the file is cut: it was made with {header.size} bytes")
        file = cls(path.parent, header, size)
        file.path, file._fd = path, fd
        return file

    def take_name(self) -> None:
        """Give a file that lost its name (see `log_paths`) its own, durably. Raises OSError."""
        named = self.folder / log_name(self.base)
        if self.path != named:
            self.path = self.path.replace(named)
            sync_directory(self.folder)

    @classmethod
    def of_image(cls, path: Path, header: FileHeader, data: bytearray) -> WalFile:
        """A file as it would be with these bytes, which is only read."""
        file = cls(path.parent, header, len(data))
        file.path, file._mapped = path, MappedFile.of_bytes(path, memoryview(data))
        return file

    @property
    def fd(self) -> int:
        """Open for reading, and for writing unless it was opened without."""
        return self._fd

    def mapped(self) -> MappedFile:
        """The whole file; what is written later shows in it."""
        if self._mapped is None:
            self._mapped = MappedFile(self.path, self._fd, self.size)
        return self._mapped

    def view(self) -> memoryview:
        """The whole file, read in place: what `ask` has let pass."""
        if self.data is None:
            self.data = self.mapped().data
        return self.data

    def read_all(self, beat: Callable[[], None]) -> None:
        """Read the whole file into memory, for a scan: it would take a fault for every few pages.

        ``beat``: called between two steps. Raises `Damaged` where it cannot be read.
        """
        at = self.mapped().first_unreadable(0, self.size, beat)
        if at is not None:
            raise Damaged(self.path, at, CANNOT_READ)

    def ask(self, offset: int) -> None:
        """Raises `Damaged` unless the frame at ``offset`` can be read. Those that follow are asked
        for, too.
        """
        mapped, stop = self.mapped(), min(offset + ASKED_BYTES, self.size)
        start = offset + FRAME_HEADER_BYTES
        if mapped.can_read(offset, stop):
            is_last = stop == self.size
            self.asked_from, self.asked_to = offset, stop if is_last else stop - BODY_BYTES
        else:
            self.forget_asked()
            mapped.ask(offset, start)
        end = start + header_at(self.view(), offset).body_len
        if end > stop or not self.asked_to:
            mapped.ask(offset, min(end, self.size))

    def unmap(self) -> None:
        """Release the map, so that its pages no longer count as memory of the process.

        A reader that still holds a view of the map keeps it alive. The next read maps the file
        again.
        """
        self._mapped = self.data = None
        self.forget_asked()

    def forget_asked(self) -> None:
        """Time has gone: pages may have left memory."""
        self.asked_from = self.asked_to = 0

    def cut(self, lsn: int) -> None:
        """Turn everything from ``lsn`` on into zeros.

        Once that is synced, no frame of the cut part is ever found again. The file keeps its length
        all the time: after a crash, a shorter one would look like one that was cut at rest.
        """
        offset = self.offset(lsn)
        zero(self._fd, offset, self.size - offset)

    def blank(self, start: int, end: int) -> None:
        """Write zeros over the frames between two LSNs."""
        write_zeros(self._fd, self.offset(start), end - start)

    def write_again(self, start: int, end: int) -> None:
        """Let the next sync bring the frames between two LSNs to the disk, even where the kernel
        takes their pages for written.
        """
        write_again(self._fd, self.offset(start), end - start)

    @property
    def is_kept(self) -> bool:
        """Whether it has a second name, under which its bytes must stay: see `disk.keep_aside`."""
        with contextlib.suppress(FileNotFoundError):
            return self.path.stat().st_nlink > 1
        return False

    def sync(self) -> None:
        """fdatasync."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file. What a reader still holds keeps its map."""
        self.unmap()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
