"""The syncs of the log, one at a time, and the thread for those that nobody waits for.

A write that waits for no sync would otherwise wait behind the regular ones, so those have a thread
of their own. It makes spare files, too. No sync comes after one that failed: the kernel tells of
lost pages once, so a second sync would seem to have gone well (``decisions/0014``).

While the loop syncs, nobody is served. On a disk that syncs in 0.1 ms that costs less than two
wake-ups; on one that takes 10 ms the thread must do it (``decisions/0040``).

    DEAR --(after the pause, a sync of the thread within CHEAP_S)--> CHEAP: the loop syncs
      ^                                                                |
      '----(one above SLOW_S, or on average above CHEAP_S: pause)------'

The pause is PAUSE_PER_S times as long as the sync that ended the cheap time, so slow syncs take a
bounded share of the loop's time, whatever the disk is like. The thread's times are only believed
when they are short: in a busy process they contain the wait for the interpreter.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from topics.storage.folders import Check, unchecked
from topics.storage.wal.file import WalFile
from topics.storage.wal.progress import Progress, WriteState

CHEAP_S: Final = 0.001  # of a sync, on average
SLOW_S: Final = 0.003  # of a sync that the loop should not have made
AVERAGE_OVER: Final = 16  # syncs of the loop, about
PAUSE_PER_S: Final = 200.0  # so the loop loses 0.5 % of its time to slow syncs at most
PAUSE_MAX_S: Final = 60.0
STALE_S: Final = 10.0  # without any sync, nobody knows what the next one takes
NS_PER_US: Final = 1_000
NS_PER_S: Final = 1_000_000_000
Job = Callable[[], None]


class Syncer:
    """Syncs for the writer thread and the loop, which wait, and in a thread of its own, which
    reports.
    """

    def __init__(self, state: WriteState, check: Check = unchecked) -> None:
        self._state, self._check, self.pace = state, check, SyncPace()
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
        """Sync for the loop, which holds all syncs off. False: the log is broken, and cut."""
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


class SyncPace:
    """The state above. ``now`` is in seconds of one clock that never goes back."""

    __slots__ = ("_again_at", "_average_s", "_is_cheap", "_noted_at")

    def __init__(self) -> None:
        self._is_cheap = False
        self._average_s = 0.0  # of the loop's syncs, while CHEAP
        self._again_at = 0.0  # the end of the pause
        self._noted_at = 0.0  # when the last sync ended

    def is_cheap(self, now: float) -> bool:
        """Whether the loop may make a short sync at ``now``."""
        return self._is_cheap and now - self._noted_at < STALE_S

    def note(self, took_s: float, now: float, *, by_loop: bool) -> None:
        """A sync that took ``took_s`` has ended at ``now``."""
        self._noted_at = now
        if self._is_cheap and by_loop:
            self._average_s += (took_s - self._average_s) / AVERAGE_OVER
            if took_s > SLOW_S or self._average_s > CHEAP_S:
                self._is_cheap = False
                self._again_at = now + min(took_s * PAUSE_PER_S, PAUSE_MAX_S)
        elif not self._is_cheap and took_s <= CHEAP_S and now >= self._again_at:
            self._is_cheap, self._average_s = True, took_s
