"""Mutations: what is done one after another in a task of its own, each request in its turn.

    add --> queue --> the task: begin --> done, or the caller is told why not
                         '-- the caller has gone, or was told of a time-out: dropped

The task begins with the first mutation and ends with the last one. No other service waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio

from topics.actors.rpc.replies import answer_error
from topics.actors.shard.context import ShardContext
from topics.actors.shard.held_topics import Request
from topics.actors.shard.peers import PEER_AWAY, PeerReply
from topics.errors import NotReady, TopicsError
from topics.formats.wire.contract import Call, P, R

ASK_MAX_S: Final = 5.0  # a shard that takes longer counts as one that is away
log = structlog.get_logger()


class Mutations:
    """A queue of mutations."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._waiting: deque[tuple[Request | None, Callable[[], Awaitable[object]]]] = deque()
        self._is_working = False

    def add(self, mutate: Callable[[], Awaitable[object]], request: Request | None = None) -> None:
        """Do it after all others. It answers ``request``, or raises for it."""
        self._waiting.append((request, mutate))
        if not self._is_working:
            self._is_working = True
            self._context.start(self._work)

    async def _work(self) -> None:
        while self._waiting:
            request, mutate = self._waiting.popleft()
            if request is not None:
                if not request.is_open or request.session.closed:
                    continue
                request.outlast()
            try:
                await mutate()
            except Exception as error:
                self._tell(request, error)
        self._is_working = False

    def _tell(self, request: Request | None, error: Exception) -> None:
        if request is None:
            log.warning("routers not changed", error=str(error))
            return
        self._context.begin_turn()
        answer_error(request, error)
        self._context.end_turn()


async def ask(context: ShardContext, shard: int, call: Call[P, R], params: P) -> R:
    """What ``shard`` answers to a call without attachments. Raises `TopicsError`; `NotReady` also
    when it takes too long, and may do it yet.
    """
    answers: list[PeerReply[R] | TopicsError] = []
    came = trio.Event()

    def then(answer: PeerReply[R] | TopicsError) -> None:
        answers.append(answer)
        came.set()

    context.begin_turn()
    context.peers.ask(shard, call, params, b"", then)
    context.end_turn()
    with trio.move_on_after(ASK_MAX_S):
        await came.wait()
    if not answers:
        raise NotReady(f"shard {shard} does not answer", reason=PEER_AWAY)
    answer = answers[0]
    if isinstance(answer, TopicsError):
        raise answer
    answer.release()
    return answer.result
