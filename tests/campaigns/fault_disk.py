"""A disk that fails at a chosen call, and that determines its content after a power loss.

Every call of this process that writes or syncs below one folder is intercepted, because all modules
call `os` for it. The calls are counted. One of them fails, or all from one on. The durable content
of a file is its writes up to its last successful sync, without the writes that a failed sync
had pending: Linux considers these pages written and never retries. A name is durable after its
folder was synced.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topics.storage import disk as disk_module

# Offset, bytes or zeros, length. An offset of -1 sets the length of the file.
Op = tuple[int, bytes | None, int]
SYNCS = frozenset({"fsync", "fdatasync", "writeback"})


class FaultDisk:
    """The folder ``root``, used as a context manager. ``unlinked`` keeps unlinked files, so that
    no inode number is reused.
    """

    def __init__(self, root: Path, unlinked: Path) -> None:
        self.root, self._unlinked = str(root), unlinked
        unlinked.mkdir()
        self.calls: list[str] = []  # names of the calls in order; the first is number 1
        self.fail_at = 0
        # Whether all later calls of the kind also fail: a full disk, or a disk that cannot sync.
        self.persists = False
        self.failed: str | None = None
        self.dead = False  # the process was killed: no further call reaches the disk
        self._lock = threading.RLock()
        self._files: dict[int, int] = {}  # inode by descriptor
        self._durable: dict[int, bytearray] = {}
        self._dirty: dict[int, list[Op]] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._discarded = 0
        self._patch = pytest.MonkeyPatch()
        self._real: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> FaultDisk:
        """Replace the functions of `os` that have the names of methods of this class."""
        for name in (
            *("open", "close", "pwrite", "pwritev", "write", "posix_fallocate", "ftruncate"),
            *("replace", "link", "unlink", "mkdir", "fsync", "fdatasync"),
        ):
            self._real[name] = getattr(os, name)
            self._patch.setattr(os, name, getattr(self, f"_{name}"))
        self._patch.setattr(disk_module, "_sync_file_range", self._write_back)
        self._patch.setattr(disk_module, "_fallocate", self._zero_range)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def stop_failing(self) -> None:
        """Stop the fault. Calls are still counted."""
        self.fail_at, self.persists = 0, False

    # Checks before each call

    def _check_call(self, call: str, name: str, *, needs_space: bool = True) -> None:
        if self.dead:
            raise OSError(errno.EIO, "killed")
        self.calls.append(f"{call} {name}")
        sync = call in SYNCS
        if self.failed is None:
            is_hit = len(self.calls) == self.fail_at
        else:
            is_same_kind = sync == (self.failed.split()[0] in SYNCS) and (sync or needs_space)
            is_hit = self.persists and is_same_kind
        if is_hit:
            self.failed = self.failed or self.calls[-1]
            code = errno.EIO if sync else errno.ENOSPC
            raise OSError(code, os.strerror(code), name)

    def _is_below_root(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.root)

    # Files

    def _open(self, path: Any, flags: int, *rest: Any, **more: Any) -> int:
        with self._lock:
            is_below_root = self._is_below_root(path)
            is_new = is_below_root and bool(flags & os.O_CREAT) and not Path(path).exists()
            if is_new:
                self._check_call("create", Path(path).name)
            fd: int = self._real["open"](path, flags, *rest, **more)
            if is_below_root:
                ino = self._files[fd] = os.fstat(fd).st_ino
                if flags & os.O_TRUNC and not is_new:
                    self._dirty.setdefault(ino, []).append((-1, None, 0))
            return fd

    def _close(self, fd: int) -> None:
        with self._lock:
            self._files.pop(fd, None)
            self._real["close"](fd)

    def _name(self, fd: int) -> str:
        return Path(f"/proc/self/fd/{fd}").readlink().name

    def _change(self, call: str, fd: int, op: Op, real: Callable[[], Any]) -> Any:
        with self._lock:
            if fd not in self._files:
                return real()
            grows = op[0] + op[2] > os.fstat(fd).st_size
            self._check_call(call, self._name(fd), needs_space=grows)
            result = real()
            self._dirty.setdefault(self._files[fd], []).append(op)
            return result

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        content = bytes(data)
        op = offset, content, len(content)
        real = self._real["pwrite"]
        return int(self._change("pwrite", fd, op, lambda: real(fd, content, offset)))

    def _pwritev(self, fd: int, buffers: Any, offset: int) -> int:
        return self._pwrite(fd, b"".join(buffers), offset)

    def _write(self, fd: int, data: Any) -> int:
        content = bytes(data)
        op = 0, content, len(content)
        return int(self._change("write", fd, op, lambda: self._real["write"](fd, content)))

    def _posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        real = self._real["posix_fallocate"]
        op = offset + length, b"", 0
        self._change("fallocate", fd, op, lambda: real(fd, offset, length))

    def _ftruncate(self, fd: int, length: int) -> None:
        real = self._real["ftruncate"]
        self._change("ftruncate", fd, (-1, None, length), lambda: real(fd, length))

    def _zero_range(self, fd: int, _: int, offset: int, length: int) -> int:
        zeros, real = bytes(length), self._real["pwrite"]
        self._change("zero", fd, (offset, zeros, length), lambda: real(fd, zeros, offset))
        return 0

    # Syncs

    def _fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def _fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def _sync(self, call: str, fd: int) -> None:
        with self._lock:
            ino = self._files.get(fd)
            if ino is None:
                return
            path = Path(f"/proc/self/fd/{fd}")
            try:
                self._check_call(call, self._name(fd))
            except OSError:
                if not self.dead:
                    self._dirty.pop(ino, None)
                raise
            if path.is_dir():
                inodes = {child.name: child.stat().st_ino for child in path.iterdir()}
                self._names[path.resolve()] = inodes
            else:
                content_now = self._durable.setdefault(ino, bytearray())
                for op in self._dirty.pop(ino, []):
                    _apply(content_now, op)

    def _write_back(self, fd: int, offset: int, length: int, _: int) -> int:
        with self._lock:
            try:
                self._check_call("writeback", self._name(fd))
            except OSError as error:
                if not self.dead:
                    self._dirty.pop(self._files[fd], None)
                disk_module.ctypes.set_errno(error.errno or errno.EIO)  # type: ignore[attr-defined]
                return -1
            return 0

    # Names

    def _keep_unlinked(self, path: Any) -> None:
        self._discarded += 1
        self._real["link"](path, self._unlinked / str(self._discarded))

    def _replace(self, source: Any, target: Any) -> None:
        with self._lock:
            if self._is_below_root(source):
                names = f"{Path(source).name} -> {Path(target).name}"
                self._check_call("rename", names, needs_space=False)
                if Path(target).exists():
                    self._keep_unlinked(target)
            self._real["replace"](source, target)

    def _link(self, source: Any, target: Any, *rest: Any, **more: Any) -> None:
        with self._lock:
            if self._is_below_root(target):
                self._check_call("link", Path(target).name)
            self._real["link"](source, target, *rest, **more)

    def _unlink(self, path: Any, *rest: Any, **more: Any) -> None:
        with self._lock:
            if self._is_below_root(path):
                if self.dead:
                    raise OSError(errno.EIO, "killed")
                if Path(path).exists():
                    self._keep_unlinked(path)
            self._real["unlink"](path, *rest, **more)

    def _mkdir(self, path: Any, *rest: Any, **more: Any) -> None:
        with self._lock:
            if self._is_below_root(path) and not Path(path).exists():
                self._check_call("mkdir", Path(path).name)
            self._real["mkdir"](path, *rest, **more)

    # Durable content

    def power_loss(self, target: Path) -> Path:
        """Create in ``target`` the durable content of the disk."""
        with self._lock:
            return self._left(Path(self.root).resolve(), target)

    def _left(self, folder: Path, target: Path) -> Path:
        self._real["mkdir"](target)
        for name, ino in self._names.get(folder, {}).items():
            if folder / name in self._names or (folder / name).is_dir():
                self._left(folder / name, target / name)
            else:
                (target / name).write_bytes(self._durable.get(ino, b""))
        return target


def _apply(content_now: bytearray, op: Op) -> None:
    offset, data, length = op
    if offset < 0:
        del content_now[length:]
        content_now.extend(bytes(length - len(content_now)))
        return
    content_now.extend(bytes(max(offset - len(content_now), 0)))
    assert data is not None, "only a new length has no bytes"
    content_now[offset : offset + length] = data
