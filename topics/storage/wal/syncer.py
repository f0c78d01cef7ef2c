"""Syncs of a shard's log, one at a time, and a thread for background syncs.

Frames for which no group requests a sync are synced in the background, within ``sync_ms``. A
separate thread performs these syncs, because the writer thread would otherwise delay its writes.
This thread also creates spare files. After a sync has failed, no further sync is performed: the
kernel reports lost pages only once, so a second sync would falsely succeed (``decisions/0014``).

While the loop syncs, it serves no requests. On a disk that syncs in 0.1 ms, this costs less than
the two wake-ups of a hand-over. On a disk that takes 10 ms, a thread must perform the sync
(``decisions/0040``). `SyncPace` selects the state:

    EXPENSIVE --(after the pause, a thread syncs within CHEAP_S)------> CHEAP: the loop syncs
      ^                                                                   |
      '------(one sync above SLOW_S, or the average above CHEAP_S)--------'

The pause lasts PAUSE_PER_S times the duration of the sync that ended the state CHEAP. This bounds
the share of the loop's time that slow syncs take, on any disk. Long times that a thread measures
are ignored, because in a busy process they include the wait for the interpreter lock.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from topics.storage.folders import Check, unchecked
from topics.storage.wal.log_file import WalFile
from topics.storage.wal.log_progress import LogProgress, WriteState

CHEAP_S: Final = 0.001  # the maximum average duration of syncs in the state CHEAP
SLOW_S: Final = 0.003  # the maximum duration of a single sync in the state CHEAP
AVERAGE_OVER: Final = 16  # the approximate number of loop syncs in the moving average
PAUSE_PER_S: Final = 200.0  # bounds the time that the loop spends in slow syncs to 0.5 %
PAUSE_MAX_S: Final = 60.0
STALE_S: Final = 10.0  # after this time without a sync, the duration of the next sync is unknown
NS_PER_US: Final = 1_000
NS_PER_S: Final = 1_000_000_000
Job = Callable[[], None]


class Syncer:
    """Syncs the log. The loop and the writer thread call blocking methods. A separate thread
    performs background syncs and reports their progress.
    """

    def __init__(self, state: WriteState, check: Check = unchecked) -> None:
        self._state, self._check, self.pace = state, check, SyncPace()
        self._lock = threading.Lock()  # held during a sync and while its result is recorded
        self.is_syncing = self._lock.locked  # called before each short write, so it must be fast
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="wal syncer", daemon=True)

    def start(self) -> None:
        """Start the syncer thread."""
        self._thread.start()

    def sync(self, file: WalFile, lsn: int) -> bool:
        """Sync the log up to ``lsn``. Return False if a sync has failed and the log is broken."""
        with self._lock:
            return self._sync(file, lsn, by_loop=False)

    def try_acquire(self) -> bool:
        """Hold off all other syncs until `release`. Return False if a sync is in flight.

        This is for the loop, which must not block.
        """
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Allow other syncs again, after `try_acquire`."""
        self._lock.release()

    def sync_acquired(self, file: WalFile, lsn: int) -> bool:
        """Sync for the loop, which holds off all other syncs.

        Return False if the log is broken. In that case, its refused frames are cut.
        """
        return self._sync(file, lsn, by_loop=True)

    def _sync(self, file: WalFile, lsn: int, *, by_loop: bool) -> bool:
        state = self._state
        if state.broken is not None:
            return False
        if lsn > state.synced:
            began = time.perf_counter_ns()
            try:
                self._check(quick=True)
                file.sync()
            except OSError as error:
                # Record the failure while the lock is held, so that no other sync starts before.
                state.fail(error)
                return False
            state.synced = lsn
            ended = time.perf_counter_ns()
            state.counters.note_sync((ended - began) // NS_PER_US, by_loop=by_loop)
            self.pace.note((ended - began) / NS_PER_S, ended / NS_PER_S, by_loop=by_loop)
        return True

    def sync_later(self, file: WalFile, lsn: int) -> None:
        """Queue a sync of the log up to ``lsn`` for the thread, which reports its progress."""
        self.run_later(partial(self._sync_and_report, file, lsn))

    def run_later(self, job: Job) -> None:
        """Queue a job for the thread. It may take a long time, and must not raise."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Finish the queued jobs, then stop the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _sync_and_report(self, file: WalFile, lsn: int) -> None:
        """Sync and report, unless another sync has covered ``lsn`` in the meantime."""
        began = time.perf_counter()
        if lsn > self._state.synced and self.sync(file, lsn):
            sync_ms = (time.perf_counter() - began) * 1000
            self._state.report(LogProgress(lsn, lsn, 0.0, sync_ms))


class SyncPace:
    """The state machine in the module docstring. ``now`` is the time of a monotonic clock in
    seconds.
    """

    __slots__ = ("_again_at", "_average_s", "_is_cheap", "_noted_at")

    def __init__(self) -> None:
        self._is_cheap = False
        self._average_s = 0.0  # average duration of the loop's syncs; used only in the CHEAP state
        self._again_at = 0.0  # time at which the pause ends
        self._noted_at = 0.0  # time at which the last sync ended

    def is_cheap(self, now: float) -> bool:
        """Return whether the loop may perform a short sync at ``now``."""
        return self._is_cheap and now - self._noted_at < STALE_S

    def note(self, took_s: float, now: float, *, by_loop: bool) -> None:
        """Record a sync that took ``took_s`` and ended at ``now``."""
        self._noted_at = now
        if self._is_cheap and by_loop:
            self._average_s += (took_s - self._average_s) / AVERAGE_OVER
            if took_s > SLOW_S or self._average_s > CHEAP_S:
                self._is_cheap = False
                self._again_at = now + min(took_s * PAUSE_PER_S, PAUSE_MAX_S)
        elif not self._is_cheap and took_s <= CHEAP_S and now >= self._again_at:
            self._is_cheap, self._average_s = True, took_s
