"""The caller's side of one RPC: a pending call and its reply.

         answer, error, PeerGone
WAITING --------------------------> OVER  the waiting task wakes, or the stepped coroutine goes
   |                                      on, or the next `wait` returns at once, or the listener
   |                                      of `then` is called
   |     abandon(), cancelled
   +------------------------------> OVER  the session forgets the call; a late answer is released,
                                          or goes to `on_late`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import outcome
import trio
from trio.lowlevel import Abort, RaiseCancelT, Task

from topics.actors.rpc.stepping import NOW, Command, Driver, command
from topics.formats.wire.message import Message


class RemoteError(Exception):
    """The peer answered with an error. ``code`` as in ADR 011 §7; from 2000 on application."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class CallOwner(Protocol):
    """The link session, as its pending calls see it."""

    def forget_call(self, cid: int) -> None:
        """Nobody waits for the call any more."""

    def release(self, message: Message) -> None:
        """Give the attachment's memory back to the peer."""


class RpcReply(msgspec.Struct, frozen=True, eq=False):
    """A successful answer. Its receiver calls `release` when it has read the attachment."""

    result: Any
    _message: Message
    _owner: CallOwner

    @property
    def attachment(self) -> bytes | memoryview:
        """Valid until `release` or the end of the session."""
        return self._message.attachment

    def release(self) -> None:
        """Give the attachment's memory back to the peer. Does nothing the second time."""
        self._owner.release(self._message)


class PendingCall:
    """A request under way. One task or stepped coroutine waits for it; waking it costs no event, no
    scope and no closure.
    """

    __slots__ = (
        "_answer",
        "_driver",
        "_listener",
        "_over",
        "_owner",
        "_task",
        "cid",
        "is_patient",
        "method",
        "on_late",
    )

    def __init__(self, cid: int, method: str, owner: CallOwner) -> None:
        self.cid, self.method = cid, method
        self.is_patient = False  # the answer may take long by its nature; the caller says so
        # Called with an answer that nobody waits for any more, and that takes effect all the same.
        self.on_late: Callable[[RpcReply], None] | None = None
        self._owner = owner
        self._task: Task | None = None  # the one that waits, or did
        self._answer: outcome.Outcome[RpcReply] | None = None  # came before anybody waited
        self._listener: Callable[[outcome.Outcome[RpcReply]], None] | None = None
        self._driver: Driver | None = None  # of the stepped coroutine that waits, or did
        self._over = False

    @property
    def is_over(self) -> bool:
        """Answered, failed or abandoned."""
        return self._over

    def then(self, listener: Callable[[outcome.Outcome[RpcReply]], None]) -> None:
        """Instead of a task that waits: call ``listener`` with the answer, in the loop that reads
        the ring.
        """
        assert not self._over, "then() follows the request at once"
        self._listener = listener

    async def wait(self) -> RpcReply:
        """The reply. Raises RemoteError or PeerGone. Cancelling it abandons the call.

        RuntimeError when another task waits, or the answer was taken or abandoned before.
        """
        driver = NOW.driver
        if driver is not None:
            return await self._stepped(driver)
        answer = self._answer
        if answer is not None:
            try:
                await trio.lowlevel.checkpoint()
            except BaseException:
                self.abandon()
                raise
            self._answer = None
            return answer.unwrap()
        if self._over or self._task is not None:
            raise RuntimeError(f"call {self.cid} is over, or another task waits for it")
        self._task = trio.lowlevel.current_task()
        reply: RpcReply = await trio.lowlevel.wait_task_rescheduled(self._abort)
        return reply

    async def _stepped(self, driver: Driver) -> RpcReply:
        """No `outcome` is made of the answer: it costs as much as a step."""
        if (answer := self._answer) is not None:
            self._answer = None
            return answer.unwrap()
        if self._over or self._driver is not None:
            raise RuntimeError(f"call {self.cid} is over, or another coroutine waits for it")
        self._driver = driver
        try:
            reply: RpcReply = await command(Command.ANSWER)
        except BaseException:  # it has failed, or the client is gone
            self.abandon()
            raise
        return reply

    async def wait_at_most(self, seconds: float) -> RpcReply:
        """As `wait`; raises trio.TooSlowError after ``seconds``."""
        with trio.fail_after(seconds):
            return await self.wait()

    def abandon(self) -> None:
        """Forget the call and tell the peer, or release an answer that nobody has taken.

        RuntimeError while a task waits: cancel that task instead.
        """
        if not self._over:
            if self._task is not None:
                raise RuntimeError(f"a task waits for call {self.cid}: cancel it instead")
            self._over = True
            self._owner.forget_call(self.cid)
        elif isinstance(self._answer, outcome.Value):
            self.take_late(self._answer.value)
            self._answer = None

    def take_late(self, reply: RpcReply) -> None:
        """An answer that nobody waits for."""
        if self.on_late is not None:
            self.on_late(reply)
        reply.release()

    def succeed(self, reply: RpcReply) -> None:
        """The answer has come."""
        if self._driver is None:
            self._settle(outcome.Value(reply))
        else:
            self._end_stepped().answered(reply)

    def fail(self, error: Exception) -> None:
        """The call fails with ``error``."""
        if self._driver is None:
            self._settle(outcome.Error(error))
        else:
            self._end_stepped().failed(error)

    def _end_stepped(self) -> Driver:
        assert not self._over, "a session forgets a call before it settles it"
        assert self._driver is not None, "a stepped coroutine waits"
        self._over = True
        return self._driver

    def _settle(self, answer: outcome.Outcome[RpcReply]) -> None:
        assert not self._over, "a session forgets a call before it settles it"
        self._over = True
        if self._listener is not None:
            self._listener(answer)
        elif self._task is None:
            self._answer = answer
        else:
            trio.lowlevel.reschedule(self._task, answer)

    def _abort(self, _raise_cancel: RaiseCancelT) -> Abort:
        self._task = None
        self.abandon()
        return Abort.SUCCEEDED
