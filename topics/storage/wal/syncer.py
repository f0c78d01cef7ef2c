"""The syncs of the log, one at a time, and the thread for those that nobody waits for.

A write that waits for no sync would otherwise wait behind the regular ones, so those have a thread
of their own. It makes spare files, too. No sync comes after one that failed: the kernel tells of
lost pages once, so a second sync would seem to have gone well (``decisions/0014``).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from topics.storage.wal.file import WalFile
from topics.storage.wal.pace import SyncPace
from topics.storage.wal.progress import Progress, WriteState

NS_PER_US: Final = 1_000
NS_PER_S: Final = 1_000_000_000
Job = Callable[[], None]


class Syncer:
    """Syncs for the writer thread and the loop, which wait, and in a thread of its own, which
    reports.
    """

    def __init__(self, state: WriteState) -> None:
        self._state, self.pace = state, SyncPace()
        self._lock = threading.Lock()  # held during a sync and while its outcome is noted
        self.is_syncing = self._lock.locked  # asked before each short write: no call in between
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="wal syncer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def sync(self, file: WalFile, lsn: int) -> bool:
        """Sync what was written before ``lsn``. False: a sync has failed, and the log is broken."""
        with self._lock:
            return self._sync(file, lsn, by_loop=False)

    def try_hold(self) -> bool:
        """Keep all syncs off until `release`; False when one is under way. For the loop, which does
        not wait.
        """
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Let others sync again, after `try_hold`."""
        self._lock.release()

    def sync_held(self, file: WalFile, lsn: int) -> bool:
        """As `sync`, between `try_hold` and `release`."""
        return self._sync(file, lsn, by_loop=True)

    def _sync(self, file: WalFile, lsn: int, *, by_loop: bool) -> bool:
        state = self._state
        if state.broken is not None:
            return False
        if lsn > state.synced:
            began = time.perf_counter_ns()
            try:
                file.sync()
            except OSError as error:
                state.break_off(error)  # before the lock is free: no other sync comes between
                return False
            state.synced = lsn
            ended = time.perf_counter_ns()
            state.counters.note_sync((ended - began) // NS_PER_US, by_loop=by_loop)
            self.pace.note((ended - began) / NS_PER_S, ended / NS_PER_S, by_loop=by_loop)
        return True

    def sync_later(self, file: WalFile, lsn: int) -> None:
        """Have the thread sync what was written before ``lsn``, and report it."""
        self.run_later(partial(self._sync_and_report, file, lsn))

    def run_later(self, job: Job) -> None:
        """Have the thread do a job that may take long and raises nothing."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Do what was asked for, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _sync_and_report(self, file: WalFile, lsn: int) -> None:
        """A file that was synced up to there meanwhile is not touched again."""
        began = time.perf_counter()
        if lsn > self._state.synced and self.sync(file, lsn):
            sync_ms = (time.perf_counter() - began) * 1000
            self._state.report(Progress(lsn, lsn, 0.0, sync_ms))
