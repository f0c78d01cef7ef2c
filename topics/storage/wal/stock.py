"""Files that wait to become files of the log: spares for its rotation, and the reserve for what
makes room on a full disk.

    NAME.spare    used again or made ahead, so that no write waits for a new file
    log.reserve   taken only where no other file can be had, and only for frames that free room or
                  that a start needs

The reserve is filled up first. Both are found again after a restart.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import deque
from pathlib import Path

from topics.storage.disk import sync_directory
from topics.storage.wal.file import RESERVE, SPARE, WalFile, prepare

# Files kept for their room and their pages: a checkpoint frees two, and the next one comes when
# these are used up.
SPARES = 3
RESERVE_NAME = "log"


class WalStock:
    """The waiting files of one folder, all of ``file_bytes``. Any thread may take one; only one at
    a time adds some.
    """

    def __init__(self, folder: Path, file_bytes: int) -> None:
        """Finds what an earlier process left."""
        self.folder, self.file_bytes = folder, file_bytes
        self._path = folder / f"{RESERVE_NAME}{RESERVE}"
        self._adding = threading.Lock()
        self._spares: deque[Path] = deque()
        self.has_reserve = self._fits(self._path)
        if not self.has_reserve:
            # Made for files of another size: the next one may want its room.
            self._path.unlink(missing_ok=True)
        for path in folder.glob(f"*{SPARE}"):
            if len(self._spares) < SPARES and self._fits(path):
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

    def take(self) -> Path | None:
        """A spare, if there is one."""
        with contextlib.suppress(IndexError):
            return self._spares.popleft()
        return None

    def take_reserve(self) -> Path | None:
        """The reserve, if it is there: for a caller that may have it."""
        if not self.has_reserve:
            return None
        taken = self.folder / f"{RESERVE_NAME}.{secrets.token_hex(4)}{SPARE}"
        try:
            self._path.replace(taken)  # before its name is free for another
        except OSError:
            return None
        self.has_reserve = False
        return taken

    def add(self, files: list[WalFile]) -> None:
        """Keep files that the log needs no more, or unlink them. Raises OSError."""
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
                if target.exists():
                    kept.append(target)
            # Or a power loss brings a file back under its old name, with the header of its next
            # life.
            sync_directory(self.folder)
            self._keep(kept)

    def _target(self, file: WalFile, kept: list[Path]) -> Path | None:
        if file.size != self.file_bytes or file.is_kept:
            return None
        if not self.has_reserve and self._path not in kept:
            return self._path
        spares = len(self._spares) + len(kept) - (self._path in kept)
        return file.path.with_suffix(SPARE) if spares < SPARES else None

    def look_ahead(self, base: int) -> None:
        """Have a spare, if there still is none: files may have come since it was wanted. ``base``:
        of the file before it. Raises OSError.
        """
        with self._adding:
            if not self._spares:
                self._spares.append(prepare(self.folder, f"{base:016x}.fresh", self.file_bytes))

    def fill(self, name: str) -> bool:
        """Have the reserve and a spare; False where there is no room for both. ``name``: for a
        spare that is made.
        """
        with self._adding:
            try:
                if not self.has_reserve:
                    self._fill_reserve()
                if not self._spares:
                    self._spares.append(prepare(self.folder, name, self.file_bytes))
            except OSError:
                return False
            return True

    def _fill_reserve(self) -> None:
        spare = self.take() or prepare(self.folder, RESERVE_NAME, self.file_bytes)
        self._keep([spare.replace(self._path)])

    def fill_reserve(self) -> None:
        """Have the reserve. Raises OSError."""
        with self._adding:
            if not self.has_reserve:
                self._fill_reserve()

    def _keep(self, paths: list[Path]) -> None:
        for path in paths:
            if path == self._path:
                self.has_reserve = True
            else:
                self._spares.append(path)
