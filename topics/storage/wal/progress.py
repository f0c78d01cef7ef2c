"""How far the log reaches: written, synced, reported to the loop; and the error that ends it.

The loop and both threads of the writer share one `WriteState`:

                                    .- nobody writes -----------.
    WORKING --(write or sync fails)-+                           +--> cut --> BROKEN, told
                                    '- the write under way ends-'

While WORKING, each `Progress` that is reported moves ``reported``: what ends there may have been
acknowledged, so it stays. After the first error nothing is written or reported any more. Everything
from ``reported`` on is refused, and zeros are written over it before the loop is told: a restart
finds no frame of it (``decisions/0014``).
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import structlog

from topics.storage.wal.file import WalFile

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the log reaches after a write.

    ``written``: LSN up to which it is in the kernel's hands. ``synced``: LSN up to which it is on
    the disk. The times are what both took.
    """

    written: int
    synced: int
    write_ms: float
    sync_ms: float
    error: OSError | None = None


# Upper ends of the buckets of sync times, in microseconds, ends included.
SYNC_BOUNDS_US: Final = (
    *(50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000),
    *(100_000, 250_000, 500_000, 1_000_000, 2_500_000, 10_000_000),
)


@dataclass(slots=True)
class WalCounters:
    """Since the start of the process. ``sync_us``: how many syncs took up to each of
    `SYNC_BOUNDS_US`, how many took longer, the sum of all times, and their number. ``loop_fsyncs``:
    how many of the syncs the loop made.
    """

    frames: int = 0
    batches: int = 0
    fsyncs: int = 0
    loop_fsyncs: int = 0
    bytes_written: int = 0
    rotations: int = 0
    sync_us: list[int] = field(default_factory=lambda: [0] * (len(SYNC_BOUNDS_US) + 3))

    def note_sync(self, took_us: int, *, by_loop: bool = False) -> None:
        """Count a sync. One thread at a time may."""
        self.fsyncs += 1
        self.loop_fsyncs += by_loop
        self.sync_us[bisect_left(SYNC_BOUNDS_US, took_us)] += 1
        self.sync_us[-2] += took_us
        self.sync_us[-1] += 1


class WriteState:
    """What is written, synced and reported. ``progress_fd`` is readable when `take` has something.

    The lock guards the words that say who writes and what was reported. It is never held during a
    call that may wait for the disk.
    """

    def __init__(self, file: WalFile | None, lsn: int, counters: WalCounters) -> None:
        self.counters = counters
        self.written = self.synced = lsn
        self.broken: OSError | None = None  # leaves the file in doubt; reported last
        self.progress_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._reported = lsn  # what ends here is written, for all that the loop knows
        self._is_writing = False
        self._last_write = file, lsn  # the file of the last write, and where the write was to end
        self._untaken: deque[Progress] = deque()

    @property
    def file(self) -> WalFile | None:
        """The most recently written file."""
        return self._last_write[0]

    def begin_write(self, file: WalFile, end: int) -> bool:
        """Before a write that ends at ``end``. False: the log is broken, nothing may be written."""
        with self._lock:
            if self.broken is not None:
                return False
            self._is_writing, self._last_write = True, (file, end)
            return True

    def end_write(self, end: int, error: OSError | None, *, reported: bool) -> bool:
        """After that write. False: the log is broken, and cut.

        ``reported``: the loop itself has written, so it knows, and no sync must follow.
        """
        with self._lock:
            self._is_writing = False
            self.broken = self.broken or error
            if self.broken is None:
                self.counters.batches += 1
                self.counters.bytes_written += end - self.written
                self.written = end
                if reported:
                    self._reported = end
                return True
        self._cut_and_tell()  # also for a sync that failed during the write
        return False

    def break_off(self, error: OSError) -> None:
        """An error left the file in doubt: refuse all that was not reported, once."""
        with self._lock:
            if self.broken is not None:
                return
            self.broken = error
            if self._is_writing:
                return  # `end_write` cuts and tells
        self._cut_and_tell()

    def note_synced_group(self, lsn: int) -> bool:
        """The loop has written and synced up to ``lsn``. False: the log is broken, and cut."""
        with self._lock:
            if self.broken is not None:
                return False
            self._reported = max(self._reported, lsn)
            return True

    def report(self, progress: Progress) -> None:
        """Tell the loop, unless the log is broken."""
        with self._lock:
            if self.broken is not None:
                return
            self._reported = max(self._reported, progress.written)
            self.tell(progress)

    def tell(self, progress: Progress) -> None:
        """Queue the progress for `take`."""
        self._untaken.append(progress)
        os.eventfd_write(self.progress_fd, 1)

    def take(self) -> list[Progress]:
        """The progress since the last call, oldest first."""
        try:
            os.eventfd_read(self.progress_fd)
        except BlockingIOError:
            return []
        return [self._untaken.popleft() for _ in range(len(self._untaken))]

    def _cut_and_tell(self) -> None:
        """Cut the refused frames, then tell of the error. Nobody writes any more."""
        file, end = self._last_write
        assert self.broken is not None, "only a broken log is cut"
        if file is not None and end > self._reported:
            try:
                file.blank(self._reported, end)
            except OSError as failure:
                log.critical(
                    "refused frames not cut off",
                    path=str(file.path),
                    offset=file.offset(self._reported),
                    error=str(failure),
                )
        self.tell(Progress(self._reported, self.synced, 0.0, 0.0, self.broken))
