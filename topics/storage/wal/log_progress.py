"""Progress of a shard's log: the LSNs up to which it is written, synced and reported to the loop,
and the error that stops all writing.

The loop, the writer thread and the syncer thread share one `WriteState`:

                                     .- no write in flight ------.
    WORKING --(write or sync fails)--+                           +--> cut --> BROKEN, reported
                                     '- the write in flight ends-'

In the state WORKING, each reported `LogProgress` raises ``reported``. Frames below this LSN may
have been acknowledged, so they are kept. After the first error, nothing more is written or
reported. All frames from ``reported`` on are refused. They are overwritten with zeros before the
error is reported to the loop, so that a restart does not find them (``decisions/0014``).
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import structlog

from topics.storage.wal.log_file import WalFile

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LogProgress:
    """How far the log has been written and synced.

    ``written`` is the LSN up to which the log has been passed to the kernel, and ``synced`` is the
    LSN up to which it is on the disk. ``write_ms`` and ``sync_ms`` are the durations of the write
    and the sync. If there is an ``error``, frames from ``written`` on are refused.
    """

    written: int
    synced: int
    write_ms: float
    sync_ms: float
    error: OSError | None = None


# Upper bounds (inclusive) of the buckets of sync times, in microseconds.
SYNC_BOUNDS_US: Final = (
    *(50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000),
    *(100_000, 250_000, 500_000, 1_000_000, 2_500_000, 10_000_000),
)


@dataclass(slots=True)
class WalCounters:
    """Counters since the startup of the process.

    ``sync_us`` has a count of syncs for each bucket of `SYNC_BOUNDS_US`, then the count of longer
    syncs, the sum of all times, and the number of syncs. ``loop_fsyncs`` counts the syncs that the
    loop has performed.
    """

    frames: int = 0
    batches: int = 0
    fsyncs: int = 0
    loop_fsyncs: int = 0
    bytes_written: int = 0
    rotations: int = 0
    sync_us: list[int] = field(default_factory=lambda: [0] * (len(SYNC_BOUNDS_US) + 3))

    def note_sync(self, took_us: int, *, by_loop: bool = False) -> None:
        """Count a sync. Only one thread at a time may call this."""
        self.fsyncs += 1
        self.loop_fsyncs += by_loop
        self.sync_us[bisect_left(SYNC_BOUNDS_US, took_us)] += 1
        self.sync_us[-2] += took_us
        self.sync_us[-1] += 1


class WriteState:
    """The written, synced and reported LSNs of a log. ``progress_fd`` is readable when `take` has
    progress to return.

    The lock guards the fields that specify whether a write is in flight and which LSN was reported.
    It is never held during a call that may wait for the disk.
    """

    def __init__(self, file: WalFile | None, lsn: int, counters: WalCounters) -> None:
        self.counters = counters
        self.written = self.synced = lsn
        # The first error; the contents of the file are unknown after it.
        self.broken: OSError | None = None
        self.progress_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._reported = lsn  # frames below this LSN count as written for the loop
        self._is_writing = False
        self._last_write = file, lsn  # the file of the last write, and the LSN at which it ends
        self._untaken: deque[LogProgress] = deque()

    @property
    def file(self) -> WalFile | None:
        """The most recently written file."""
        return self._last_write[0]

    def begin_write(self, file: WalFile, end: int) -> bool:
        """Record the start of a write up to the LSN ``end``. Return False if the log is broken.

        In that case, nothing may be written.
        """
        with self._lock:
            if self.broken is not None:
                return False
            self._is_writing, self._last_write = True, (file, end)
            return True

    def end_write(self, end: int, error: OSError | None, *, reported: bool) -> bool:
        """Record the end of the write. Return False if the log is broken. In that case, it is cut.

        If ``reported`` is true, the loop itself has written the frames and no sync needs to follow,
        so the frames count as reported.
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
        self._cut_and_report()  # also if a sync failed during the write
        return False

    def fail(self, error: OSError) -> None:
        """Break the log after an error that left the contents of the file unknown: refuse all
        unreported frames.

        Only the first error has an effect.
        """
        with self._lock:
            if self.broken is not None:
                return
            self.broken = error
            if self._is_writing:
                return  # `end_write` cuts the log and reports the error
        self._cut_and_report()

    def note_synced_group(self, lsn: int) -> bool:
        """Record that the loop has written and synced the log up to ``lsn``.

        Return False if the log is broken. In that case, it is cut.
        """
        with self._lock:
            if self.broken is not None:
                return False
            self._reported = max(self._reported, lsn)
            return True

    def report(self, progress: LogProgress) -> None:
        """Report progress to the loop, unless the log is broken."""
        with self._lock:
            if self.broken is not None:
                return
            self._reported = max(self._reported, progress.written)
            self.enqueue(progress)

    def enqueue(self, progress: LogProgress) -> None:
        """Queue the progress for `take` and wake the loop."""
        self._untaken.append(progress)
        os.eventfd_write(self.progress_fd, 1)

    def take(self) -> list[LogProgress]:
        """Return the progress since the last call, oldest first."""
        try:
            os.eventfd_read(self.progress_fd)
        except BlockingIOError:
            return []
        return [self._untaken.popleft() for _ in range(len(self._untaken))]

    def _cut_and_report(self) -> None:
        """Overwrite the refused frames with zeros, then report the error.

        No write may be in flight.
        """
        file, end = self._last_write
        assert self.broken is not None, "only a broken log is cut"
        if file is not None and end > self._reported:
            try:
                file.blank(self._reported, end)
            except OSError as failure:
                log.critical(
                    "failed frames not erased",
                    path=str(file.path),
                    offset=file.offset(self._reported),
                    error=str(failure),
                )
        self.enqueue(LogProgress(self._reported, self.synced, 0.0, 0.0, self.broken))
