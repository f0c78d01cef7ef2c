"""Mutations: changes to routers, each in its own task.

Each mutation names the routers and topics that it affects. Mutations that share a name run in the
order of their requests. A mutation that waits for a shard delays only mutations with which it
shares a name.

    add --> wait for earlier mutations that share a name --> run in a task --> reply, or error reply
                         '-- the caller has disconnected or timed out --> dropped
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Set
from typing import Final, NamedTuple

import structlog
import trio

from topics.actors.rpc.replies import answer_error
from topics.actors.shard.context import ShardContext
from topics.actors.shard.held_topics import Request
from topics.actors.shard.peers import PeerCall
from topics.formats.wire.contract import Call, P, R

CALL_MAX_S: Final = 5.0  # a shard that takes longer to reply is treated as unavailable
log = structlog.get_logger()


class Mutation(NamedTuple):
    """One change to routers. ``names``: the routers and topics that it affects.

    ``mutate`` replies to ``request``, or raises the error with which the request fails.
    """

    names: Set[str]
    mutate: Callable[[], Awaitable[object]]
    request: Request | None


class Mutations:
    """The running and waiting mutations."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._waiting: list[Mutation] = []
        self._busy: set[str] = set()  # names of running mutations

    def add(
        self,
        names: Iterable[str],
        mutate: Callable[[], Awaitable[object]],
        request: Request | None = None,
    ) -> None:
        """Run a mutation after all earlier mutations that share a name with it."""
        self._waiting.append(Mutation({*names}, mutate, request))
        self._begin()

    def _begin(self) -> None:
        """Start the waiting mutations that share no name with an earlier one."""
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
                    request.disable_timeout()
                await mutation.mutate()
        except Exception as error:
            self._report(request, error)
        finally:
            self._busy -= mutation.names
            self._context.moves.leave()
            self._begin()

    def _report(self, request: Request | None, error: Exception) -> None:
        if request is None:
            log.warning("routers not changed", error=str(error))
            return
        with self._context.iteration():
            answer_error(request, error)


async def call_shard(context: ShardContext, shard: int, call: Call[P, R], params: P) -> R:
    """Return the reply of ``shard`` to a call. Raises the same errors as `PeerCall.result`."""
    pending = PeerCall[R](shard)
    with context.iteration():
        context.peers.call(shard, call, params, b"", pending.then)
    with trio.move_on_after(CALL_MAX_S):
        await pending.wait()
    return pending.result
