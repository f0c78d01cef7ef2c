"""Data directory: who owns it (``LOCK``), and what is fixed for its whole life (``meta``).

``LOCK`` is held by flock(2) and names the pid of its holder. Every forked process inherits the file
descriptor on purpose: as long as one of them lives, nobody else can write in the directory.

``meta``, integers little-endian:

    offset  size  field     meaning
    0       8     magic     "topicsdd"
    8       4     version   of everything in the directory
    12      4     shards    how many shards topics are spread over, by a hash; never changes
    16      4     reserved  zero
    20      4     crc32c    of bytes 0..20
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from topics.storage.disk import make_directory, sync_directory

META = struct.Struct("<8sIIII")
assert META.size == 24

MAGIC = b"topicsdd"
VERSION = 1
_CRC_AT = 20
PARTS = frozenset({"wal", "blob", "segment", "checkpoint", "linked"})  # the folders beside meta
_OURS = frozenset(
    {"LOCK", "meta", "meta.new", "lost+found"}
)  # what a directory without meta may hold


class DataDirectoryInUse(Exception):
    """Another server holds the lock."""


class DataDirectoryDamaged(Exception):
    """The directory holds foreign files, is damaged, or is of an unknown version."""


class NotADataDirectory(Exception):
    """A wrong path, not damage: nothing is there, a file, or a directory of somebody else."""


def check_place(path: Path) -> None:
    """Raise `NotADataDirectory` when ``path`` cannot be a data directory. Nothing is changed."""
    for folder in (path, *path.absolute().parents):
        if folder.exists():
            if not folder.is_dir():
                raise NotADataDirectory(f"{folder} is not a directory")
            break
    if not path.is_dir() or (path / "meta").exists():
        return
    strangers = _strangers(path)
    # With our folders it is a data directory that has lost its meta: that is damage.
    if strangers and not PARTS & {*strangers}:
        held = ", ".join(strangers[:5])
        raise NotADataDirectory(f"{path} is no data directory and not empty: it holds {held}")


class DataDirectory:
    """A locked data directory. ``shards`` is the stored count. Closing releases the lock."""

    def __init__(self, path: Path, *, shards: int) -> None:
        """Make (0700), lock and read the directory; ``shards`` is for a new one.

        Raises ``DataDirectoryInUse``, ``DataDirectoryDamaged`` or ``OSError``.
        """
        _make(path)
        _refuse_strangers(path)  # before LOCK: a foreign directory stays as it is
        self._lock = _lock(path)
        try:
            stored = _read_meta(path)
            self.is_new = stored is None
            self.shards = shards if stored is None else stored
            if self.is_new:
                _sync_above(path)
                _write_meta(path, shards)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor; the lock ends with the last process that inherited it."""
        os.close(self._lock)


def held_for_repair(path: Path) -> contextlib.AbstractContextManager[int]:
    """As `held_for_reading`; no other command may read it meanwhile."""
    return held_for_reading(path, fcntl.LOCK_EX)


@contextlib.contextmanager
def held_for_reading(path: Path, lock_kind: int = fcntl.LOCK_SH) -> Iterator[int]:
    """The shard count of a directory that no server has, nor can take meanwhile.

    Nothing in it is changed.

    Raises ``NotADataDirectory``, ``DataDirectoryInUse``, ``DataDirectoryDamaged`` or ``OSError``.
    """
    if not path.is_dir():
        raise NotADataDirectory(
            f"{path}: {'not a directory' if path.exists() else 'no such directory'}"
        )
    if not (path / "meta").exists():
        ours = sorted(entry.name for entry in path.iterdir() if entry.name in PARTS)
        if ours:
            raise DataDirectoryDamaged(
                f"{path} has {', '.join(ours)}, but its file meta is missing"
            )
        raise NotADataDirectory(f"{path} is no data directory: it has no file meta")
    # A copy may have no LOCK: then nobody can hold it, and the directory itself is locked.
    lock = os.open(path / "LOCK" if (path / "LOCK").exists() else path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, lock_kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(path, lock) from None
        shards = _read_meta(path)
        assert shards is not None, "there is a meta"
        yield shards
    finally:
        os.close(lock)


def encode_meta(shards: int, version: int = VERSION) -> bytes:
    """The bytes of ``meta``."""
    head = META.pack(MAGIC, version, shards, 0, 0)[:_CRC_AT]
    return head + struct.pack("<I", crc32c(head))


def decode_meta(data: bytes) -> int:
    """The shard count. ``ValueError`` says why the bytes cannot be trusted, with the offset."""
    if len(data) != META.size:
        raise ValueError(f"it has {len(data)} bytes instead of {META.size}")
    magic, version, shards, _reserved, checksum = META.unpack(data)
    if magic != MAGIC:
        raise ValueError("offset 0: it is not a file of this program")
    if checksum != crc32c(data[:_CRC_AT]):
        raise ValueError(f"offset {_CRC_AT}: its checksum is wrong")
    if version != VERSION:
        raise ValueError(
            f"offset 8: its format version is {version}, this program knows only {VERSION}"
        )
    return int(shards)


def _make(path: Path) -> None:
    make_directory(path.parent, mode=0o777)
    make_directory(path)


def _sync_above(path: Path) -> None:
    """Make the names of all folders above ``path`` durable, whoever made them.

    What is kept in the directory must not be lost with a folder above that the disk does not know.
    """
    for folder in path.absolute().parents:
        with contextlib.suppress(PermissionError):  # then this program has not made it
            sync_directory(folder)


def _lock(path: Path) -> int:
    """The locked descriptor of ``LOCK``, which then holds the pid of this process."""
    lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        error = _in_use(path, lock)
        os.close(lock)
        raise error from None
    # The pid is for people: on a full disk the server starts without.
    with contextlib.suppress(OSError):
        pid = b"%d\n" % os.getpid()
        os.ftruncate(lock, os.pwrite(lock, pid, 0))  # in this order the file keeps its room
    return lock


def _in_use(path: Path, lock: int) -> DataDirectoryInUse:
    holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
    return DataDirectoryInUse(
        f"the data directory {path} is in use by process {holder or '(unknown)'}"
    )


def _read_meta(path: Path) -> int | None:
    """The stored shard count, or None in a directory that is new."""
    meta = path / "meta"
    if not meta.exists():
        _refuse_strangers(path)
        return None
    try:
        return decode_meta(meta.read_bytes())
    except ValueError as error:
        raise DataDirectoryDamaged(f"{meta}: {error}") from None


def _refuse_strangers(path: Path) -> None:
    if not (path / "meta").exists() and (strangers := _strangers(path)):
        raise DataDirectoryDamaged(
            f"{path} has no file meta, but is not empty: it holds {', '.join(strangers[:5])}"
        )


def _strangers(path: Path) -> list[str]:
    """What a directory without ``meta`` holds and a new one would not."""
    return sorted(
        entry.name
        for entry in path.iterdir()
        if entry.name not in _OURS and not entry.name.startswith(".")
    )


def _write_meta(path: Path, shards: int) -> None:
    """Write aside, sync, rename, sync the directory: a crash leaves a whole meta or none."""
    aside = os.open(path / "meta.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(aside, encode_meta(shards))
        os.fsync(aside)
    finally:
        os.close(aside)
    (path / "meta.new").replace(path / "meta")
    sync_directory(path)
