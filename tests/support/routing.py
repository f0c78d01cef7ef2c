"""Shards whose routers forward. The test sees the calls between shards, and reads topics without
waiting for routers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import trio

from tests.support.shards import Shards
from topics.actors.shard.peers import Peers
from topics.actors.shard.routing.router_worker import RouterSource, RouterWorker, WorkerState
from topics.engine.page import Tombstone
from topics.engine.reading import read
from topics.engine.routing.derivations import Derivation
from topics.engine.topic import Topic
from topics.errors import TopicsError
from topics.formats.api.diff_body import Diff
from topics.formats.disk.copies import decode_runs
from topics.formats.disk.frames import Frame, FrameKind
from topics.formats.json_text import json_bytes
from topics.formats.wire import calls
from topics.formats.wire.calls import FORWARD, ROUTER_OWNER, ForwardParams
from topics.storage.wal.log import Wal

WAIT_MAX_S = 20
FILLERS = "xzy"  # A topic of each shard that no test routes


class SentCall(NamedTuple):
    """A call from a service of a shard to a shard, which may be the same."""

    shard: int
    other: int
    subject: str
    params: Any
    body: bytes


class RoutedShards(Shards):
    """Shards with all of their services."""

    def __init__(self, folder: Path, nursery: trio.Nursery, count: int = 3) -> None:
        self.sent_calls: list[SentCall] = []
        # False: the call is made in `call_now`
        self.on_call: Callable[[SentCall], bool] = lambda _: True
        self._kept: list[tuple[int, Callable[[], None]]] = []
        self.logged: list[tuple[int, Frame]] = []  # By shard
        super().__init__(folder, nursery, count, forwards=True)

    def start(self, shard: int) -> None:
        """Start a shard, as `Shards.start`."""
        super().start(shard)
        loop = self.loops[shard]
        self._spy(shard, loop.context.peers)
        self._spy_on_log(shard, loop.context.wal)

    def _spy(self, shard: int, peers: Peers) -> None:
        send = peers.call

        def spied(other: int, call: Any, params: Any, body: Any, then: Any) -> None:
            sent_call = SentCall(shard, other, call.subject, params, bytes(body))
            self.sent_calls.append(sent_call)
            if self.on_call(sent_call):
                send(other, call, params, body, then)
            else:
                self._kept.append((shard, partial(send, other, call, params, body, then)))

        peers.call = spied  # type: ignore[method-assign, assignment]

    def _spy_on_log(self, shard: int, wal: Wal) -> None:
        append = wal.append

        def spied(frame: Frame) -> int:
            self.logged.append((shard, frame))
            return append(frame)

        wal.append = spied  # type: ignore[method-assign]

    def call_now(self) -> None:
        """Make the calls that were held back, and hold back no further calls."""
        self.on_call = lambda _: True
        kept, self._kept = self._kept, []
        for shard, call in kept:
            context = self.loops[shard].context
            context.begin_iteration()
            call()
            context.end_iteration()

    def deliver_all(self) -> None:
        """Deliver the messages that were held back, and hold back no further messages."""
        self.on_message = lambda *_: True
        self.deliver_held()

    def hold_forwards(self, one: int, other: int) -> None:
        """Hold back messages about forwards from one shard to another: requests in one direction,
        replies in the other.
        """
        self.on_message = lambda *found: found != (one, other, FORWARD.subject)

    # Calls

    async def make(self, topic: str, **config: Any) -> None:
        """Create or configure a topic."""
        params = calls.TopicPutParams(topic, None, 1)
        found = await self.call(
            calls.TOPIC_PUT, params, json_bytes(config), shard=self.shard_of(topic)
        )
        assert not isinstance(found, TopicsError), found

    async def route(self, *ends: str, **fields: Any) -> None:
        """Create routers "x>y", each named by its ends."""
        for end in ends:
            source, dest = end.split(">")
            found = await self.put(end, source, dest, **fields)
            assert not isinstance(found, TopicsError), found

    async def write(self, topic: str, records: Iterable[dict[str, Any]]) -> list[int]:
        """Append records and return their seqs."""
        body = json_bytes({"records": [*records]})
        params = calls.AppendParams(topic, None, True, None, 1)
        found = await self.call(calls.APPEND, params, body, shard=self.shard_of(topic))
        assert not isinstance(found, TopicsError), found
        seqs: list[int] = found["seqs"]
        return seqs

    async def delete_records(self, topic: str, **fields: Any) -> None:
        params = calls.TopicParams(topic, 1)
        found = await self.call(
            calls.DELETE_RECORDS, params, json_bytes(fields), shard=self.shard_of(topic)
        )
        assert not isinstance(found, TopicsError), found

    # State

    def topic(self, name: str) -> Topic:
        return self.loops[self.shard_of(name)].context.engine.topics[name]

    def pages(self, topic: str) -> tuple[list[dict[str, Any]], list[Tombstone]]:
        """Return all records of a topic, and the tombstones before them."""
        context = self.loops[self.shard_of(topic)].context
        records: list[dict[str, Any]] = []
        tombstones: list[Tombstone] = []
        seq = 0
        query = Diff(limit=1000, include_tags=True)
        while True:
            page = read(self.topic(topic), query, context.store, seq)
            records += msgspec.json.decode(b"[" + b",".join(bytes(p) for p in page.chunks) + b"]")
            if page.tombstone:
                tombstones.append(page.tombstone)
            if page.caught_up:
                return records, tombstones
            seq = page.next_from_seq

    def datas(self, topic: str) -> list[Any]:
        """Return the data of all current records of a topic."""
        return [record["data"] for record in self.pages(topic)[0]]

    def router_id(self, name: str) -> int:
        return self.loops[ROUTER_OWNER].context.engine.routers.router(name).id

    def worker(self, name: str) -> tuple[RouterSource, RouterWorker]:
        """Return the worker of the router at its source."""
        source = self.loops[ROUTER_OWNER].context.engine.routers.router(name).source
        loop = self.loops[self.shard_of(source)]
        found = loop.services.workers.worker(self.router_id(name))
        assert found is not None
        return found

    def reached(self, name: str) -> Derivation | None:
        """Return the router's progress as its dest records it."""
        router = self.loops[ROUTER_OWNER].context.engine.routers.router(name)
        known = self.topic(router.dest).derivations
        found = known.get(router.id) if known else None
        return None if found is None else Derivation(*found)

    def sent(self, source: str | None = None) -> list[ForwardParams]:
        """Return the forwards with copies or losses."""
        return [
            each.params
            for each in self.sent_calls
            if each.subject == FORWARD.subject
            and each.params.to_seq > each.params.from_seq
            and source in (None, each.params.source)
        ]

    def frames(self, kind: FrameKind) -> list[Frame]:
        """Return the frames of a kind that were written to a log."""
        return [frame for _, frame in self.logged if frame.kind is kind]

    # Waiting

    async def until(self, condition: Callable[[], object]) -> None:
        with trio.fail_after(WAIT_MAX_S):
            while True:
                if condition():
                    return
                await trio.sleep(0.003)

    def is_settled(self) -> bool:
        """Return whether all routers are idle."""
        graph = self.loops[ROUTER_OWNER].context.engine.routers
        for router in graph.by_id.values():
            workers = self.loops[self.shard_of(router.source)].services.workers
            known = workers.worker(router.id)
            if known is None:
                return False
            source, worker = known
            if worker.state is not WorkerState.IDLE or not worker.is_known:
                return False
            if worker.seen < source.topic.head_seq or self._has_new_records(source):
                return False
        return True

    def _has_new_records(self, source: RouterSource) -> bool:
        return source.has_new_records or source.topic.pending > 0

    async def settle(self) -> None:
        await self.until(self.is_settled)

    async def seal(self, *topics: str) -> None:
        """Move all records of these topics into segments."""
        for name in topics:
            topic = self.topic(name)
            if topic.sealed_seq >= topic.head_seq:
                continue
            await self.end_file(self.shard_of(name))
            await self.until(partial(_is_sealed, topic, topic.head_seq))

    async def end_file(self, shard: int) -> None:
        """Continue the log of a shard in another file."""
        wal = self.loops[shard].context.wal
        wal.rotates_by_blobs = True
        wal.end_file()
        await self.write(FILLERS[shard], [{"data": "filler"}])


def _is_sealed(topic: Topic, seq: int) -> bool:
    return topic.sealed_seq >= seq


def named(params: ForwardParams) -> list[int]:
    """Return the LSN of each run."""
    return [run.lsn for run in decode_runs(params.runs)]
