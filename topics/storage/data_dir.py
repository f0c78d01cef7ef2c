"""Data directory: its owner (``LOCK``) and its permanent settings (``meta``).

A server locks the directory and ``LOCK`` with flock(2). ``LOCK`` contains the pid of the holder.
Every forked process inherits the locked descriptors on purpose: while any of these processes runs,
no other server can write to the directory. On file systems that cannot lock directories (NFS),
``meta`` is locked instead.

A server opens the directory and the folders of all shards before it forks, and accesses its files
only through these descriptors (`topics.storage.folders`). If the directory at the path is replaced
later, the server does not change the new one: `DataDirectory.check` detects the replacement, and
the shards stop writing.

``meta``, integers little-endian:

    offset  size  field       meaning
    0       8     magic       "topicsdd"
    8       4     version     version of all files in the directory
    12      4     shards      number of shards; a hash assigns topics to them; never changes
    16      4     promotions  number of promotions of standbys of this data (``promote.py``)
    20      4     crc32c      of bytes 0..20
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from topics.formats.disk import versions
from topics.storage.disk import make_directory, replace_file, sync_directory
from topics.storage.folders import (
    PARTS,
    DirectoryLost,
    Folders,
    Identity,
    held_path,
    identity,
    identity_at,
)

META = struct.Struct("<8sIIII")
assert META.size == 24

_CRC_AT = 20
FOLDERS = frozenset(PARTS)  # the folders next to meta
# Errors that flock(2) returns on a file system that cannot lock this kind of file.
_NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
MOVED = "the data directory, or a folder in it, was moved, replaced or removed"
UNLOCKED = "the file LOCK of the data directory was replaced or removed"
# The only names, besides hidden ones, that a directory without meta may contain.
_OWN_NAMES = frozenset({"LOCK", "meta", "meta.new", "lost+found"})


class DataDirectoryInUse(Exception):
    """Another server or command holds the lock."""


class DataDirectoryDamaged(Exception):
    """The directory contains foreign files, is damaged, or has an unknown version."""


class NotADataDirectory(Exception):
    """The path is wrong: it is missing, a file, or a directory that contains other data."""


def check_path(path: Path) -> None:
    """Raise `NotADataDirectory` if ``path`` cannot be a data directory. Nothing is changed."""
    # The nearest existing parent must be a directory.
    for folder in (path, *path.absolute().parents):
        if folder.exists():
            if not folder.is_dir():
                raise NotADataDirectory(f"{folder} is not a directory")
            break
    if not path.is_dir() or (path / "meta").exists():
        return
    foreign_names = _foreign_names(path)
    # A directory that contains folders of this program is a data directory without its file meta,
    # which is damage.
    if foreign_names and not FOLDERS & {*foreign_names}:
        held = ", ".join(foreign_names[:5])
        raise NotADataDirectory(f"{path} is not a data directory and not empty: it contains {held}")


class _Expected(NamedTuple):
    """The file that must be at a path, and the reason to report if it is not."""

    path: str
    found: Identity
    reason: str

    def is_present(self) -> bool:
        """Return whether the expected file is at the path.

        Also return True if the disk reports an error, because the next write fails with it.
        """
        return identity_at(self.path) in (self.found, None)


class DataDirectory:
    """A locked data directory, which `close` unlocks.

    ``shards`` and ``promotions`` are the fields of ``meta``. ``folders`` has an entry for each
    shard. ``is_new`` means that the directory had no ``meta``.
    """

    def __init__(self, path: Path, *, shards: int) -> None:
        """Create (0700), lock and read the directory. ``shards`` is the shard count for a new
        directory.

        Raise `DataDirectoryInUse`, `DataDirectoryDamaged` or OSError.
        """
        path = path.absolute()
        _make(path)
        _refuse_foreign_files(
            path
        )  # check before LOCK is created, so that a foreign directory is unchanged
        # The children inherit all of these descriptors, and with them the locks.
        self._descriptors: list[int] = []
        try:
            # Lock the directory first. A second server fails here, before it changes any file.
            root = self._keep_open(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            locks_folder = _flock(path, root, fcntl.LOCK_EX)
            lock = self._keep_open(_lock(path))
            stored = read_meta(path)
            self.is_new = stored is None
            self.shards, self.promotions = stored or Meta(shards)
            # Write the settings to a new directory. An existing directory keeps its own.
            if self.is_new:
                _sync_above(path)
                write_meta(path, shards)
            # Network file systems cannot lock a directory.
            if not locks_folder:
                meta = self._keep_open(os.open(path / "meta", os.O_RDWR | os.O_CLOEXEC))
                _flock(path, meta, fcntl.LOCK_EX)
            self._root = held_path(root)
            # Check that paths through /proc lead to the opened directory.
            if identity_at(self._root) != identity(os.fstat(root)):
                raise OSError(errno.ENOENT, "a server needs /proc", "/proc/self/fd")
            # The identities of the locked files. Later, each process compares them with the files
            # at these paths.
            self._expected = [
                _Expected(str(path), identity(os.fstat(root)), MOVED),
                _Expected(str(path / "LOCK"), identity(os.fstat(lock)), UNLOCKED),
            ]
            self.folders = [self._folders(path, shard) for shard in range(self.shards)]
            # Fail if the directory was replaced while it was being opened.
            _OwnershipCheck(self._expected)()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptors.

        The kernel releases the locks when the last process that inherited them has closed them.
        """
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _keep_open(self, fd: int) -> int:
        self._descriptors.append(fd)
        return fd

    def _folders(self, path: Path, shard: int) -> Folders:
        name = f"{shard:02d}"
        # The folders are opened before the fork, so that a shard that is restarted later uses the
        # same folders.
        own = wal, checkpoint, blob, segment = [self._folder(part, name) for part in PARTS]
        expected = [
            _Expected(str(path / part / name), found, MOVED)
            for part, folder in zip(PARTS, own, strict=True)
            if (found := identity_at(folder)) is not None
        ]
        check = _OwnershipCheck([*self._expected, *expected])
        return Folders(shard, self._root, wal, checkpoint, blob, segment, check)

    def _folder(self, part: str, name: str) -> Path:
        """Open a folder and keep it open. Create it if it does not exist.

        For a folder that cannot be opened, return its ordinary path. In that case, only the
        folder's shard fails, with the disk error, and the other shards continue.
        """
        path = self._root / part / name
        try:
            make_directory(path)
            return held_path(
                self._keep_open(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            )
        except OSError:
            return path


class _OwnershipCheck:
    """Implements `topics.storage.folders.Check`.

    The quick check tests only ``LOCK``, the second expected path. ``LOCK`` is inside the directory,
    so this check also fails after the directory was moved.
    """

    def __init__(self, expected: list[_Expected]) -> None:
        self._expected = expected

    def __call__(self, *, quick: bool = False) -> None:
        # The quick check runs before each sync of the log, so it makes one system call.
        if quick and self._expected[1].is_present():
            return
        for each in self._expected:
            if not each.is_present():
                raise DirectoryLost(each.reason)


def locked_for_repair(path: Path) -> contextlib.AbstractContextManager[int]:
    """Like `locked_for_reading`, but no other command may read the directory at the same time."""
    return locked_for_reading(path, fcntl.LOCK_EX)


@contextlib.contextmanager
def locked_for_reading(path: Path, lock_kind: int = fcntl.LOCK_SH) -> Iterator[int]:
    """Lock a directory that no server is using, and yield its shard count.

    No server can use the directory while the context is active. Nothing in it is changed.

    Raise `NotADataDirectory`, `DataDirectoryInUse`, `DataDirectoryDamaged` or OSError.
    """
    if not path.is_dir():
        raise NotADataDirectory(
            f"{path}: {'not a directory' if path.exists() else 'no such directory'}"
        )
    # Distinguish a damaged data directory from a wrong path, because operators react differently.
    if not (path / "meta").exists():
        ours = sorted(entry.name for entry in path.iterdir() if entry.name in FOLDERS)
        if ours:
            raise DataDirectoryDamaged(
                f"{path} contains {', '.join(ours)}, but the file meta is missing"
            )
        raise NotADataDirectory(f"{path} is not a data directory: it has no file meta")
    with contextlib.ExitStack() as held:

        def lock(name: str) -> bool:
            fd = os.open(path / name, os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, fd)
            return _flock(path, fd, lock_kind)

        # Take the same locks as a server: the directory, or ``meta`` if the file system cannot
        # lock directories.
        if not lock("."):
            lock("meta")
        with contextlib.suppress(FileNotFoundError):  # a copied directory may not have LOCK
            lock("LOCK")
        meta = read_meta(path)
        assert meta is not None, "the file meta exists"
        yield meta.shards


class Meta(NamedTuple):
    """The fields of ``meta``."""

    shards: int
    promotions: int = 0


def encode_meta(shards: int, promotions: int = 0) -> bytes:
    """Return the contents of ``meta``."""
    version = versions.VERSIONS[versions.META]
    head = META.pack(versions.META, version, shards, promotions, 0)[:_CRC_AT]
    return head + struct.pack("<I", crc32c(head))


def decode_meta(data: bytes) -> Meta:
    """Decode ``meta``.

    Raise ValueError, with the offset and the reason, if the bytes cannot be trusted.
    """
    if reason := versions.other_version(data):
        raise ValueError(f"offset {versions.VERSION_AT}: {reason}")
    if len(data) != META.size:
        raise ValueError(f"the file has {len(data)} bytes instead of {META.size}")
    magic, _, shards, promotions, checksum = META.unpack(data)
    if magic != versions.META:
        raise ValueError("offset 0: not a file of this program")
    if checksum != crc32c(data[:_CRC_AT]):
        raise ValueError(f"offset {_CRC_AT}: wrong checksum")
    return Meta(shards, promotions)


def _make(path: Path) -> None:
    make_directory(path.parent, mode=0o777)
    make_directory(path)


def _sync_above(path: Path) -> None:
    """Make the names of all folders above ``path`` durable, including existing ones.

    Otherwise a power loss could remove a parent folder together with the data directory.
    """
    for folder in path.absolute().parents:
        with contextlib.suppress(PermissionError):  # a folder that this program did not create
            sync_directory(folder)


def _lock(path: Path) -> int:
    """Lock ``LOCK``, write the pid of this process into it, and return its descriptor."""
    lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The lock belongs to the open file, so the descriptor must stay open.
        _flock(path, lock, fcntl.LOCK_EX)
    except BaseException:
        os.close(lock)
        raise
    # The pid is information for operators. If the disk is full, the server starts without writing
    # it.
    with contextlib.suppress(OSError):
        pid = b"%d\n" % os.getpid()
        # Truncate after the write, so that the file keeps its block on a full disk.
        os.ftruncate(lock, os.pwrite(lock, pid, 0))
    return lock


def _flock(path: Path, fd: int, kind: int) -> bool:
    """Lock a descriptor and return whether the file system supports locks.

    Raise `DataDirectoryInUse` if another process holds the lock.
    """
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(path) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _in_use(path: Path) -> DataDirectoryInUse:
    holder = ""
    with contextlib.suppress(OSError):
        holder = (path / "LOCK").read_bytes()[:32].decode("ascii", "replace").strip()
    return DataDirectoryInUse(
        f"the data directory {path} is in use by process {holder or '(unknown)'}"
    )


def read_meta(path: Path) -> Meta | None:
    """Return the fields of ``meta``, or None in a new directory. Raise `DataDirectoryDamaged`."""
    meta = path / "meta"
    if not meta.exists():
        _refuse_foreign_files(path)
        return None
    try:
        return decode_meta(meta.read_bytes())
    except ValueError as error:
        raise DataDirectoryDamaged(f"{meta}: {error}") from None


def _refuse_foreign_files(path: Path) -> None:
    if not (path / "meta").exists() and (foreign_names := _foreign_names(path)):
        raise DataDirectoryDamaged(
            f"{path} has no file meta, but is not empty: it contains {', '.join(foreign_names[:5])}"
        )


def _foreign_names(path: Path) -> list[str]:
    """Return the names in a directory without ``meta`` that a new directory would not contain."""
    return sorted(
        entry.name
        for entry in path.iterdir()
        if entry.name not in _OWN_NAMES and not entry.name.startswith(".")
    )


def write_meta(path: Path, shards: int, promotions: int = 0) -> None:
    """Write ``meta`` atomically and durably. A crash leaves the complete file or none."""
    replace_file(path / "meta", encode_meta(shards, promotions))
