"""Barriers: a reader of a dest sees what was appended to its source before it asked (§6).

    diff, state, claim, watch, delete ... of a dest --> the source's shard: `router.catch_up`
        it has answered, or BARRIER_S are over --> the request is handled

A dest has one source. Its shard answers when the routers have reached the head of that moment, or
cannot reach it now: a dest that is full keeps no reader waiting. Where the source is itself a dest,
its own feeders come first. A shard that does not answer in time is not waited for again for a
while. It is not asked when its word on the board says that it has got nothing since the last
forward (`Board.source`), and copies that come before the answer end the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

import trio

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import InboundMessage, Reply
from topics.actors.shard.context import ShardContext
from topics.actors.shard.deadlines import Deadline
from topics.actors.shard.held_topics import Handler, Request, handle_late
from topics.actors.shard.routing.registry import Registry
from topics.actors.shard.routing.worker import Source, Worker, WorkerState
from topics.actors.shard.routing.workers import Workers
from topics.actors.shard.service import Service
from topics.engine.changes.change import Change
from topics.engine.changes.forward import Forward
from topics.engine.topic import Topic
from topics.errors import TopicsError
from topics.formats.wire.calls import (
    CATCH_UP,
    NO_RESULT,
    ROUTER_OWNER,
    CatchUpParams,
    NoResult,
)

CatchUpCall: TypeAlias = InboundMessage[CatchUpParams, NoResult]

BARRIER_S: Final = 1.0
SILENT_S: Final = 5.0  # how long a shard that did not answer is not waited for


class Barriers(Service):
    """Lets requests about dests wait for the routers that feed them."""

    def __init__(self, context: ShardContext, registry: Registry, workers: Workers) -> None:
        self._context, self._registry, self._workers = context, registry, workers
        self._silent_until: dict[int, float] = {}  # by shard
        self._watched: dict[Topic, dict[_Wait, None]] = {}  # who waits for what dests get
        self._fed: dict[Topic, None] = {}  # those of them that have got copies

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        router.serve(CATCH_UP, self._catch_up)

    def defer_if_behind(self, topics: Collection[str], handler: Handler, request: Request) -> bool:
        """Whether the request is deferred: ``handler`` gets it when the feeders of ``topics`` have
        caught up. Only inside of a turn.
        """
        if not self._registry.is_told and self._await_owner(topics, handler, request):
            return True
        if self._registry.by_dest.keys().isdisjoint(topics):  # most requests end here
            return False
        behind = [
            topic
            for topic in dict.fromkeys(topics)  # in their order, so that a seed repeats it
            if self._feeders(topic, frozenset()) and not self._is_level(topic)
        ]
        if not behind:
            return False
        left = len(behind)

        def caught_up() -> None:
            nonlocal left
            left -= 1
            if not left:
                handle_late(handler, request)

        for topic in behind:
            wait = self._wait(topic, frozenset(), caught_up)
            dest = self._context.engine.topics.get(topic)
            if wait is not None and dest is not None:
                self._watch(dest, wait)
        return True

    def _watch(self, dest: Topic, wait: _Wait) -> None:
        """End the wait also when copies show that the feeders of ``dest`` have caught up, which may
        be before their shard says so.
        """
        waits = self._watched.setdefault(dest, {})
        waits[wait] = None
        dest.follow(self._dest_changed)

        def ended() -> None:
            del waits[wait]
            if not waits:
                del self._watched[dest]
                dest.unfollow(self._dest_changed)

        wait.on_end = ended

    def _dest_changed(self, change: Change) -> None:
        if isinstance(change, Forward):
            self._fed[change.topic] = None
            self.is_due = True

    def on_due(self) -> None:
        """Handle the requests about dests that have got what they waited for."""
        fed, self._fed = self._fed, {}
        for dest in fed:
            if dest in self._watched and self._is_level(dest.name):
                for wait in tuple(self._watched[dest]):
                    wait.heard()

    def _await_owner(self, topics: Collection[str], handler: Handler, request: Request) -> bool:
        """After a start: whether the request is deferred until this shard knows its routers."""
        known = self._context.engine.topics
        if self._is_silent(ROUTER_OWNER) or not any(
            name in known and known[name].derivations for name in topics
        ):
            return False

        def go_on() -> None:
            if not self.defer_if_behind(topics, handler, request):
                handle_late(handler, request)

        wait = self._begin_wait(ROUTER_OWNER, go_on)
        self._registry.when_told(wait.heard)
        return True

    def _begin_wait(self, shard: int, then: Callable[[], object]) -> _Wait:
        wait = _Wait(shard, self._silent_until, then)
        until = trio.current_time() + BARRIER_S
        wait.deadline = self._context.deadlines.call_at(until, wait.give_up)
        return wait

    def _is_level(self, topic: str) -> bool:
        """Whether all feeders have nothing left to forward, as far as this shard can see alone."""
        registry, dest = self._registry, self._context.engine.topics.get(topic)
        for router, row in registry.by_dest.get(topic, {}).items():
            known = self._workers.worker(router)
            if known is None and dest is not None and registry.has_reached(dest, row):
                continue
            if known is None or row.source in registry.by_dest:
                return False
            source, worker = known
            is_level = worker.is_known and worker.seen >= source.topic.head_seq
            if not is_level or worker.state is WorkerState.FLYING:
                return False
        return True

    def _wait(self, topic: str, passed: frozenset[int], then: Callable[[], object]) -> _Wait | None:
        """Call ``then`` when the feeders of ``topic``, but for ``passed``, have caught up."""
        routers = self._feeders(topic, passed)
        if not routers:
            then()
            return None
        wait = self._begin_wait(self._source_shard(topic), then)
        if wait.shard == self._context.engine.table.shard:
            self._reach_heads(routers, passed, wait.heard)
            return None
        params = CatchUpParams(routers, [*passed])
        self._context.peers.ask(wait.shard, CATCH_UP, params, b"", wait.answered)
        return wait

    def _feeders(self, topic: str, passed: frozenset[int]) -> list[int]:
        """The routers that feed ``topic``, but for ``passed``; none when their shard is silent."""
        feeders = self._registry.by_dest.get(topic)
        if not feeders or self._is_silent(self._source_shard(topic)):
            return []
        return [router for router in feeders if router not in passed]

    def _source_shard(self, topic: str) -> int:
        """The shard of the source of ``topic``, which routers feed: they have one source."""
        row = next(iter(self._registry.by_dest[topic].values()))
        return self._context.peers.shard_of(row.source)

    def _is_silent(self, shard: int) -> bool:
        return trio.current_time() < self._silent_until.get(shard, 0.0)

    # The source's side

    def _catch_up(self, request: CatchUpCall) -> None:
        routers, passed = request.params.routers, frozenset(request.params.passed)
        request.outlast()
        self._reach_heads(routers, passed, partial(request.reply, NO_RESULT))

    def _reach_heads(
        self, routers: Sequence[int], passed: frozenset[int], then: Callable[[], object]
    ) -> None:
        """Call ``then`` when these have reached the heads of now, their own feeders first."""
        found = [known for known in map(self._workers.worker, routers) if known is not None]
        left = len(found)
        if not left:
            then()
            return

        def settled() -> None:
            nonlocal left
            left -= 1
            if not left:
                then()

        source = found[0][0]
        workers = [worker for each, worker in found if each is source]
        left -= len(found) - len(workers)  # of a life of the router that had another source
        reach_head = partial(self._reach_head, source, workers, settled)
        self._wait(source.topic.name, passed | frozenset(routers), reach_head)

    def _reach_head(
        self, source: Source, workers: Iterable[Worker], settled: Callable[[], object]
    ) -> None:
        """Call ``settled`` for each of these when it has reached the head of now."""
        for worker in workers:
            worker.when_settled(source.topic.head_seq, settled)
        self._workers.hurry()


class _Wait:
    """One barrier: the shard that is waited for, and what follows."""

    deadline: Deadline

    def __init__(
        self, shard: int, silent_until: dict[int, float], then: Callable[[], object]
    ) -> None:
        self.shard, self._silent_until, self._then = shard, silent_until, then
        self._is_over = False
        self.on_end: Callable[[], object] = lambda: None

    def answered(self, answer: Reply[NoResult] | TopicsError) -> None:
        """The shard is done, or away."""
        if isinstance(answer, Reply):
            answer.release()
            self.heard()
        else:
            self._end()

    def heard(self) -> None:
        """The shard is done; it may be late."""
        self._silent_until.pop(self.shard, None)
        self._end()

    def give_up(self) -> None:
        """The time is over."""
        self._silent_until[self.shard] = trio.current_time() + SILENT_S
        self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self.deadline.cancel()
            self.on_end()
            self._then()
