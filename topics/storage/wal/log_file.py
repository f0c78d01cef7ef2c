"""Log file: one file of a shard's log. It is allocated and synced before its first frame is
written, and it is mapped for reading.

    NAME.new      a file that is being created; startup removes it
    BASE.wal      a file of the log
    NAME.spare    a preallocated file that later becomes a log file, see `spares`
    log.reserve   a preallocated file for frames that free space

A file keeps its length until it is unlinked. A shorter file was truncated by another program and is
damaged.
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
from topics.storage import file_names
from topics.storage.disk import Damaged, allocate, rewrite, sync_directory, write_zeros, zero
from topics.storage.file_names import own_files
from topics.storage.mapped_file import CANNOT_READ, MappedFile, read_at

CHECK_STEP_BYTES = 256 << 10  # bytes that one call to `WalFile.check_readable` checks
BODY_BYTES = 32 << 10  # a frame body up to this length is covered by the check of earlier frames
LOG, NEW, SPARE, RESERVE = ".wal", ".new", ".spare", ".reserve"


class NoSpace(OSError):
    """The next log file could not be created. No frame was written, and the contents of all files
    are known.
    """


def log_name(base: int) -> str:
    """Return the name of a log file, its first LSN in hex, so that names sort in log order."""
    return f"{base:016x}{LOG}"


def log_paths(folder: Path, shard: int) -> list[Path]:
    """Return the files of a shard's log, oldest first.

    A spare that becomes a log file is renamed without a sync of the folder, because all writes
    would have to wait for that sync. After a power loss the file may still have the old name. Its
    header identifies it: it begins above the oldest log file, but all files that the log no longer
    needs begin below that file.
    """
    paths = {path.name: path for path in own_files(folder, file_names.LOG)}
    oldest = next(iter(paths), None)
    for spare in own_files(folder, file_names.SPARE, file_names.LOG_RESERVE):
        with contextlib.suppress(BadHeader, Damaged), spare.open("rb") as file:
            header = decode_file_header(read_at(spare, file.fileno(), FILE_HEADER_BYTES, 0))
            if oldest is not None and header.shard == shard and log_name(header.base) > oldest:
                paths.setdefault(log_name(header.base), spare)
    return [paths[name] for name in sorted(paths)]


class WalFile:
    """A log file. ``base`` is the LSN of its first frame, and ``size`` is its length with the
    header.
    """

    def __init__(self, folder: Path, header: FileHeader, size: int) -> None:
        self.folder, self.header, self.size = folder, header, size
        self.base, self.seed = header.base, header.seed
        self.path = folder / log_name(header.base)
        # The descriptor; it is -1 until the file is created or opened.
        self._fd = -1
        self._mapped: MappedFile | None = None
        self.data: memoryview | None = None  # the result of `view`, after its first call
        # Range of frame offsets that could be read at the last check. For a frame in this range,
        # bytes of the body above `BODY_BYTES` may be unchecked.
        self.checked_from = self.checked_to = 0

    def offset(self, lsn: int) -> int:
        """Return the offset in the file of the frame at ``lsn``."""
        return FILE_HEADER_BYTES + lsn - self.base

    def holds(self, lsn: int, length: int) -> bool:
        """Return whether a frame of ``length`` bytes at ``lsn`` fits into the file."""
        return FILE_HEADER_BYTES + lsn - self.base + length <= self.size

    def create(self, spare: Path | None = None) -> None:
        """Create and allocate the file, so that a full disk raises an error here and not during a
        write.

        ``spare`` is a file of the same size that the log no longer needs. It becomes this file, so
        its blocks and pages need not be allocated again. Its old contents remain after the new
        header, but the new salt in the header invalidates the checksums of the old frames. See
        `log_paths` for the rename.

        Raise `NoSpace` if the file could not be created and the log is unchanged. Any other OSError
        is raised after the rename: the next startup may or may not find the file, so nothing may be
        written from its base on.
        """
        # The file gets its final name when it is complete, so that a crash leaves no half-created
        # log file.
        pending = spare or self.path.with_suffix(NEW)
        try:
            self._fd = os.open(
                pending,
                os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if spare is None else 0),
                0o600,
            )
            if spare is None:
                allocate(self._fd, self.folder, self.size)
            os.pwrite(self._fd, encode_file_header(self.header), 0)
            os.fdatasync(self._fd)
        except OSError as error:
            self.close()
            pending.unlink(missing_ok=True)
            raise NoSpace(
                error.errno, f"cannot create a log file: {error.strerror}", str(self.path)
            ) from error
        pending.replace(self.path)
        # A new name must be durable before frames are written. For a spare, `log_paths` finds the
        # old name.
        if spare is None or self._is_first():
            sync_directory(self.folder)

    def _is_first(self) -> bool:
        """Return whether the log has no older file.

        If there is no older file, `log_paths` cannot recognize a spare that lost its new name.
        """
        return all(path == self.path for path in own_files(self.folder, file_names.LOG))

    @classmethod
    def open(cls, path: Path, shard: int, *, writable: bool = True) -> WalFile:
        """Open an existing file. Raise `Damaged` if its header does not match its name or shard."""
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
        # A log file is never shorter than its header specifies (`decisions/0016`).
        size = os.fstat(fd).st_size
        if size < header.size:
            os.close(fd)
            raise Damaged(
                path, size, f"the file is truncated: it was created with {header.size} bytes"
            )
        file = cls(path.parent, header, size)
        file.path, file._fd = path, fd
        return file

    def take_name(self) -> None:
        """Rename a file that lost its name (see `log_paths`) durably. Raise OSError."""
        named = self.folder / log_name(self.base)
        if self.path != named:
            self.path = self.path.replace(named)
            sync_directory(self.folder)

    @classmethod
    def of_image(cls, path: Path, header: FileHeader, data: bytearray) -> WalFile:
        """Return a read-only file with ``data`` as its contents."""
        file = cls(path.parent, header, len(data))
        file.path, file._mapped = path, MappedFile.of_bytes(path, memoryview(data))
        return file

    @property
    def fd(self) -> int:
        """The descriptor, opened for reading, and for writing unless ``writable`` was False."""
        return self._fd

    def mapped(self) -> MappedFile:
        """Return the map of the complete file. Later writes are visible in it."""
        if self._mapped is None:
            self._mapped = MappedFile(self.path, self._fd, self.size)
        return self._mapped

    def view(self) -> memoryview:
        """Return the mapped bytes. Only bytes that `check_readable` has checked may be accessed."""
        if self.data is None:
            self.data = self.mapped().data
        return self.data

    def read_all(self, heartbeat: Callable[[], None]) -> None:
        """Read the complete file into memory before a scan, which would otherwise cause many page
        faults.

        ``heartbeat`` is called between two steps. Raise `Damaged` if a part cannot be read.
        """
        at = self.mapped().first_unreadable(0, self.size, heartbeat)
        if at is not None:
            raise Damaged(self.path, at, CANNOT_READ)

    def check_readable(self, offset: int) -> None:
        """Raise `Damaged` if the frame at ``offset`` cannot be read.

        The call also checks the frames that follow, up to `CHECK_STEP_BYTES`.
        """
        mapped, stop = self.mapped(), min(offset + CHECK_STEP_BYTES, self.size)
        start = offset + FRAME_HEADER_BYTES
        # The usual case: the pages of this frame and of the following ones can be read.
        if mapped.can_read(offset, stop):
            is_last = stop == self.size
            self.checked_from, self.checked_to = offset, stop if is_last else stop - BODY_BYTES
        else:
            self.reset_checked()
            mapped.check_readable(offset, start)
        end = start + header_at(self.view(), offset).body_len
        if end > stop or not self.checked_to:
            mapped.check_readable(offset, min(end, self.size))

    def unmap(self) -> None:
        """Release the map, so that its pages no longer count as memory of the process.

        A reader that still holds a view of the map keeps it alive. The next read maps the file
        again.
        """
        self._mapped = self.data = None
        self.reset_checked()

    def reset_checked(self) -> None:
        """Discard the checked range, because pages may have been evicted from memory since the
        check.
        """
        self.checked_from = self.checked_to = 0

    def cut(self, lsn: int) -> None:
        """Overwrite everything from ``lsn`` on with zeros.

        After the next sync, no frame of this part is found again. The file is not truncated
        temporarily: after a crash, a shorter file would count as damaged.
        """
        offset = self.offset(lsn)
        zero(self._fd, offset, self.size - offset)

    def blank(self, start: int, end: int) -> None:
        """Write zeros over the frames between two LSNs."""
        write_zeros(self._fd, self.offset(start), end - start)

    def rewrite(self, start: int, end: int) -> None:
        """Write the frames between two LSNs again, so that the next sync writes them to the disk.

        The kernel may wrongly regard their pages as written (`disk.rewrite`).
        """
        rewrite(self._fd, self.offset(start), end - start)

    @property
    def is_preserved(self) -> bool:
        """Whether the file has a second name that keeps its bytes (`disk.preserve_damaged`)."""
        with contextlib.suppress(FileNotFoundError):
            return self.path.stat().st_nlink > 1
        return False

    def sync(self) -> None:
        """Sync the contents with fdatasync."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file. A reader that still holds a view of the map keeps the map alive."""
        self.unmap()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
