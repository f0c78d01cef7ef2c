"""Several complete shards in one process: real logs, running loops, and sessions that a test can
delay or end.

A message moves from the outbox of one loop to the inbox of another.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import trio

from tests.support.peers import call_peer
from tests.support.shard import LIMITS
from tests.support.wire import encode_refusal
from topics.actors.link.board import Board
from topics.actors.link.process_id import shard_id
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import InboundMessage, LinkSession, Reply
from topics.actors.shard.context import clock
from topics.actors.shard.loop import ShardLoop
from topics.errors import TopicsError
from topics.formats.json_text import json_bytes
from topics.formats.wire import calls
from topics.formats.wire.calls import (
    ROUTER_OWNER,
    ROUTER_STATS,
    ROUTER_SYNC,
    RouterRow,
    RouterStats,
    RouterStatsParams,
    RouterSyncParams,
    RouterSyncResult,
)
from topics.formats.wire.contract import Call
from topics.formats.wire.message import ERROR, Message, PeerClosed
from topics.storage.recovery.shard_recovery import RecoveredShard, recover

SyncCall = InboundMessage[RouterSyncParams, RouterSyncResult]
StatsCall = InboundMessage[RouterStatsParams, RouterStats]


class FakeRegistry:
    """The registry of a shard's routers, without forwarding."""

    def __init__(self, loop: ShardLoop) -> None:
        self.rows: dict[int, RouterRow] = {}
        self.totals: dict[int, int] = {}  # By id, the number of records that a router has forwarded
        self.messages: list[RouterSyncParams] = []
        self.failure: Exception | None = None
        self._loop, context = loop, loop.context
        self._topics, self._shard_of = context.engine.topics, context.peers.shard_of
        self._shard = context.engine.table.shard
        loop.services.registry.has_owner_list = True  # The real registry receives no messages
        context.routers_of = lambda topic: any(
            topic in (row.source, row.dest) for row in self.rows.values()
        )
        router: MessageRouter = loop.router
        for call in (ROUTER_SYNC, ROUTER_STATS):
            router.unroute(call.subject)
        router.serve(ROUTER_SYNC, self._sync)
        router.serve(ROUTER_STATS, self._stats)

    @property
    def names(self) -> list[str]:
        return sorted(row.name for row in self.rows.values())

    def _sync(self, request: SyncCall) -> None:
        params = request.params
        self.messages.append(params)
        if self.failure is not None:
            raise self.failure
        if params.is_all:
            self.rows.clear()
        for row in map(RouterRow._make, params.routers):
            self.rows[row.id] = row
        totals = [
            (router_id, self.totals.get(router_id, 0))
            for router_id in params.removed
            if self.rows.pop(router_id, None) is not None
        ]
        orphans = [row.id for row in self.rows.values() if self._lacks_an_end(row)]
        request.reply(RouterSyncResult(orphans, totals))

    def _lacks_an_end(self, row: RouterRow) -> bool:
        for name, topic_id in ((row.source, row.source_id), (row.dest, row.dest_id)):
            topic = self._topics.get(name)
            is_here = self._shard_of(name) == self._shard
            if is_here and (topic is None or topic.id != topic_id):
                return True
        return False

    def _stats(self, request: StatsCall) -> None:
        router_ids = request.params.routers
        known = [router_id for router_id in router_ids if router_id in self.rows]
        request.reply(RouterStats([(each, self.totals.get(each, 0), 2, 30) for each in known]))


class Pipe:
    """One end of a session. Messages that it sends arrive at the other end."""

    peer: Pipe
    session: LinkSession

    def __init__(self, shards: Shards, own: int, other: int) -> None:
        self._shards, self.own, self.other = shards, own, other
        self.message_id = 0

    def send(
        self, subject: str, payload: bytes, attachment: Any = b"", *, message_id: int | None = None
    ) -> int:
        if self.session.closed:
            raise PeerClosed
        if message_id is None:
            self.message_id = message_id = self.message_id + 1
        self._put(Message(message_id, 0, subject, bytes(payload), bytes(attachment)))
        return message_id

    def send_refusal(self, code: int, message: str, about: int) -> None:
        payload = encode_refusal(code, message, about)
        self.message_id += 1
        self._put(Message(self.message_id, ERROR, "", payload, b""))

    def release(self, message: Message) -> None:
        """Do nothing, because no message is in shared memory."""

    def on_reclaim(self, view: memoryview, release: Callable[[], object]) -> None:
        """Do nothing, because no message is in shared memory."""

    def _put(self, message: Message) -> None:
        self._shards.carry(self, message)


class Shards:
    """Shards with links.

    ``on_message(from, to, subject)`` is called for each message between two shards. If it returns
    False, the message is held back until `deliver_held`. With ``forwards`` the routers forward. The
    last ``late`` shards are not started at first.
    """

    def __init__(
        self,
        folder: Path,
        nursery: trio.Nursery,
        count: int = 3,
        max_routers: int = 0,
        *,
        max_topics: int = 0,
        max_total_bytes: int = 0,
        late: int = 0,
        forwards: bool = False,
    ) -> None:
        self.folder, self.nursery, self.count, self.forwards = folder, nursery, count, forwards
        self.limits = msgspec.structs.replace(
            LIMITS, routers=max_routers, topics=max_topics, total_bytes=max_total_bytes
        )
        self.board = Board(count)
        self.loops: dict[int, ShardLoop] = {}
        self.registries: dict[int, FakeRegistry] = {}
        self.on_message: Callable[[int, int, str], bool] = lambda *_: True
        self.caller = 1  # The shard that makes calls for a front
        self._held: list[tuple[Pipe, Message]] = []
        self._pipes: dict[tuple[int, int], Pipe] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        self._data: dict[int, RecoveredShard] = {}
        self._ended: dict[int, trio.Event] = {}
        for shard in range(count - late):
            self.start(shard)

    def start(self, shard: int) -> None:
        """Start the process of this shard, and open its sessions with the others."""
        data = recover(
            self.folder, shard, self.count, clock(), wal_file_bytes=1 << 20, wal_sync_ms=20
        )
        self._data[shard] = data
        loop = self.loops[shard] = ShardLoop(data, shard, self.board, self.limits)
        if not self.forwards:
            self.registries[shard] = FakeRegistry(loop)
        self._scopes[shard] = trio.CancelScope()
        loop.context.nursery = self.nursery
        ended = self._ended[shard] = trio.Event()
        self.nursery.start_soon(self._run, loop, self._scopes[shard], ended)
        for other in self.loops:
            if other != shard:
                self.connect(shard, other)

    async def _run(self, loop: ShardLoop, scope: trio.CancelScope, ended: trio.Event) -> None:
        with scope:
            await loop.run([], trio.Event())
        ended.set()

    def connect(self, one: int, other: int) -> None:
        """Open a session between two shards at both ends."""
        ends = Pipe(self, one, other), Pipe(self, other, one)
        ends[0].peer, ends[1].peer = ends[1], ends[0]
        for end in ends:
            loop = self.loops[end.own]
            end.session = loop.open_session(shard_id(end.other).session_name, end)
            self._pipes[end.own, end.other] = end
        for end in ends:
            self.loops[end.own].context.peers.add(end.other, end.session)

    def disconnect(self, one: int, other: int) -> None:
        """Close their session. Messages in flight are lost."""
        for pair in ((one, other), (other, one)):
            pipe = self._pipes.pop(pair, None)
            if pipe is not None:
                self._held = [held for held in self._held if held[0] is not pipe]
                pipe.session.close()

    async def kill(self, shard: int) -> None:
        """Simulate a kill of the shard's process. Data that the log has written is kept."""
        self._scopes.pop(shard).cancel()
        for other in list(self.loops):
            self.disconnect(shard, other)
        self.registries.pop(shard, None)
        del self.loops[shard]
        await self._ended[shard].wait()
        self._data.pop(shard).wal.stop()

    async def close(self) -> None:
        for shard in list(self.loops):
            await self.kill(shard)

    # Messages

    def carry(self, pipe: Pipe, message: Message) -> None:
        if not self.on_message(pipe.own, pipe.other, message.subject):
            self._held.append((pipe, message))
        elif not pipe.session.closed:
            self._deliver(pipe, message)

    def deliver_held(self) -> None:
        """Deliver the messages that were held back."""
        held, self._held = self._held, []
        for pipe, message in held:
            self._deliver(pipe, message)

    def _deliver(self, pipe: Pipe, message: Message) -> None:
        loop = self.loops[pipe.other]
        loop.inbox.put(pipe.peer.session, [message])
        loop.deadlines.wake()

    # Calls, made as a front does

    async def call(
        self, call: Call[Any, Any], params: Any, body: bytes = b"", shard: int = ROUTER_OWNER
    ) -> Any:
        """Return the JSON of the reply, or its result if it has no body, or the failure."""
        caller = self.caller
        if caller not in self.loops or not self.loops[caller].context.peers.is_connected(shard):
            caller = shard
        answer = await call_peer(self.loops[caller], shard, call, params, body)
        if isinstance(answer, TopicsError):
            return answer
        assert isinstance(answer, Reply)
        found: Any = msgspec.json.decode(bytes(answer.body)) if answer.body else answer.result
        answer.release()
        return found

    async def put(
        self,
        router: str,
        source: str,
        dest: str,
        prefixes: list[str] | None = None,
        **fields: Any,
    ) -> Any:
        body = json_bytes({"source": source, "dest": dest, **fields})
        return await self.call(calls.ROUTER_PUT, calls.RouterParams(router, prefixes, 1), body)

    async def get(self, router: str, prefixes: list[str] | None = None) -> Any:
        return await self.call(calls.ROUTER_GET, calls.RouterParams(router, prefixes, 1))

    async def delete(self, router: str, prefixes: list[str] | None = None) -> Any:
        return await self.call(calls.ROUTER_DELETE, calls.RouterParams(router, prefixes, 1))

    async def list_routers(
        self,
        prefix: str = "",
        source: str | None = None,
        dest: str | None = None,
        after: str | None = None,
        limit: int = 100,
        prefixes: list[str] | None = None,
    ) -> Any:
        params = calls.RouterListParams(prefix, source, dest, after, limit, prefixes)
        return await self.call(calls.ROUTER_LIST, params)

    async def delete_topic(
        self, topic: str, *, if_empty: bool = False, prefixes: list[str] | None = None
    ) -> Any:
        params = calls.TopicDeleteParams(topic, if_empty, prefixes, 1)
        return await self.call(calls.TOPIC_DELETE, params, shard=self.shard_of(topic))

    async def put_topic(self, topic: str, **config: Any) -> Any:
        params = calls.TopicPutParams(topic, None, 1)
        body = json_bytes(config)
        return await self.call(calls.TOPIC_PUT, params, body, shard=self.shard_of(topic))

    async def append(self, topic: str, *datas: Any) -> Any:
        body = json_bytes({"records": [{"data": data} for data in datas]})
        params = calls.AppendParams(topic, None, True, None, 1)
        return await self.call(calls.APPEND, params, body, shard=self.shard_of(topic))

    # State

    def shard_of(self, topic: str) -> int:
        return self.loops[next(iter(self.loops))].context.peers.shard_of(topic)

    @property
    def names(self) -> list[str]:
        """Return the names of the routers that the owner knows."""
        return [*self.loops[ROUTER_OWNER].context.engine.routers.names("", None)]

    def ends_agree(self) -> bool:
        """Return whether each shard knows exactly the routers with an end in it."""
        graph = self.loops[ROUTER_OWNER].context.engine.routers
        return all(
            sorted(registry.rows)
            == sorted(
                router.id
                for router in graph.by_id.values()
                if shard in (self.shard_of(router.source), self.shard_of(router.dest))
            )
            for shard, registry in self.registries.items()
        )

    async def agree(self) -> None:
        """Wait until `ends_agree` returns true."""
        with trio.fail_after(10):
            while True:
                if self.ends_agree():
                    return
                await trio.sleep(0.01)
