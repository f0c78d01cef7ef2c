"""Mutations: changes of routers, each in a task of its own. Those that share a name are done in the
order of their requests; what concerns a shard that does not answer holds up nothing else.

    add --> waiting for earlier ones with a name of it --> its task --> done, or the caller is told
                         '-- the caller has gone, or was told of a time-out: dropped       why not
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Set
from typing import Final, NamedTuple

import structlog
import trio

from topics.actors.rpc.replies import answer_error
from topics.actors.shard.context import ShardContext
from topics.actors.shard.held_topics import Request
from topics.actors.shard.peers import Asked
from topics.formats.wire.contract import Call, P, R

ASK_MAX_S: Final = 5.0  # a shard that takes longer counts as one that is away
log = structlog.get_logger()


class Mutation(NamedTuple):
    """``names``: of the routers and topics that it concerns. It answers ``request``, or raises for
    it.
    """

    names: Set[str]
    mutate: Callable[[], Awaitable[object]]
    request: Request | None


class Mutations:
    """Mutations under way and waiting."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._waiting: list[Mutation] = []
        self._busy: set[str] = set()  # names of those under way

    def add(
        self,
        names: Iterable[str],
        mutate: Callable[[], Awaitable[object]],
        request: Request | None = None,
    ) -> None:
        """Do it after all that were added before and share a name with it."""
        self._waiting.append(Mutation({*names}, mutate, request))
        self._begin()

    def _begin(self) -> None:
        """Begin all that wait for no other."""
        if self._context.moves.defer_if_held(self._begin):
            return
        taken, left = set(self._busy), []
        for each in self._waiting:
            if taken.isdisjoint(each.names):
                self._busy |= each.names
                self._context.moves.enter()
                self._context.start(self._work, each)
            else:
                left.append(each)
            taken |= each.names
        self._waiting = left

    async def _work(self, mutation: Mutation) -> None:
        request = mutation.request
        try:
            if request is None or (request.is_open and not request.session.closed):
                if request is not None:
                    request.outlast()
                await mutation.mutate()
        except Exception as error:
            self._tell(request, error)
        finally:
            self._busy -= mutation.names
            self._context.moves.leave()
            self._begin()

    def _tell(self, request: Request | None, error: Exception) -> None:
        if request is None:
            log.warning("routers not changed", error=str(error))
            return
        with self._context.turn():
            answer_error(request, error)


async def ask(context: ShardContext, shard: int, call: Call[P, R], params: P) -> R:
    """What ``shard`` answers to a call without attachments. Raises as `Asked.result`."""
    asked = Asked[R](shard)
    with context.turn():
        context.peers.ask(shard, call, params, b"", asked.then)
    with trio.move_on_after(ASK_MAX_S):
        await asked.wait()
    return asked.result
