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

from topics.storage.wal.file import WalFile
from topics.storage.wal.progress import Progress, WriteState

Job = Callable[[], None]


class Syncer:
    """Syncs for the writer thread, which waits, and in a thread of its own, which reports."""

    def __init__(self, state: WriteState) -> None:
        self._state = state
        self._lock = threading.Lock()  # held during a sync and while its outcome is noted
        self.is_syncing = self._lock.locked  # asked before each short write: no call in between
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="wal syncer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def sync(self, file: WalFile, lsn: int) -> bool:
        """Sync what was written before ``lsn``. False: a sync has failed, and the log is broken."""
        state = self._state
        with self._lock:
            if state.broken is not None:
                return False
            if lsn > state.synced:
                try:
                    file.sync()
                except OSError as error:
                    state.break_off(error)  # before the lock is free: no other sync comes between
                    return False
                state.synced = lsn
                state.counters.fsyncs += 1
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
