"""The parts of the client for threads that use threads and signals, and are not generated.

`topics.client.tasks` has the same names with the prefix ``Async``.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from contextlib import nullcontext as shielded
from threading import Lock
from time import monotonic
from types import FrameType
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet, ref

import httpcore2

from topics.client.calls import LOG, SHUTDOWN_S
from topics.client.errors import TopicsError
from topics.client.http import shut_down

__all__ = [
    "Abortable",
    "Background",
    "Lock",
    "Monitor",
    "Opened",
    "Sending",
    "Sent",
    "Stop",
    "Working",
    "alongside",
    "connect",
    "sent",
    "shielded",
]
T = TypeVar("T")
EXIT_FLUSH_MAX_S: Final = 5.0  # time to send the records that a program has not flushed
Sent = Future


class Opened(Generic[T]):
    """The open streams of a client. An abandoned stream is closed when its last reference is
    dropped. A thread may iterate while others add and discard, which a `WeakSet` does not permit.
    """

    def __init__(self) -> None:
        self._refs = set[ref[T]]()

    def add(self, stream: T) -> None:
        """Add a stream."""
        self._refs.add(ref(stream, self._refs.discard))

    def discard(self, stream: T) -> None:
        """Remove a stream."""
        self._refs.discard(ref(stream))

    def __iter__(self) -> Iterator[T]:
        for each in self._refs.copy():
            if (stream := each()) is not None:
                yield stream


class Stop:
    """A request to stop. It also interrupts the waits and calls that are in progress."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # reentrant, because a signal handler may call `set`
        self._is_set = False
        self._aborts: list[Callable[[], None]] = []

    def set(self) -> None:
        """Stop."""
        with self._changed:
            self._is_set = True
            self._changed.notify_all()
            aborts = [*self._aborts]
        for abort in aborts:
            abort()

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` s and return whether `set` was called."""
        with self._changed:
            return self._changed.wait_for(self.is_set, timeout_s)

    def interrupts(
        self, call: Callable[[], T], abort: Callable[[], None], timeout_s: float | None = None
    ) -> T | None:
        """Return the result of ``call``, or None if it is stopped or times out first. ``abort``
        must make the call raise `TopicsError`.
        """
        with self._changed:
            if self._is_set:
                return None
            self._aborts.append(abort)
        timer = _Timer(timeout_s, abort)
        try:
            with timer:
                return call()
        except TopicsError:
            if self._is_set or timer.is_over:
                return None
            raise
        finally:
            with self._changed:
                self._aborts.remove(abort)
                self._changed.notify_all()

    def wait_until_interrupted(self) -> None:
        """After `set`, wait until the calls have ended, so that their sockets can be closed.

        If a socket is closed while another thread reads from it, the thread may read from a new
        socket with the same number.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._aborts, SHUTDOWN_S)


class Abortable:
    """The base class of `Pool`: makes the calls that are waiting in other threads fail."""

    def __init__(self) -> None:
        self._is_aborted = False
        self._streams = Opened[_Stream]()

    def abort(self) -> None:
        """Make all waiting calls and all later calls fail. A signal handler may call this."""
        self._is_aborted = True
        for stream in self._streams:
            stream.shut_down()

    def _opened(self, stream: httpcore2.NetworkStream) -> httpcore2.NetworkStream:
        """Return a stream that `abort` shuts down, even if `abort` was called before."""
        opened = _Stream(stream, self._opened)
        self._streams.add(opened)
        if self._is_aborted:  # checked after the addition, because `abort` sets it before the loop
            opened.shut_down()
        return opened


class _Stream(httpcore2.NetworkStream):
    """A network stream that other threads may shut down. ``opened`` adds the TLS stream."""

    def __init__(
        self,
        stream: httpcore2.NetworkStream,
        opened: Callable[[httpcore2.NetworkStream], httpcore2.NetworkStream],
    ) -> None:
        self._stream, self._opened, self._pid = stream, opened, os.getpid()
        self._socket = stream.get_extra_info("socket")
        self.read, self.write = stream.read, stream.write  # type: ignore[method-assign]
        self.get_extra_info = stream.get_extra_info  # type: ignore[method-assign]

    def shut_down(self) -> None:
        """Make all reads and writes fail. Do nothing in a forked process, because the connection
        belongs to its parent.
        """
        if self._pid == os.getpid():
            shut_down(self._socket)

    def close(self) -> None:
        self._stream.close()

    def start_tls(self, *arguments: Any, **options: Any) -> httpcore2.NetworkStream:
        # TLS replaces the socket object, so keep a duplicate that can be shut down until then.
        self._socket = self._socket.dup()
        try:
            return self._opened(self._stream.start_tls(*arguments, **options))
        finally:
            self._socket.close()


class _Timer:
    """Calls ``abort`` in ``timeout_s`` s, unless the block ends first."""

    def __init__(self, timeout_s: float | None, abort: Callable[[], None]) -> None:
        self.is_over, self._abort = False, abort
        self._timer = None if timeout_s is None else threading.Timer(timeout_s, self._run)

    def _run(self) -> None:
        self.is_over = True
        self._abort()

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Monitor(threading.Condition):
    """A condition with timeouts."""

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until ``is_true()``, up to ``timeout_s`` s. Return its last value."""
        return self.wait_for(is_true, timeout_s)


def sent() -> Future[Any]:
    """Return a future for the result of a send that is in progress and cannot be cancelled."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class Background:
    """A daemon thread that runs in the background from `_begin` to `_end`."""

    def __init__(self, name: str) -> None:
        self._name, self._done = name, threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def _begin(self, run: Callable[[], None]) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()

    def _end(self) -> None:
        """Stop the thread. Do not wait long for it, because it may be blocked in a request."""
        self._done.set()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(SHUTDOWN_S)

    def _wait_for_end(self, wait_s: float) -> bool:
        """Wait, and return whether `_end` was called."""
        return self._done.wait(wait_s)


class Sending(Background):
    """The base class of `Producer` and `Publisher`: a thread, which does not require a ``with``
    block. Records that have not been flushed when the program exits are sent at that time, for up
    to `EXIT_FLUSH_MAX_S`.
    """

    _run: Callable[[], None]
    close: Callable[[float | None], None]
    _starting = Lock()

    def _enter(self) -> None:
        """Start the thread, unless a send has started it."""
        self._start_sending()

    def _start_sending(self) -> None:
        """Start the thread once. Raise `RuntimeError` after a fork, because the child has no
        thread.
        """
        if self._pid != os.getpid():
            raise RuntimeError(f"{self._name} belongs to process {self._pid}, not to this one")
        with self._starting:
            if self._thread is None:
                self._begin(self._run)
                _SENDING.add(self)

    def _end(self) -> None:
        _SENDING.discard(self)
        super()._end()


_SENDING: Final = WeakSet[Sending]()
os.register_at_fork(after_in_child=_SENDING.clear)


@atexit.register
def _close_all() -> None:
    until = monotonic() + EXIT_FLUSH_MAX_S
    for each in [*_SENDING]:
        LOG.warning("%s not closed before exit, its records are sent now", each._name)  # noqa: SLF001
        try:
            each.close(max(until - monotonic(), 0.1))
        except ExceptionGroup as failures:
            LOG.error("records not sent before exit: %s", failures)


class Working(Background):
    """The base class of `Worker`: stops the worker and runs handlers concurrently. In the main
    thread, SIGTERM stops the worker after the current jobs.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._stop = Stop()
        self._before: Any = None

    def stop(self) -> None:
        """Stop claiming jobs. Loops exit after their current job."""
        self._stop.set()

    def is_stopped(self, wait_s: float = 0.0) -> bool:
        """Wait up to ``wait_s`` s and return whether the worker is stopped."""
        return self._stop.wait(wait_s)

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self.stop()

    def _begin(self, run: Callable[[], None]) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_sigterm)
        super()._begin(run)

    def _end(self) -> None:
        super()._end()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _run_concurrently(self, run: Callable[[], None], concurrency: int) -> None:
        """Run ``run`` in several threads, or in this one. Raise the first failure."""
        if concurrency == 1:
            run()
            return
        failures: list[BaseException] = []

        def guarded() -> None:
            try:
                run()
            except BaseException as failure:
                failures.append(failure)
                self.stop()

        threads = [threading.Thread(target=guarded, daemon=True) for _ in range(concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


@contextmanager
def alongside(run: Callable[[], None], socket: Any) -> Iterator[None]:
    """Run ``run``, which reads from a socket, in a thread alongside the block."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        socket.close()
        thread.join(SHUTDOWN_S)


def connect(url: str, **options: Any) -> AbstractContextManager[Any]:
    """Open a WebSocket."""
    from websockets.sync.client import connect as connect_socket

    connection: AbstractContextManager[Any] = connect_socket(url, **options)
    return connection
