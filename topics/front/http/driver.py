"""The driver of a connection: resumes its coroutine, in steps or in a task of its own.

                   in_task                        a task is started
    STEPPING ---------------------------> IN_TASK
      |  ^  ^                                |  '-- it is over, or cancelled --> OVER
      |  |  '------------ in_steps ----------'
      |  |
      |  '-- its socket is readable -- READING     the poller watches the socket
      |  '-- its answer has come ----- CALLING     a link session has the call
      '-- it is over --> OVER

    A client that hangs up while its connection ``waits`` is noticed in every state.

    end    READING, CALLING    the coroutine is closed at once: GeneratorExit
           STEPPING            the same after this step
           IN_TASK             the task is cancelled

A step never waits and never raises. A coroutine that waits for trio while it is stepped gets a
RuntimeError, which ends its request and nothing else.
"""

from __future__ import annotations

import logging
import select
import types
from collections.abc import Callable, Coroutine, Generator
from enum import Enum, auto
from typing import Any, Protocol

import trio

from topics.actors.rpc.stepping import NOW, Command
from topics.front.http.connection import GONE, HALF_CLOSED, Connection

LOG = logging.getLogger("topics.front")

INPUT = select.EPOLLIN | HALF_CLOSED
READ, ANSWER, TASK, STEPS = Command.READ, Command.ANSWER, Command.TASK, Command.STEPS


class State(Enum):
    """Where the coroutine is."""

    STEPPING = auto()
    READING = auto()
    CALLING = auto()
    IN_TASK = auto()
    OVER = auto()


class Watcher(Protocol):
    """Tells drivers that their sockets have input (`topics.front.http.poller`)."""

    def watch(self, driver: Driver, events: int) -> None:
        """Call `Driver.ready` when one of the ``events`` of epoll happens, or the client is gone,
        from now on. Raises OSError.
        """

    def leave(self, driver: Driver) -> None:
        """Stop calling `Driver.ready`."""

    def start(self, driver: Driver) -> bool:
        """Start a task that runs `Driver.run_in_task`; False when the server is over."""


class Driver:
    """Drives the coroutine of one connection; ``watched`` is the watcher's: the events that it
    watches for, None while it does not.
    """

    __slots__ = (
        "__weakref__",
        "_coroutine",
        "_resume",
        "_scope",
        "_state",
        "_watcher",
        "connection",
        "fd",
        "watched",
    )

    def __init__(self, connection: Connection, watcher: Watcher) -> None:
        self.connection = connection
        self.fd = connection.fd
        self.watched: int | None = None
        self._watcher = watcher
        self._scope = trio.CancelScope()
        self._state = State.STEPPING
        self._coroutine: Coroutine[Any, Any, None]
        self._resume: Callable[[Any], Any]  # its `send`
        connection.driver = self

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine up to its first wait."""
        self._coroutine, self._resume = coroutine, coroutine.send
        self._step(None)

    def ready(self, events: int) -> None:
        """The socket has input, or the client has hung up. What would be reported again and again
        is not watched for any more.
        """
        connection = self.connection
        if self._state is State.READING:
            self._step(None)
        elif not connection.waits:
            self._watcher.leave(self)
        elif events & GONE:
            self._watcher.leave(self)
            connection.cut()
        elif events & HALF_CLOSED:
            self._watch(0)
            connection.probe()
        else:
            self._watch(HALF_CLOSED)

    def watch_hang_up(self) -> None:
        """As `topics.front.http.connection.Driver.watch_hang_up`."""
        if self.watched is None or not self.watched & HALF_CLOSED:
            self._watch(HALF_CLOSED)

    def answered(self, answer: object) -> None:
        """As `topics.actors.rpc.stepping.Driver.answered`."""
        assert self._state is State.CALLING, "a call is answered once"
        self._step(answer)

    def failed(self, error: Exception) -> None:
        """As `topics.actors.rpc.stepping.Driver.failed`."""
        assert self._state is State.CALLING, "a call fails once"
        self._throw(error)

    def end(self) -> None:
        """As `topics.front.http.connection.Driver.end`; `Connection.is_ended` is set."""
        if self._state is State.IN_TASK:
            self._scope.cancel()
        elif self._state in (State.READING, State.CALLING):
            self._close()

    def leave(self) -> None:
        """The socket is about to be closed: the next one may get its descriptor at once."""
        if self.watched is not None:
            self._watcher.leave(self)

    def _step(self, value: object) -> None:
        before, NOW.driver = NOW.driver, self
        self._state = State.STEPPING
        try:
            asked = self._resume(value)
        except StopIteration:
            self._state = State.OVER
            return
        except Exception:
            self._state = State.OVER
            LOG.exception("unexpected server error: connection")
            return
        finally:
            NOW.driver = before
        if self.connection.is_ended:
            self._close()
        elif asked is ANSWER:
            self._state = State.CALLING
        elif asked is READ:
            self._state = State.READING
            if self.watched != INPUT:
                self._watch(INPUT)
        else:
            self._leave_steps(asked)

    def _watch(self, events: int) -> None:
        try:
            self._watcher.watch(self, events)
        except OSError:  # no memory for it
            self.connection.end_idle()

    def _leave_steps(self, asked: object) -> None:
        if asked is not TASK:
            LOG.error("unexpected server error: %r waited for without a task", asked)
            self._throw(RuntimeError("in_task() must come before a wait for trio"))
        elif self._watcher.start(self):
            self._state = State.IN_TASK
        else:
            self._close()

    def _throw(self, error: Exception) -> None:
        """A step that begins with an exception."""
        self._resume, send = self._coroutine.throw, self._resume
        try:
            self._step(error)
        finally:
            self._resume = send

    def _close(self) -> None:
        before, NOW.driver = NOW.driver, self
        self._state = State.STEPPING
        try:
            self._coroutine.close()
        except Exception:
            LOG.exception("unexpected server error: connection")
        finally:
            NOW.driver = before
            self._state = State.OVER

    async def run_in_task(self) -> None:
        """Go on with the coroutine, as the task that calls this."""
        is_over = True
        try:
            with trio.CancelScope() as self._scope:
                if self.connection.is_ended:
                    self._scope.cancel()
                is_over = await _forwarded(self._coroutine)
        except Exception:
            LOG.exception("unexpected server error: connection")
        if is_over:
            self._state = State.OVER
        elif self.connection.is_ended:
            self._close()
        else:
            self._step(None)


@types.coroutine
def _forwarded(coroutine: Coroutine[Any, Any, None]) -> Generator[Any, Any, bool]:
    """Run the coroutine inside this one: trio sees its waits as those of the task. Returns whether
    it is over; False when it asks to be stepped again.
    """
    error: BaseException | None = None
    value = None
    try:
        while True:
            asked = coroutine.send(value) if error is None else coroutine.throw(error)
            if asked is STEPS:
                return False
            error = None
            try:
                value = yield asked
            except BaseException as thrown:
                error = thrown
    except StopIteration:
        return True
    finally:
        del error  # its traceback has this frame
