"""Dispatcher: runs the operation of an admitted request and converts every failure to a response.

An operation of the data plane is a plain function that calls a shard and continues in a callback:

    operation(context, request, body, at, then)

It calls ``then`` with the response or the failure exactly once, possibly before it returns. It
returns the call in flight if the call can be abandoned, otherwise None. Or it returns a coroutine,
whose result is the response; then it does not call ``then``.

Requests of the admin plane are served by coroutines (`topics.front.admin`). `Dispatcher.awaited`
also completes their responses.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

import structlog
import trio

from topics.actors.shard_client.readiness import Readiness
from topics.errors import Internal, NotReady, TopicsError
from topics.front.answers import Answer
from topics.front.error_answers import error_answer
from topics.front.request import Body, Request
from topics.front.route import Route
from topics.front.server_timing import server_timing

COMPRESS_MIN_BYTES = 1024  # below this length, the header field costs more than gzip saves
GZIP_LEVEL = 1  # the fastest level, because a large response must not block the loop
STEP_BYTES = 64 * 1024
WBITS_GZIP = 31
GZIP_HEADERS = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))


async def compressed(answer: Answer) -> Answer:
    """Return the response with a gzipped body, or unchanged if it is short.

    Raise `NotReady` if the shard goes down and its successor needs the memory that holds the body.
    """
    if len(answer.body) < COMPRESS_MIN_BYTES:
        return answer
    try:
        with trio.CancelScope() as scope:
            answer.on_reclaim(scope.cancel)
            body = await _gzip(memoryview(answer.body))
            headers = (*answer.headers, *GZIP_HEADERS)
            packed = Answer(answer.status, body, headers=headers, media_type=answer.media_type)
            packed.on_unsent = answer.on_unsent
            return packed
        raise NotReady("the shard of this topic has stopped")
    except BaseException:
        answer.unsent()
        raise
    finally:
        answer.done()


async def _gzip(view: memoryview) -> bytes:
    """Compress the data in steps, so that other tasks run in between."""
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, WBITS_GZIP)
    parts = []
    for start in range(0, len(view), STEP_BYTES):
        parts.append(packer.compress(view[start : start + STEP_BYTES]))
        await trio.lowlevel.checkpoint()
    parts.append(packer.flush())
    return b"".join(parts)


log = structlog.get_logger()

# A callback that is called once, with the response or the failure.
OnResult: TypeAlias = Callable[[Answer | TopicsError], None]


class Pending(Protocol):
    """A call to a shard that is in flight."""

    def abandon(self) -> None:
        """Drop the result. Does nothing if the result has arrived."""


# The result of an operation; see the module's description.
PendingResult: TypeAlias = Pending | Coroutine[Any, Any, Answer] | None
Operation: TypeAlias = Callable[..., Any]


class Dispatcher:
    """Runs the operations of the data plane, and completes the responses of both planes."""

    def __init__(
        self, operations: Mapping[Route, Operation], readiness: Callable[[], Readiness]
    ) -> None:
        self.operations, self._readiness = operations, readiness

    async def run(self, request: Request, body: Body, at: int) -> Answer:
        """Run a request of the data plane in a task. Takes ownership of ``body``.

        ``at`` is the time at which the front had received the complete request, in monotonic ns.
        """
        call = answer_of(partial(self.operations[request.route], request, body, at))
        del body  # release it: the shard has a copy, and the result may take a long time
        return await self.awaited(request, call, at)

    async def awaited(self, request: Request, call: Coroutine[Any, Any, Answer], at: int) -> Answer:
        """Return the response of an operation that is a coroutine."""
        try:
            result: Answer | TopicsError = await call
        except TopicsError as failure:
            result = failure
        except Exception:
            result = self.unexpected(request)
        return await self.compressed(request, self.finished(request, result, at), at)

    def finished(self, request: Request, result: Answer | TopicsError, at: int) -> Answer:
        """Convert a result to the response that is sent, except for its compression."""
        answer = self.refused(request, result, at) if isinstance(result, TopicsError) else result
        if request.is_timed:
            answer.headers += server_timing(answer, at)
        return answer

    def refused(self, request: Request, failure: TopicsError, at: int) -> Answer:
        """Convert the failure of an operation to a response. Log unexpected errors from shards."""
        if isinstance(failure, Internal) and failure.message != UNEXPECTED:
            # The log of the shard contains the traceback.
            log.error("shard call failed", route=request.route.name, error=failure.message)
            failure = Internal(UNEXPECTED)
        return self.failed(failure, at)

    async def compressed(self, request: Request, answer: Answer, at: int) -> Answer:
        """Compress the response if the client accepts gzip."""
        if not request.gzip_out or answer.stream is not None:
            return answer
        try:
            return await compressed(answer)
        except TopicsError as failure:
            return self.failed(failure, at)

    def failed(self, failure: TopicsError, at: int = 0) -> Answer:
        """Return the response for an expected failure.

        A `NotReady` reports the replay progress (§0.6).
        """
        if isinstance(failure, NotReady):
            failure.detail.setdefault("replay_progress", self._readiness().progress)
        return error_answer(failure, at)

    def unexpected(self, request: Request) -> Internal:
        """Log an unexpected exception and return its error.

        Call this in an ``except`` block.
        """
        log.exception("request failed", route=request.route.name)
        return Internal(UNEXPECTED)


UNEXPECTED = "internal error"


async def answer_of(begin: Callable[[OnResult], PendingResult]) -> Answer:
    """Run a plain operation in a task. Return its response, or raise its failure.

    If the task is cancelled, the call is abandoned, and a later result is released.
    """
    results: list[Answer | TopicsError] = []
    task, waits, is_gone = trio.lowlevel.current_task(), False, False

    def then(result: Answer | TopicsError) -> None:
        if not is_gone:
            results.append(result)
            if waits:
                trio.lowlevel.reschedule(task)
        elif isinstance(result, Answer):
            # The task was cancelled, so the response cannot be sent.
            result.unsent()
            result.done()

    begun = begin(then)
    del begin  # it refers to the body
    # The operation has not finished: await its coroutine, or wait for `then`.
    if not results:
        if isinstance(begun, Coroutine):
            answer: Answer = await begun
            return answer

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            nonlocal is_gone
            is_gone = True
            if begun is not None:
                begun.abandon()
            return trio.lowlevel.Abort.SUCCEEDED

        waits = True
        await trio.lowlevel.wait_task_rescheduled(abort)
    result = results[0]
    if isinstance(result, TopicsError):
        raise result
    return result
