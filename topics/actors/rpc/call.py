"""The caller's side of one RPC: the answer that a task waits for.

          answer, error, PeerGone
WAITING ---------------------------> OVER: the waiting task is woken, or the next wait() returns at
once; or then()'s function is called
   |        abandon(), cancelled
   +-------------------------------> OVER: the session forgets the call, a late answer is released
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import outcome
import trio
from trio.lowlevel import Abort, RaiseCancelT, Task

from topics.formats.wire.message import MessageFrame

if TYPE_CHECKING:
    from topics.actors.rpc.session import LinkSession


class RemoteError(Exception):
    """The peer answered with an error. ``code`` as in ADR 011 §7; from 2000 on it is the
    application's.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class RpcReply:
    """A successful answer. Whoever gets it calls ``release()`` when the attachment has been read."""

    __slots__ = ("_frame", "_session", "result")

    def __init__(self, result: Any, frame: MessageFrame, session: LinkSession) -> None:
        self.result = result
        self._frame = frame
        self._session = session

    @property
    def attachment(self) -> bytes | memoryview:
        """Valid until ``release()`` or the end of the session."""
        return self._frame.attachment

    def release(self) -> None:
        """Give the attachment's memory back to the peer; calling it again does nothing."""
        self._session.release(self._frame)


class Call:
    """A request that is under way. One task waits for it; waking it costs no event, no scope and no
    closure.
    """

    __slots__ = ("_answer", "_listener", "_over", "_session", "_task", "cid", "method", "patient")

    def __init__(self, cid: int, method: str, session: LinkSession) -> None:
        self.cid, self.method = cid, method
        self.patient = False  # it may wait long by its nature; the caller says so
        self._session = session
        self._task: Task | None = None  # the one that is parked in wait(), or was
        self._answer: outcome.Outcome[RpcReply] | None = None  # came before anybody waited
        self._listener: Callable[[outcome.Outcome[RpcReply]], None] | None = None
        self._over = False

    def then(self, listener: Callable[[outcome.Outcome[RpcReply]], None]) -> None:
        """Instead of a task that waits: call ``listener`` with the answer, from the loop that takes
        it out of the ring.
        """
        assert not self._over, "a call has just been made"
        self._listener = listener

    async def wait(self) -> RpcReply:
        """The reply. Raises RemoteError or PeerGone. When it is cancelled, the call is abandoned.

        RuntimeError when another task waits already, or the answer was taken or given up before.
        """
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

    async def wait_at_most(self, seconds: float) -> RpcReply:
        """``wait()``, and trio.TooSlowError after ``seconds``."""
        with trio.fail_after(seconds):
            return await self.wait()

    def abandon(self) -> None:
        """Nobody will wait: forget the call and tell the peer, or release the answer that came
        already.

        RuntimeError while a task waits: cancel that one instead.
        """
        if not self._over:
            if self._task is not None:
                raise RuntimeError(f"a task waits for call {self.cid}: cancel it instead")
            self._over = True
            self._session.forget_call(self.cid)
        elif isinstance(self._answer, outcome.Value):
            self._answer.value.release()
            self._answer = None

    def succeed(self, reply: RpcReply) -> None:
        self._settle(outcome.Value(reply))

    def fail(self, error: Exception) -> None:
        self._settle(outcome.Error(error))

    def _settle(self, answer: outcome.Outcome[RpcReply]) -> None:
        assert not self._over, "the session forgets a call before it settles it"
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
