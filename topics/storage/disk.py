"""Durable files: the system calls that are needed in addition to open and write.

Functions in this module never ignore a failed write or sync. An operation that the file
system does not support is replaced by a slower one, or skipped if it only saves space.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from topics.engine.store import Unreadable
from topics.formats.buffers import Buffer
from topics.formats.disk.versions import HEAD, VERSION_AT, other_version
from topics.storage.folders import shown

IOV_MAX = 1024  # the maximum number of buffers for one pwritev
# For one call to posix_fadvise, the kernel reads at most its read-ahead size. This is the default.
ADVICE_BYTES = 128 * 1024
MARGIN_BYTES = 1 << 20  # free space that must remain after a file is preallocated
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV})
_WRITE_AND_WAIT = 1 | 2 | 4  # SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE, _WAIT_AFTER
DAMAGED = ".damaged"  # suffix of a damaged file that is kept for the operator
_KEEP_SIZE, _PUNCH_HOLE, _ZERO_RANGE = 0x01, 0x02, 0x10  # flags of fallocate(2)
_ZEROS = bytes(1 << 20)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Damaged(Unreadable):
    """Bytes on disk that cannot be trusted, with their path and offset and a reason. Nothing is
    repaired.

    On startup, this error stops the process, except for damage within an extent of a segment. That
    damage is reported to the readers of these records (``decisions/0016``).
    """

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        super().__init__(shown(f"{path}, offset {offset}: {reason}"))
        self.path, self.offset, self.reason = path, offset, reason


def check_version(path: Path) -> None:
    """Raise `Damaged` if the file has a format version that this program does not read."""
    head = b""
    # The caller reads the file later, and handles a read error then.
    with contextlib.suppress(OSError), path.open("rb") as file:
        head = file.read(HEAD.size)
    if reason := other_version(head):
        raise Damaged(path, VERSION_AT, reason)


def boot_id() -> str:
    """Return an identifier of the machine's current boot, or "" if it is unknown.

    After a reboot, unsynced writes from the previous boot may be lost.
    """
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def sync_directory(folder: Path) -> None:
    """Make the names in ``folder`` durable. Raise OSError if the disk fails."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Create or replace a file (0600), durably and in one step. Raise OSError."""
    aside = path.with_name(f"{path.name}.new")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, [data], 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    aside.replace(path)
    sync_directory(path.parent)


def preserve_damaged(path: Path) -> None:
    """Durably add a second name for a damaged file, so that its bytes are kept for the operator.

    An earlier damaged file with the same name is also kept. Raise OSError.
    """
    for number in count():
        name = path.with_name(f"{path.name}{f'.{number}' if number else ''}{DAMAGED}")
        with contextlib.suppress(FileExistsError):
            name.hardlink_to(path)
            break
        if name.samefile(path):
            break
    sync_directory(path.parent)


def make_directory(folder: Path, *, mode: int = 0o700) -> None:
    """Create ``folder`` and its missing parents durably."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=mode)
        sync_directory(path.parent)


class AtomicFile:
    """A file that is written under a temporary name and renamed when it is complete.

        NAME.suffix, written and synced -> renamed to NAME -> folder synced

    ``fd`` is open for writing. The caller must call `publish` or `abandon` at the end. It may also
    call `abandon` after `publish` has failed.
    """

    def __init__(self, path: Path, suffix: str) -> None:
        """Create the temporary file. Raise OSError."""
        self.path, self._named = path, path.with_suffix(suffix)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self.fd = os.open(self._named, flags, 0o600)

    def publish(self) -> None:
        """Make the file durable under its own name. Raise OSError."""
        os.fdatasync(self.fd)
        self._close()
        self._named = self._named.replace(self.path)
        sync_directory(self.path.parent)

    def abandon(self) -> None:
        """Remove the file under its current name."""
        self._close()
        self._named.unlink(missing_ok=True)

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def check_space(folder: Path, size: int) -> None:
    """Raise ENOSPC if the disk has no space for ``size`` bytes, without allocating any.

    An allocation that fails halfway would temporarily use all remaining space, and concurrent
    writes would fail.
    """
    found = os.statvfs(folder)
    # A file system without a block count does not report its free space.
    if found.f_blocks and found.f_bavail * found.f_frsize < size + MARGIN_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def allocate(fd: int, folder: Path, size: int) -> None:
    """Allocate ``size`` bytes for an empty file in ``folder``. Raise OSError."""
    check_space(folder, size)
    os.posix_fallocate(fd, 0, size)


def write_all(fd: int, chunks: Sequence[Buffer], offset: int) -> None:
    """Write all buffers contiguously from ``offset`` on. Raise OSError."""
    for start in range(0, len(chunks), IOV_MAX):
        batch = chunks[start : start + IOV_MAX]
        wanted = sum(map(len, batch))
        written = os.pwritev(fd, batch, offset)
        # A signal or a full disk can cause a short write. On a full disk, the next write fails.
        if written < wanted:
            rest = memoryview(b"".join(batch))[written:]
            while rest:
                written = os.pwrite(fd, rest, offset + wanted - len(rest))
                rest = rest[written:]
        offset += wanted


def zero(fd: int, offset: int, length: int) -> None:
    """Overwrite allocated bytes with zeros and keep them allocated. Raise OSError.

    The zeros are durable after the next sync.
    """
    if _fallocate is None or not length:
        return write_zeros(fd, offset, length)
    if _fallocate(fd, _ZERO_RANGE | _KEEP_SIZE, offset, length) == 0:
        return None
    code = ctypes.get_errno()
    if code not in NOT_SUPPORTED | FULL:  # the call may need a block for the extent list
        raise OSError(code, os.strerror(code))
    return write_zeros(fd, offset, length)


def write_zeros(fd: int, offset: int, length: int) -> None:
    """Write ``length`` zeros from ``offset`` on. Raise OSError."""
    for start in range(0, length, len(_ZEROS)):
        write_all(fd, [_ZEROS[: length - start]], offset + start)


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Release the blocks of these bytes if the file system supports it. They then read as zeros.

    Raise OSError if this fails for another reason.
    """
    if _fallocate is not None and _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, length):
        code = ctypes.get_errno()
        if code not in NOT_SUPPORTED:
            raise OSError(code, os.strerror(code))


def rewrite(fd: int, offset: int, length: int) -> None:
    """Write the bytes of this range again, so that the next sync writes them to the disk.

    This is needed after a failed sync, because the kernel marks pages as clean although they are
    not on the disk. Raise OSError.
    """
    end = offset + length
    while offset < end and (data := os.pread(fd, min(end - offset, len(_ZEROS)), offset)):
        write_all(fd, [data], offset)
        offset += len(data)


def write_back(fd: int, offset: int, length: int) -> None:
    """Write this range back to the disk, so that a later sync has little to do.

    The range is not durable afterwards. Regular syncs would have the same effect, but they also
    commit the journal of the file system. While the journal waits for the data of a large file,
    writes to the log are blocked for 50 ms. Raise OSError.
    """
    if _sync_file_range is None:
        os.fdatasync(fd)
    elif _sync_file_range(fd, offset, length, _WRITE_AND_WAIT):
        # The kernel reports an error once for each descriptor, so the next sync would succeed.
        code = ctypes.get_errno()
        if code not in NOT_SUPPORTED:
            raise OSError(code, os.strerror(code))


def will_need(path: Path, offset: int, length: int) -> None:
    """Advise the kernel to read this range ahead. Do not wait for the data. Raise OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start in range(offset, offset + length, ADVICE_BYTES):
            os.posix_fadvise(
                fd, start, min(ADVICE_BYTES, offset + length - start), os.POSIX_FADV_WILLNEED
            )
    finally:
        os.close(fd)


def _find(name: str, *arguments: Any) -> Callable[[int, int, int, int], int] | None:
    """Return a function of the C library, or None if the library does not have it."""
    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None
    call.argtypes, call.restype = arguments, ctypes.c_int
    return call  # type: ignore[no-any-return]


_INT, _INT64, _UINT = ctypes.c_int, ctypes.c_int64, ctypes.c_uint
_sync_file_range = _find("sync_file_range", _INT, _INT64, _INT64, _UINT)
_fallocate = _find("fallocate", _INT, _INT, _INT64, _INT64)
