"""Spare files: preallocated files that later become log files.

    NAME.spare    a reused or newly created file, so that no write waits for a file to be created
    log.reserve   used only if no other file can be created, and only for frames that free space or
                  that startup needs (``decisions/0015``)

    released by the log --(no reserve)----> log.reserve --(no space)-.
       |            '----(few spares)-----> NAME.spare ------------> file of the log
       |             created in advance ---^
       '--(enough of both, or other size)----> unlinked

The reserve is created before the spares. Both kinds are found again after a restart. A failed
creation leaves no file.

The first files are small and later ones grow with the log, so that a shard without traffic takes
little space (``decisions/0053``). When a file is half full, the size of the next files is doubled,
up to a bound. A reserve of the new size then replaces the previous reserve, and a spare is created.
So the reserve is as large as any log file, and the free space on the disk limits how far the files
grow.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections import deque
from pathlib import Path

from topics.storage import file_names
from topics.storage.disk import allocate, check_space, sync_directory
from topics.storage.file_names import own_files
from topics.storage.wal.log_file import RESERVE, SPARE, NoSpace, WalFile

# Maximum number of files that are kept for reuse. A checkpoint releases two files, and the next
# checkpoint is written when these files are used up.
SPARES_MAX = 3
FIRST_FILE_BYTES = 4 << 20  # an empty shard takes a log file and a reserve of this size
RESERVE_NAME = "log"


def prepare(folder: Path, name: str, size: int) -> Path:
    """Create a preallocated spare file that no log has used yet, and make it durable.

    Its name begins with ``name`` and has a random part, because other spares may have the same
    beginning. Raise OSError and leave no file.
    """
    path = folder / f"{name}.{secrets.token_hex(4)}{SPARE}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        allocate(fd, folder, size)
        os.fsync(fd)
        sync_directory(folder)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    return path


class SpareFiles:
    """The spare files in one folder. All have the size ``file_bytes``, the size of the log's next
    file.

    Any thread may take a spare. A lock ensures that only one thread at a time adds spares.
    """

    def __init__(self, folder: Path, last_bytes: int, file_bytes_max: int) -> None:
        """Find the spare files that an earlier process has left.

        ``last_bytes`` is the size of the log's last file, or 0 if the log has no files.
        """
        self.folder, self._bytes_max = folder, file_bytes_max
        self.requested_after = -1  # base of the last log file for which a spare was requested
        self.is_incomplete = False  # true if the last attempt to create a spare found no space
        self._path = folder / f"{RESERVE_NAME}{RESERVE}"
        self._adding = threading.Lock()
        self._reserve_lock = threading.Lock()  # guards the name of the reserve and `has_reserve`
        self._spares: deque[Path] = deque()
        # The size of the reserve determines the size of the next files.
        held = self._path.stat().st_size if self._path.exists() else last_bytes
        self.file_bytes = min(max(held, FIRST_FILE_BYTES), file_bytes_max)
        self.has_reserve = self._fits(self._path)
        if not self.has_reserve:
            # The reserve has the wrong size, and the next reserve may need its space.
            self._path.unlink(missing_ok=True)
        for path in own_files(folder, file_names.SPARE):
            if len(self._spares) < SPARES_MAX and self._fits(path):
                self._spares.append(path)
            else:
                path.unlink()

    def _fits(self, path: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return path.stat().st_size == self.file_bytes
        return False

    def __len__(self) -> int:
        """Return the number of spares."""
        return len(self._spares)

    # Taking spares

    def begin_file(self, file: WalFile, *, may_use_reserve: bool) -> None:
        """Create a log file from a spare, or by allocating a new file if there is no spare.

        If this fails and ``may_use_reserve`` is true, the reserve is used. Raise the same errors as
        `WalFile.create`.
        """
        # The size of spares may have grown since the loop chose the size of the file.
        is_usual = file.size <= self.file_bytes
        try:
            file.create(self.take() if is_usual else None)
        except NoSpace:
            reserve = self.take_reserve() if is_usual and may_use_reserve else None
            if reserve is None:
                raise
            file.create(reserve)

    def take(self) -> Path | None:
        """Return a spare, or None if none exists."""
        with contextlib.suppress(IndexError):
            return self._spares.popleft()
        return None

    def take_reserve(self) -> Path | None:
        """Return the reserve under a new name, or None. The caller must be allowed to use it."""
        taken = self.folder / f"{RESERVE_NAME}.{secrets.token_hex(4)}{SPARE}"
        with self._reserve_lock:
            if not self.has_reserve:
                return None
            try:
                self._path.replace(taken)  # so that the name is free for a new reserve
            except OSError:
                return None
            self.has_reserve = False
        return taken

    # Creating spares

    def is_next_due(self, file: WalFile, lsn: int) -> bool:
        """Return whether a spare should be created now.

        This is the case if ``file`` is half full at ``lsn``, and no spare exists or spares are to
        grow.
        """
        if 2 * file.offset(lsn) <= file.size or file.base == self.requested_after:
            return False
        return not self._spares or self._grows_after(file)

    def _grows_after(self, file: WalFile) -> bool:
        return file.size >= self.file_bytes < self._bytes_max

    def prepare_next(self, file: WalFile) -> None:
        """Create a spare for the file after ``file``, unless a spare was added since the request.

        If the disk has no space, no spare is created. The writer detects this when it needs a
        spare.
        """
        with self._adding:
            if self._grows_after(file):
                self._grow()
            self._add_spare(f"{file.base:016x}.fresh")

    def _grow(self) -> None:
        size = min(2 * self.file_bytes, self._bytes_max)
        with contextlib.suppress(OSError):
            # Grow only if the disk has space for the reserve and a spare of the new size.
            check_space(self.folder, 2 * size)
            self._put_reserve(prepare(self.folder, RESERVE_NAME, size))
            # The reserve must be durable before any file of the log is created with this size.
            sync_directory(self.folder)
            # The existing spares are too small now.
            while spare := self.take():
                spare.unlink()
            self.file_bytes = size

    def fill(self, name: str) -> bool:
        """Create the reserve and a spare if they are missing. Return False if the disk has no space
        for both.

        The name of a newly created spare begins with ``name``.
        """
        with self._adding:
            if not self.has_reserve:
                try:
                    self._fill_reserve()
                except OSError:
                    return False
            self._add_spare(name)
            return not self.is_incomplete

    def _add_spare(self, name: str) -> None:
        """Create a spare if there is none. Set `is_incomplete` if the disk has no space for it."""
        self.is_incomplete = False
        try:
            if not self._spares:
                self._spares.append(prepare(self.folder, name, self.file_bytes))
        except OSError:
            self.is_incomplete = True

    def fill_reserve(self) -> None:
        """Create the reserve if it is missing. Raise OSError."""
        with self._adding:
            if not self.has_reserve:
                self._fill_reserve()

    def _fill_reserve(self) -> None:
        self._put_reserve(self.take() or prepare(self.folder, RESERVE_NAME, self.file_bytes))

    def _put_reserve(self, spare: Path) -> None:
        with self._reserve_lock:
            spare.replace(self._path)
            self.has_reserve = True

    # Reusing files

    def add(self, files: list[WalFile]) -> None:
        """Keep files that the log no longer needs as reserve or spares, or unlink them.

        This call may block on the disk, so it must run in a thread. Raise OSError.
        """
        with self._adding:
            kept: list[Path] = []
            for file in files:
                file.close()
                target = self._target(file, kept)
                if target is None:
                    file.path.unlink(missing_ok=True)
                    continue
                # The file is missing if it was renamed by an earlier attempt that failed later.
                with contextlib.suppress(FileNotFoundError):
                    file.path.replace(target)
                kept.append(target)
            # Make the new names durable. Otherwise, after a power loss, a file could have its old
            # name and the header of its next use.
            sync_directory(self.folder)
            self._keep(kept)

    def _target(self, file: WalFile, kept: list[Path]) -> Path | None:
        """Return the new name of a file that the log no longer needs, or None to unlink it."""
        if file.size != self.file_bytes or file.is_preserved:
            return None
        if not self.has_reserve and self._path not in kept:
            return self._path
        spares = len(self._spares) + len(kept) - (self._path in kept)
        return file.path.with_suffix(SPARE) if spares < SPARES_MAX else None

    def _keep(self, paths: list[Path]) -> None:
        for path in paths:
            if path == self._path:
                self.has_reserve = True
            else:
                self._spares.append(path)
