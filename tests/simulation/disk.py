"""A simulated disk: a real folder, and a model of its content after a power loss.

Every operation below the folder is executed, so `mmap`, `scandir` and `stat` work unchanged. Every
operation is also recorded in a model of the durable state (`durable`). `Disk.hook` is called before
each operation: it may wait, let the operation fail, or tear a write. Reads through a memory map are
not visible, but the storage checks its pages before it accesses them, and this check is visible
(`mapped_file`).

A dead process changes nothing: all of its calls raise `Died`, except `os.close`.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import hashlib
import io
import mmap
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Protocol

from tests.simulation.durable import PAGE, Durable, File, Folder, join, pages
from topics.storage import disk as disk_module
from topics.storage import mapped_file
from topics.storage.folders import HELD

CAPACITY: Final = 1 << 40  # size in bytes of a disk whose `free_bytes` is unlimited
# The operations that are passed to `Disk.hook`. check: whether mapped pages can be read.
READS: Final = frozenset({"open", "read", "check"})
WRITES: Final = frozenset({"write", "zero", "punch", "allocate", "truncate"})
SYNCS: Final = frozenset({"fsync", "fdatasync", "writeback"})
RENAMES: Final = frozenset({"create", "link", "rename", "unlink", "mkdir", "rmdir"})
TORN: Final = frozenset({"write", "zero", "punch"})
_PUNCH_HOLE = 0x02
_HELD: Final = re.compile(rf"{HELD}/(\d+)(/|$)")
_REAL = SimpleNamespace(**vars(os))  # the functions before any patch
_real_open, _real_fallocate = io.open, disk_module._fallocate
_real_sync_file_range = disk_module._sync_file_range


class Died(BaseException):
    """The calling process is dead."""


class Verdict(NamedTuple):
    """The outcome of an operation. A hook that delays an operation waits itself."""

    error: int = 0  # the errno to fail with
    # of a write: the number of bytes that are written before the process dies
    torn: int | None = None


PROCEED = Verdict()


class Owner(Protocol):
    """A process that owns descriptors."""

    @property
    def name(self) -> str: ...
    @property
    def is_dead(self) -> bool: ...


class _Opened(NamedTuple):
    node: File | Folder
    owner: Owner | None


class Disk:
    """The folder ``root``, an absolute path. Its initial content is durable."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root, self.model = root, Durable(rng)
        self.owner: Callable[[], Owner | None] = lambda: None
        # Called before each operation: the process, the operation, the path below the root, bytes.
        self.hook: Callable[[Owner | None, str, str, int], Verdict] = lambda *_: PROCEED
        self.free_bytes: int | None = None  # bytes that are free for new blocks
        self._prefix = f"{root}/"
        self._era, self._used = 0, 0  # number of power losses; pages that have a block
        self._opened: dict[int, _Opened] = {}
        self._lock = threading.RLock()
        self._patched: list[tuple[Any, str, Any]] = []
        self._load(self.model.tree)

    def _load(self, folder: Folder) -> None:
        for name in sorted(_REAL.listdir(self.root / folder.path)):
            path = join(folder.path, name)
            if (self.root / path).is_dir():
                below = Folder(path, 0)
                self._load(below)
                self._add(folder, name, below)
            else:
                self._add(folder, name, File(path, 0, (self.root / path).read_bytes()))

    def _add(self, folder: Folder, name: str, node: File | Folder) -> None:
        folder.names[name] = folder.durable[name] = node
        node.links += 1
        if isinstance(node, File) and node.links == 1:
            self._used += len(node.pages)

    # Replacements for functions of os

    def install(self) -> None:
        """Replace functions of `os`, `open`, and functions that the storage calls elsewhere."""
        for name in (
            *("open", "close", "pread", "pwrite", "pwritev", "write", "ftruncate"),
            *("posix_fallocate", "fsync", "fdatasync", "replace", "rename", "link", "unlink"),
            *("remove", "mkdir", "rmdir", "statvfs"),
        ):
            self._patch(os, name, getattr(self, f"_{name}"))
        self._patch(io, "open", self._open_file)
        self._patch(builtins, "open", self._open_file)
        self._patch(disk_module, "_fallocate", self._fallocate)
        self._patch(disk_module, "_sync_file_range", self._sync_file_range)
        self._patch(mapped_file, "mmap", SimpleNamespace(**{**vars(mmap), "mmap": self._mmap}))

    def _patch(self, module: Any, name: str, value: Any) -> None:
        self._patched.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    def remove(self) -> None:
        """Restore the replaced functions."""
        while self._patched:
            setattr(*self._patched.pop())

    def __enter__(self) -> Disk:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    # Checks before each operation

    def _check_operation(
        self, operation: str, node: File | Folder | str, length: int = 0
    ) -> int | None:
        """Check an operation. Raise `Died` or OSError. For a torn write, return how much of it is
        done.
        """
        owner, path = self.owner(), node if isinstance(node, str) else node.path
        if owner is not None and owner.is_dead:
            raise Died
        verdict = self.hook(owner, operation, path, length)
        torn = verdict.torn if operation in TORN else None
        if torn is None and owner is not None and owner.is_dead:  # killed in the meantime
            raise Died
        if verdict.error or (not isinstance(node, str) and node.era != self._era):
            raise _error(verdict.error or errno.EIO, path)
        return torn

    def _file(self, fd: int) -> File | None:
        opened = self._opened.get(fd)
        return opened.node if opened and isinstance(opened.node, File) else None

    # Names

    def _below(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return the path below the root, or None if it is elsewhere."""
        if dir_fd is not None:
            opened = self._opened.get(dir_fd)
            return join(opened.node.path, path) if opened else None
        name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        if not isinstance(name, str):
            return None
        if found := _HELD.match(name):  # the folder of a descriptor, regardless of its current name
            opened = self._opened.get(int(found[1]))
            return join(opened.node.path, name[found.end() :]).rstrip("/") if opened else None
        if name.startswith(self._prefix):
            return name[len(self._prefix) :]
        return "" if name == self._prefix[:-1] else None

    def _names(self, path: str, node: File | Folder | None, source: str | None = None) -> None:
        lost = self.model.name(path, node, source)
        if lost is not None:
            self._free(lost)

    @contextlib.contextmanager
    def _naming(self, operation: str, path: Any, dir_fd: int | None = None) -> Iterator[str | None]:
        name = self._below(path, dir_fd)
        if name is None:
            yield None
            return
        self._check_operation(operation, name)
        with self._lock:
            if operation in {"link", "mkdir"}:
                self._check_space(1)
            yield name

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._naming("mkdir", path, dir_fd) as name:
            _REAL.mkdir(path, mode, dir_fd=dir_fd)
            if name is not None:
                self._names(name, Folder(name, self._era))

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._naming("rmdir", path, dir_fd) as name:
            _REAL.rmdir(path, dir_fd=dir_fd)
            if name is not None:
                self._names(name, None)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._naming("unlink", path, dir_fd) as name:
            _REAL.unlink(path, dir_fd=dir_fd)
            if name is not None:
                self._names(name, None)

    _remove = _unlink

    def _link(self, source: Any, target: Any, **more: Any) -> None:
        with self._naming("link", target) as name:
            _REAL.link(source, target, **more)
            if name is not None:
                self._names(name, self.model.find(self._below(source) or ""))

    def _replace(self, source: Any, target: Any, **more: Any) -> None:
        with self._naming("rename", source) as old:
            new = self._below(target)
            assert (old is None) == (new is None), "no file moves in or out"
            _REAL.replace(source, target, **more)
            # Renaming one name of a file to another name of the same file keeps both.
            if old and new and (node := self.model.find(old)) is not self.model.find(new):
                self._names(new, node, old)

    _rename = _replace

    # Descriptors

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
        name = self._below(path, dir_fd)
        if name is None:
            return _REAL.open(path, flags, mode, dir_fd=dir_fd)
        assert not flags & os.O_APPEND, "the offset of each write is known"
        if self.model.find(name) is None:
            operation = "create" if flags & os.O_CREAT else "open"
        else:
            operation = "truncate" if flags & os.O_TRUNC else "open"
        self._check_operation(operation, name)
        with self._lock:
            if operation == "create":
                self._check_space(1)
            fd: int = _REAL.open(path, flags, mode, dir_fd=dir_fd)
            node = self.model.find(name)
            if node is None:
                node = File(name, self._era)
                self._names(name, node)
            elif flags & os.O_TRUNC and isinstance(node, File):
                self._cut(node, 0)
            node.descriptors += 1
            self._opened[fd] = _Opened(node, self.owner())
            return fd

    def _close(self, fd: int) -> None:
        self.remove_descriptor(fd)
        _REAL.close(fd)

    def remove_descriptor(self, fd: int) -> None:
        """Remove the descriptor, which is about to be closed."""
        with self._lock:
            if opened := self._opened.pop(fd, None):
                opened.node.descriptors -= 1
                self._free(opened.node)

    def close_all_of(self, owner: Owner) -> None:
        """Close all descriptors of a dead process, as the kernel does. None of its code may still
        run.
        """
        for fd in [fd for fd, opened in self._opened.items() if opened.owner is owner]:
            self._close(fd)

    def _open_file(
        self, file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any
    ) -> Any:
        below = self._below(file)
        if below is None or isinstance(self.model.find(below), Folder):
            return _real_open(file, mode, buffering, *rest, **more)
        raw: Any = _Stream(self, file, mode.replace("b", "").replace("t", ""))
        if buffering:
            kind = io.BufferedRandom if "+" in mode else io.BufferedReader
            raw = (kind if "+" in mode or "r" in mode else io.BufferedWriter)(raw)
        return raw if "b" in mode else io.TextIOWrapper(raw, *rest, **more)

    # Reading

    def _pread(self, fd: int, length: int, offset: int) -> Any:
        self.check_read(fd, length, offset)
        return _REAL.pread(fd, length, offset)

    def check_read(self, fd: int, length: int, offset: int) -> None:
        """Raise `Died` or OSError if the bytes cannot be read."""
        file = self._file(fd)
        if file is not None:
            self.check_pages("read", file, length, offset)

    def check_pages(self, operation: str, file: File, length: int, offset: int) -> None:
        """Do the same for a read or a check of mapped pages."""
        self._check_operation(operation, file, length)
        if file.unreadable and not file.unreadable.isdisjoint(pages(offset, length)):
            raise _error(errno.EIO, file.path)

    def _mmap(self, fd: int, *rest: Any, **more: Any) -> mmap.mmap:
        file = self._file(fd)
        if file is None:
            return mmap.mmap(fd, *rest, **more)
        mapped = _Map(fd, *rest, **more)
        mapped.disk, mapped.file = self, file
        return mapped

    def make_unreadable(self, path: Path, offset: int, length: int) -> None:
        """Let reads of these bytes fail until their pages are completely overwritten."""
        file = self.model.find(self._below(path) or "")
        assert isinstance(file, File), f"{path} is a file"
        file.unreadable.update(pages(offset, length))

    # Writing

    def _pwrite(self, fd: int, data: Any, offset: int) -> Any:
        file = self._file(fd)
        if file is None:
            return _REAL.pwrite(fd, data, offset)
        return self._put("write", fd, file, bytes(data), offset)

    def _pwritev(self, fd: int, buffers: Sequence[Any], offset: int, *flags: int) -> Any:
        if fd not in self._opened:
            return _REAL.pwritev(fd, buffers, offset, *flags)
        return self._pwrite(fd, b"".join(buffers), offset)

    def _write(self, fd: int, data: Any) -> Any:
        file = self._file(fd)
        if file is None:
            return _REAL.write(fd, data)
        offset = _REAL.lseek(fd, 0, os.SEEK_CUR)
        written = self._put("write", fd, file, bytes(data), offset)
        _REAL.lseek(fd, offset + written, os.SEEK_SET)
        return written

    def _put(self, operation: str, fd: int, file: File, data: bytes, offset: int) -> int:
        torn = self._check_operation(operation, file, len(data))
        with self._lock:
            data = data if torn is None else data[:torn]
            data = data[: self._claim(file, offset, len(data))]
            _REAL.pwrite(fd, data, offset)
            self._note(file, offset, data)
        if torn is not None:
            raise Died
        return len(data)

    def _note(self, file: File, offset: int, data: bytes | None) -> None:
        self.model.write(file, offset, data)
        if file.unreadable and data:
            file.unreadable -= {*range(-(-offset // PAGE), (offset + len(data)) // PAGE)}

    def _ftruncate(self, fd: int, length: int) -> None:
        file = self._file(fd)
        if file is not None:
            self._check_operation("truncate", file)
        with self._lock:
            _REAL.ftruncate(fd, length)
            if file is not None:
                self._cut(file, length)

    def _cut(self, file: File, length: int) -> None:
        self._release(file, {page for page in file.pages if page * PAGE >= length})
        self._note(file, length, None)

    def _posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        file = self._file(fd)
        if file is not None:
            self._check_operation("allocate", file, length)
        with self._lock:
            if file is not None:
                self._check_space(len({*pages(offset, length)} - file.pages))
            _REAL.posix_fallocate(fd, offset, length)
            if file is not None:
                self._claim(file, offset, length)
                self._note(file, offset + length, b"")

    def _fallocate(self, fd: int, mode: int, offset: int, length: int) -> int:
        """Write zeros to allocated bytes. No other mode is used."""
        file = self._file(fd)
        if file is None:
            return -1 if _real_fallocate is None else _real_fallocate(fd, mode, offset, length)
        inside = max(min(length, _REAL.fstat(fd).st_size - offset), 0)
        try:
            self._put("punch" if mode & _PUNCH_HOLE else "zero", fd, file, bytes(inside), offset)
        except OSError as error:
            ctypes.set_errno(error.errno or errno.EIO)
            return -1
        if mode & _PUNCH_HOLE and _real_fallocate and not _real_fallocate(fd, mode, offset, length):
            with self._lock:
                complete_pages = range(-(-offset // PAGE), (offset + length) // PAGE)
                self._release(file, file.pages.intersection(complete_pages))
        return 0

    # Free space

    def _check_space(self, pages: int) -> None:
        if self.free_bytes is not None and pages * PAGE > self.free_bytes:
            raise _error(errno.ENOSPC)

    def _claim(self, file: File, offset: int, length: int) -> int:
        """Allocate blocks for these bytes. Return how many of them have one. Raise ENOSPC if none
        has.
        """
        new = [page for page in pages(offset, length) if page not in file.pages]
        if self.free_bytes is not None and new:
            fitting = new[: max(self.free_bytes, 0) // PAGE]
            if len(fitting) < len(new):
                length = new[len(fitting)] * PAGE - offset
                new = fitting
            if length <= 0:
                raise _error(errno.ENOSPC, file.path)
            self.free_bytes -= len(new) * PAGE
        file.pages.update(new)
        self._used += len(new)
        return length

    def _release(self, file: File, pages: set[int]) -> None:
        file.pages -= pages
        self._used -= len(pages)
        if self.free_bytes is not None:
            self.free_bytes += len(pages) * PAGE

    def _free(self, node: File | Folder) -> None:
        is_unused = not node.links and not node.descriptors and node.era == self._era
        if is_unused and isinstance(node, File):
            self._release(node, {*node.pages})

    def _statvfs(self, path: Any) -> Any:
        if path not in self._opened if isinstance(path, int) else self._below(path) is None:
            return _REAL.statvfs(path)
        free = (
            CAPACITY // PAGE - self._used
            if self.free_bytes is None
            else max(self.free_bytes, 0) // PAGE
        )
        counts = (self._used + free, free, free, 1 << 30, 1 << 30, 1 << 30)
        return os.statvfs_result((PAGE, PAGE, *counts, 0, 255))

    # Syncs

    def _fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def _fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def _sync_file_range(self, fd: int, offset: int, length: int, flags: int) -> int:
        if fd not in self._opened:
            real = _real_sync_file_range
            return 0 if real is None else real(fd, offset, length, flags)
        try:
            self._sync("writeback", fd)
        except OSError as error:
            ctypes.set_errno(error.errno or errno.EIO)
            return -1
        return 0

    def _sync(self, operation: str, fd: int) -> Any:
        if fd not in self._opened:
            return getattr(_REAL, operation)(fd)
        node, mark = self._opened[fd].node, self.model.count  # later operations may miss this sync
        try:
            self._check_operation(operation, node)
        except OSError:
            if isinstance(node, File) and node.era == self._era:
                with self._lock:
                    self.model.fail(node, mark)
            raise
        with self._lock:
            if operation != "writeback":
                self.model.sync(node, mark)
                _stamp(fd)
        return None

    # Power loss

    def lose_power(self) -> str:
        """Replace the folder by a state that the disk may have after a power loss. Return how it
        was chosen. All inodes are new, and earlier descriptors are unusable.
        """
        with self._lock:
            chosen = self.model.lose_power()
            self._build()
            return chosen

    def _build(self) -> None:
        self._era += 1
        used, self._used = self._used, 0
        _wipe(self.root)
        self.model.tree = self._built("", self.model.tree, {})
        if self.free_bytes is not None:
            self.free_bytes += (used - self._used) * PAGE

    def _built(self, path: str, old: Folder, made: dict[File, File]) -> Folder:
        folder = Folder(path, self._era)
        for name, node in old.durable.items():
            inner = join(path, name)
            if isinstance(node, Folder):
                _REAL.mkdir(self.root / inner, 0o700)
                self._add(folder, name, self._built(inner, node, made))
                continue
            if node in made:
                _REAL.link(self.root / made[node].path, self.root / inner)
            else:
                made[node] = File(inner, self._era, node.durable)
                made[node].unreadable = node.unreadable
                with _real_open(self.root / inner, "xb", buffering=0) as file:
                    file.write(node.durable)
                    _stamp(file.fileno())
            self._add(folder, name, made[node])
        return folder

    # Content

    def files(self) -> dict[str, int]:
        """Return the length of each file, by its path below the root."""
        return {
            path: _REAL.stat(self.root / path).st_size
            for path, node in self.model.tree.walk("names")
            if isinstance(node, File)
        }

    def image(self, part: str) -> dict[str, bytes]:
        """Return the bytes of all files with ``part`` in their path, by path."""
        found = {}
        for path in self.files():
            if part in path:
                with _real_open(self.root / path, "rb") as file:  # reads spoiled pages, too
                    found[path] = file.read()
        return found

    def restore(self, image: dict[str, bytes], part: str) -> None:
        """Restore the content of these files, durably."""
        now = self.image(part)
        for path in now.keys() - image.keys():
            (self.root / path).unlink()
        for path, data in image.items():
            if now.get(path) != data:
                with open(self.root / path, "wb") as file:  # noqa: PTH123 - which is modelled
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            node = self.model.find(path)
            assert isinstance(node, File), f"{path} is a file"
            node.unreadable.clear()
        for path in sorted({path.rpartition("/")[0] for path in now.keys() | image.keys()}):
            self.sync_folder(path)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        folder = os.open(self.root / path, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def put_copy(self, source: str, target: str) -> dict[str, bytes]:
        """Create a folder durably with the content of another one, its `image`."""
        (self.root / target).mkdir()
        for path, node in [*self._folder_at(source).walk("names")]:
            copy = self.root / target / path
            if isinstance(node, Folder):
                copy.mkdir()
                continue
            with _real_open(self.root / source / path, "rb") as file:
                data = file.read()
            with open(copy, "wb") as file:  # noqa: PTH123 - which is modelled
                file.write(data)
        return self.image(f"{target}/")

    def remove_tree(self, path: str) -> None:
        """Remove a folder and its content."""
        for name, node in reversed([*self._folder_at(path).walk("names")]):
            below = self.root / path / name
            below.rmdir() if isinstance(node, Folder) else below.unlink()
        (self.root / path).rmdir()

    def _folder_at(self, path: str) -> Folder:
        folder = self.model.find(path)
        assert isinstance(folder, Folder), f"{path} is a folder"
        return folder

    def digest(self) -> str:
        """Return a hash over all names and bytes, both the current and the durable ones."""
        found = hashlib.blake2b(digest_size=16)
        for which in ("names", "durable"):
            for path, node in self.model.tree.walk(which):
                found.update(f"{which} {path}\0".encode())
                if isinstance(node, File) and which == "durable":
                    found.update(node.durable)
                elif isinstance(node, File):
                    with _real_open(self.root / path, "rb") as file:
                        found.update(file.read())
                found.update(b"\0")
        return found.hexdigest()


class _Stream(io.FileIO):
    """The object that `open` returns for a file of the disk."""

    def __init__(self, disk: Disk, path: Any, mode: str) -> None:
        self._disk = disk
        super().__init__(path, mode, opener=lambda name, flags: os.open(name, flags, 0o666))

    def readinto(self, buffer: Any, /) -> int:
        self._disk.check_read(self.fileno(), memoryview(buffer).nbytes, self.tell())
        return super().readinto(buffer)

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        self._disk.check_read(self.fileno(), size, self.tell())
        return super().read(size)

    def readall(self) -> bytes:
        length = os.fstat(self.fileno()).st_size - self.tell()
        self._disk.check_read(self.fileno(), max(length, 0), self.tell())
        return super().readall()

    def write(self, data: Any, /) -> int:
        return os.write(self.fileno(), data)

    def truncate(self, size: int | None = None, /) -> int:
        length = self.tell() if size is None else size
        os.ftruncate(self.fileno(), length)
        return length

    def close(self) -> None:
        if not self.closed:
            self._disk.remove_descriptor(self.fileno())
        super().close()


class _Map(mmap.mmap):
    """A mapping of a file. The storage checks pages before it accesses them."""

    disk: Disk
    file: File

    def madvise(self, option: int, start: int = 0, length: int | None = None) -> None:
        self.disk.check_pages("check", self.file, len(self) if length is None else length, start)
        super().madvise(option, start, len(self) if length is None else length)


def _wipe(folder: Path) -> None:
    for name in _REAL.listdir(folder):
        if (folder / name).is_dir():
            _wipe(folder / name)
            _REAL.rmdir(folder / name)
        else:
            _REAL.unlink(folder / name)


def _stamp(fd: int) -> None:
    now = time.time_ns()  # the clock, which a simulation has patched
    _REAL.utime(fd, ns=(now, now))


def _error(code: int, path: str = "") -> OSError:
    return OSError(code, os.strerror(code), path)
