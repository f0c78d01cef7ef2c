"""Files of a job: a folder on a local disk, or on any file system that Hadoop knows.

    LocalFiles    paths of this machine; what is moved or written is synced to the disk
    HadoopFiles   hdfs://, s3a:// and others, through Spark's JVM

All paths are relative to the folder, with ``/`` between names. A file is never changed: it is
written under another name and renamed, so no reader sees half of one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from topics.spark.errors import JobError, WrongPath
from topics.spark.local_csv import GLOB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PENDING = ".pending"  # the end of a name that a file has while it is written
LOCK = "_lock"
_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)


class Files(Protocol):
    """What a job does with its folder."""

    def uri(self, path: str) -> str:
        """The path as Spark takes it."""
        ...

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted; none when it is absent."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder of that path."""
        ...

    def size(self, path: str) -> int:
        """Bytes of a file."""
        ...

    def read(self, path: str) -> str:
        """The text of a file."""
        ...

    def write(self, path: str, text: str) -> None:
        """Make a file that is not there yet, at once and for good."""
        ...

    def move(self, source: str, dest: str) -> None:
        """Rename a file or a folder; ``dest`` is not there, its folder may be absent."""
        ...

    def swap(self, staged: str, folder: str, aside: str) -> None:
        """Put the folder ``staged`` in the place of ``folder``. What was there is then at
        ``staged`` or at ``aside``; ``folder`` may be absent.
        """
        ...

    def settle(self, paths: Sequence[str]) -> None:
        """Make files, or the names in folders, survive a power cut, where that can be asked for."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file or a whole folder; an absent one is fine."""
        ...

    def lock(self) -> None:
        """Keep other processes away until `unlock`, or until this one ends. Raises `JobError` when
        one is there.
        """
        ...

    def unlock(self) -> None:
        """Let others in."""
        ...


def local_path(directory: str) -> Path | None:
    """The local path that a directory means; None for another file system. Raises `WrongPath` for
    one that Spark would read as a pattern.
    """
    if found := GLOB.search(directory):
        raise WrongPath(f"{directory}: Spark reads {found.group()} in a path as a pattern")
    if directory.startswith("file:"):
        return Path("/", *directory.removeprefix("file:").split("/"))
    return None if "://" in directory else Path(directory).resolve()


def files_at(spark: SparkSession, directory: str) -> Files:
    """The files of a directory: a local path or a URI."""
    path = local_path(directory)
    return HadoopFiles(spark, directory) if path is None else LocalFiles(path)


class LocalFiles:
    """A folder of this machine. The folder is made with the first file in it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock: int | None = None

    def uri(self, path: str) -> str:
        """The path as Spark takes it."""
        return f"file://{self._root / path}"  # as Hadoop reads it: nothing is escaped

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        folder = self._root / path
        return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder of that path."""
        return (self._root / path).exists()

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return (self._root / path).stat().st_size

    def read(self, path: str) -> str:
        """The text of a file."""
        return (self._root / path).read_text()

    def write(self, path: str, text: str) -> None:
        """Make a file, synced to the disk."""
        pending = self._root / (path + PENDING)
        pending.parent.mkdir(parents=True, exist_ok=True)
        pending.write_text(text)
        _sync(pending)
        pending.rename(self._root / path)
        _sync(pending.parent)

    def move(self, source: str, dest: str) -> None:
        """Rename."""
        target = self._root / dest
        target.parent.mkdir(parents=True, exist_ok=True)
        (self._root / source).rename(target)

    def swap(self, staged: str, folder: str, aside: str) -> None:
        """Exchange two folders in one step, so that readers see one or the other."""
        new, old = self._root / staged, self._root / folder
        if not old.exists():
            self.move(staged, folder)
        elif not _exchange(new, old):
            self.move(folder, aside)
            self.move(staged, folder)
        _sync(old.parent)

    def settle(self, paths: Sequence[str]) -> None:
        """Sync files, or the names in folders."""
        for path in paths:
            _sync(self._root / path)

    def remove(self, path: str) -> None:
        """Remove a file or a whole folder."""
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def lock(self) -> None:
        """Lock the folder by a file in it, which stays; the lock ends with the process."""
        self._root.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise JobError(f"{self._root}: another job is at work in this folder") from None

    def unlock(self) -> None:
        """Let others in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the system cannot."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # musl, macOS
        return False
    names = os.fsencode(one), os.fsencode(other)
    result = call(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_EXCHANGE))
    return int(result) == 0


class HadoopFiles:
    """A folder of a file system that Hadoop knows. It has no locks: the caller runs one job at a
    time there; and what is closed is as durable as the file system makes it.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._root = root.rstrip("/")
        hadoop = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        self._system: Any = self._path("").getFileSystem(hadoop)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.uri(path))

    def uri(self, path: str) -> str:
        """The path as Spark takes it."""
        return f"{self._root}/{path}" if path else self._root

    def names(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        folder = self._path(path)
        if not self._system.exists(folder):
            return []
        return sorted(entry.getPath().getName() for entry in self._system.listStatus(folder))

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder of that path."""
        return bool(self._system.exists(self._path(path)))

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return int(self._system.getFileStatus(self._path(path)).getLen())

    def read(self, path: str) -> str:
        """The text of a file."""
        stream = self._system.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Make a file."""
        stream = self._system.create(self._path(path + PENDING), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.move(path + PENDING, path)

    def move(self, source: str, dest: str) -> None:
        """Rename. Raises `JobError` when the file system refuses."""
        target = self._path(dest)
        self._system.mkdirs(target.getParent())
        if not self._system.rename(self._path(source), target):
            raise JobError(f"{self.uri(source)}: cannot be renamed to {self.uri(dest)}")

    def swap(self, staged: str, folder: str, aside: str) -> None:
        """Two renames: for a moment, readers find no folder."""
        if self.exists(folder):
            self.move(folder, aside)
        self.move(staged, folder)

    def settle(self, paths: Sequence[str]) -> None:
        """Nothing: these file systems keep what was closed."""

    def remove(self, path: str) -> None:
        """Remove a file or a whole folder."""
        with suppress(FileNotFoundError):
            self._system.delete(self._path(path), True)

    def lock(self) -> None:
        """Nothing: there are no locks."""

    def unlock(self) -> None:
        """Nothing: there are no locks."""
