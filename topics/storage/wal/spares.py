"""Spare files: files that wait to become files of the log.

    NAME.spare    used again or made ahead, so that no write waits for a new file
    log.reserve   taken only where no other file can be had, and only for frames that free room or
                  that a start needs (``decisions/0015``)

    retired by the log --(no reserve)----> log.reserve --(no room)--.
       |            '----(few spares)----> NAME.spare ------------> file of the log
       |                 made ahead -------^
       '--(enough of both, or another size)--> unlinked

The reserve is filled up first. Both kinds are found again after a restart. A file that cannot be
made leaves nothing.

Files begin small and grow with the log, so that a shard without traffic takes little of the disk
(``decisions/0053``). When a file is half full, the next one is to be twice as large, up to a bound:
a reserve of that size takes the place of the one before, and then a spare is made. So the reserve
holds as much as any file of the log, and what is left of a disk decides how far they grow.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections import deque
from pathlib import Path

from topics.storage import names
from topics.storage.disk import allocate, check_room, sync_directory
from topics.storage.names import own_files
from topics.storage.wal.file import RESERVE, SPARE, NoRoom, WalFile

# Files kept for their room and their pages: a checkpoint frees two, and the next one comes when
# these are used up.
SPARES_MAX = 3
FIRST_FILE_BYTES = 4 << 20  # an empty shard takes a file and a reserve of that size
RESERVE_NAME = "log"


def prepare(folder: Path, name: str, size: int) -> Path:
    """Make a spare file that no log has used yet, on the disk with its room.

    ``name`` begins its name; the rest is like no other's, which may be in use. Raises OSError and
    leaves nothing.
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
    """The spare files of one folder, all of ``file_bytes``: the size of the log's next file.

    Any thread may take one; only one at a time adds some.
    """

    def __init__(self, folder: Path, last_bytes: int, file_bytes_max: int) -> None:
        """Finds what an earlier process left. ``last_bytes``: size of the log's last file, 0: there
        is none.
        """
        self.folder, self._bytes_max = folder, file_bytes_max
        self.ordered_behind = -1  # base of the file behind which a spare was asked for
        self.is_short = False  # whether the last attempt to make a spare found no space
        self._path = folder / f"{RESERVE_NAME}{RESERVE}"
        self._adding = threading.Lock()
        self._reserve_lock = threading.Lock()  # of its name and `has_reserve`
        self._spares: deque[Path] = deque()
        held = self._path.stat().st_size if self._path.exists() else last_bytes
        self.file_bytes = min(max(held, FIRST_FILE_BYTES), file_bytes_max)
        self.has_reserve = self._fits(self._path)
        if not self.has_reserve:
            # Made for files of another size: the next one may want its room.
            self._path.unlink(missing_ok=True)
        for path in own_files(folder, names.SPARE):
            if len(self._spares) < SPARES_MAX and self._fits(path):
                self._spares.append(path)
            else:
                path.unlink()

    def _fits(self, path: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return path.stat().st_size == self.file_bytes
        return False

    def __len__(self) -> int:
        """How many spares there are."""
        return len(self._spares)

    # Taken

    def begin_file(self, file: WalFile, *, may_use_reserve: bool) -> None:
        """Make a file of the log, of a spare where there is one, of the reserve as the last way.

        Raises as `WalFile.create`.
        """
        is_usual = file.size <= self.file_bytes  # they may have grown since it was asked for
        try:
            file.create(self.take() if is_usual else None)
        except NoRoom:
            reserve = self.take_reserve() if is_usual and may_use_reserve else None
            if reserve is None:
                raise
            file.create(reserve)

    def take(self) -> Path | None:
        """A spare, if there is one."""
        with contextlib.suppress(IndexError):
            return self._spares.popleft()
        return None

    def take_reserve(self) -> Path | None:
        """The reserve, if it is there: for a caller that may have it."""
        taken = self.folder / f"{RESERVE_NAME}.{secrets.token_hex(4)}{SPARE}"
        with self._reserve_lock:
            if not self.has_reserve:
                return None
            try:
                self._path.replace(taken)  # before its name is free for another
            except OSError:
                return None
            self.has_reserve = False
        return taken

    # Made

    def is_next_due(self, file: WalFile, lsn: int) -> bool:
        """Whether a spare should be made: ``file`` is half full at ``lsn``, and none waits or they
        are to grow.
        """
        if 2 * file.offset(lsn) <= file.size or file.base == self.ordered_behind:
            return False
        return not self._spares or self._grows_behind(file)

    def _grows_behind(self, file: WalFile) -> bool:
        return file.size >= self.file_bytes < self._bytes_max

    def prepare_next(self, file: WalFile) -> None:
        """Make a spare for the file that follows, if there still is none: files may have come since
        it was asked for.

        Without room there will be none: the writer finds out.
        """
        with self._adding:
            if self._grows_behind(file):
                self._grow()
            self._add_spare(f"{file.base:016x}.fresh")

    def _grow(self) -> None:
        size = min(2 * self.file_bytes, self._bytes_max)
        with contextlib.suppress(OSError):
            check_room(self.folder, 2 * size)
            self._put_reserve(prepare(self.folder, RESERVE_NAME, size))
            sync_directory(self.folder)  # before a file of the log is as large
            while spare := self.take():
                spare.unlink()
            self.file_bytes = size

    def fill(self, name: str) -> bool:
        """Make the reserve and a spare, where they are missing; False without room for both.

        ``name``: for a spare that is made.
        """
        with self._adding:
            if not self.has_reserve:
                try:
                    self._fill_reserve()
                except OSError:
                    return False
            self._add_spare(name)
            return not self.is_short

    def _add_spare(self, name: str) -> None:
        """Make a spare if there is none, and set `is_short` if the disk has no space for it."""
        self.is_short = False
        try:
            if not self._spares:
                self._spares.append(prepare(self.folder, name, self.file_bytes))
        except OSError:
            self.is_short = True

    def fill_reserve(self) -> None:
        """Make the reserve, if it is missing. Raises OSError."""
        with self._adding:
            if not self.has_reserve:
                self._fill_reserve()

    def _fill_reserve(self) -> None:
        self._put_reserve(self.take() or prepare(self.folder, RESERVE_NAME, self.file_bytes))

    def _put_reserve(self, spare: Path) -> None:
        with self._reserve_lock:
            spare.replace(self._path)
            self.has_reserve = True

    # Used again

    def add(self, files: list[WalFile]) -> None:
        """Keep files that the log needs no more, or unlink them.

        Takes its time: for a thread. Raises OSError.
        """
        with self._adding:
            kept: list[Path] = []
            for file in files:
                file.close()
                target = self._target(file, kept)
                if target is None:
                    file.path.unlink(missing_ok=True)
                    continue
                # It has its name already from an attempt that failed afterwards.
                with contextlib.suppress(FileNotFoundError):
                    file.path.replace(target)
                kept.append(target)
            # Or a power loss brings a file back under its old name, with the header of its next
            # life.
            sync_directory(self.folder)
            self._keep(kept)

    def _target(self, file: WalFile, kept: list[Path]) -> Path | None:
        """The new name of a file that the log needs no more; None when it is to be unlinked."""
        if file.size != self.file_bytes or file.is_kept:
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
