"""The parts of the client for threads that use threads and signals, and are not generated.

`topics.client.tasks` has the same names with the prefix ``Async``.
"""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable
from contextlib import nullcontext as shielded
from threading import Lock
from types import FrameType
from typing import Any, TypeVar

from topics.client.calls import Caller
from topics.client.producer import Producer

__all__ = ["Background", "Lock", "Producing", "shielded"]
T = TypeVar("T")


class Producing:
    """The base class of `Topic`."""

    client: Caller
    name: str

    def producer(
        self,
        *,
        linger: float = 0.02,
        max_records: int = 1000,
        max_bytes: int = 1 << 20,
        max_unacked: int = 8 << 20,
        name: str | None = None,
    ) -> Producer:
        """Many single appends as few requests (`Producer`)."""
        return Producer(
            self.client,
            self.name,
            linger=linger,
            max_records=max_records,
            max_bytes=max_bytes,
            max_unacked=max_unacked,
            name=name or uuid.uuid4().hex,
        )


class _Ended(BaseException):
    """SIGTERM arrived while the worker waited for jobs."""


class Background:
    """The base class of `Worker`: its background thread and its stop. In the main thread, SIGTERM
    stops the worker after the current job.
    """

    def __init__(self, name: str) -> None:
        self._is_stopped, self._done = False, threading.Event()
        self._stopping = threading.Condition()  # reentrant: SIGTERM may come while it is held
        self._is_waiting = False  # in the main thread, for jobs
        self._name = name
        self._thread: threading.Thread
        self._before: Any = None

    def stop(self) -> None:
        """Claim no more jobs. Loops end after their current job."""
        with self._stopping:
            self._is_stopped = True
            self._stopping.notify_all()

    def is_stopped(self, wait_s: float = 0.0) -> bool:
        """Wait up to ``wait_s`` s and return whether the worker is stopped."""
        with self._stopping:
            return self._stopping.wait_for(lambda: self._is_stopped, wait_s)

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self.stop()
        if self._is_waiting:
            raise _Ended

    def _begin(self, keep: Callable[[], None]) -> None:
        """Run ``keep`` until `_end`."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_sigterm)
        self._thread = threading.Thread(target=keep, name=self._name, daemon=True)
        self._thread.start()

    def _end(self) -> None:
        self._done.set()
        self._thread.join()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _ends_within(self, wait_s: float) -> bool:
        """Wait, and return whether `_end` was called."""
        return self._done.wait(wait_s)

    def _unless_stopped(self, call: Callable[[], list[T]]) -> list[T]:
        """Return the result of ``call``, or nothing if the worker is stopped first."""
        try:
            self._is_waiting = threading.current_thread() is threading.main_thread()
            if self._is_stopped:  # SIGTERM may have arrived just before, and would not end the wait
                return []
            return call()
        except _Ended:
            return []
        finally:
            self._is_waiting = False
