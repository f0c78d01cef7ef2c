"""Fake shards for tests of the front: topics are lists of JSON values in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast
from zlib import crc32

import trio

from topics.actors.link.arena import ArenaBlock, BlockFiller
from topics.actors.link.heads import HeadMark
from topics.actors.rpc.session import Attachment, LinkSession, PendingCall, Reply
from topics.actors.shard_client.readiness import Readiness
from topics.actors.shard_client.shards import FlushBatch, Listener, Shards
from topics.engine.priority import TOP_BAND
from topics.errors import (
    Internal,
    InvalidRequest,
    NotReady,
    RouterNotFound,
    TopicNotEmpty,
    TopicNotFound,
    TopicsError,
)
from topics.formats.names import covered
from topics.formats.wire import calls
from topics.formats.wire.calls import (
    LeasesParams,
    MetricsParams,
    MetricsResult,
    RouterMetrics,
    TopicListParams,
    TopicMetrics,
)
from topics.formats.wire.contract import Call, Event, P, R


class FakeReply(Reply[Any]):
    """``FakeReply(result, body, owner)``. The owner counts the replies that are not released."""

    _message: Any  # The owner
    _session: Any = None
    is_released: bool = False

    def __post_init__(self) -> None:
        self.body = memoryview(self.body)  # A view, as one that must be released
        self._message.replies_out += 1

    def release(self) -> None:
        assert not self.is_released, "released twice"
        self.is_released = True
        self._message.replies_out -= 1

    def on_reclaim(self, give_up: Callable[[], object]) -> None:
        self._message.releases.append(give_up)


class FakeBlock(ArenaBlock):
    """Arena memory. The owner counts the blocks that are not freed."""

    def __init__(self, length: int, owner: FakeShards) -> None:
        self.view = memoryview(bytearray(length))
        self.freed = False
        self._shards = owner
        owner.blocks_out += 1

    def grow(self, length: int, keep: int) -> Iterator[None] | None:
        if self._shards.full:
            return None
        old, self.view = self.view, memoryview(bytearray(length))
        self.view[:keep] = old[:keep]
        return iter([None])

    def shrink(self, length: int) -> None:
        self.view = self.view[:length]

    def free(self) -> None:
        assert not self.freed, "freed twice"
        self.freed = True
        self._shards.blocks_out -= 1


class Waiting:
    """The session of a call that waits for the gate. It is notified when the call is cancelled."""

    def __init__(self, owner: FakeShards) -> None:
        self._owner = owner
        self.calls: dict[int, PendingCall] = {}
        self.peer_id = "fake"

    def notify(self, event: Event[Any], params: Any) -> None:
        self._owner.cancelled += 1
        self._owner.waiting -= 1


BACKED_UP: dict[str, tuple[Any, ...]] = {  # Replies of empty shards
    calls.BACKUP_BEGIN.method: calls.BackupBegun([], []),
    calls.BACKUP_CUT.method: calls.BackupCut(0, 1),
    calls.BACKUP_FILES.method: calls.BackupFiles([]),
}


@dataclass
class FakeShards(Shards):
    """Simplified shards, whose topics are lists of JSON values."""

    count: int = 2
    topics: dict[str, list[Any]] = field(default_factory=dict)
    routers: dict[str, Any] = field(default_factory=dict)  # By name, the bodies that created them
    ready: bool = True
    full: bool = False
    fillers: list[BlockFiller] = field(
        default_factory=list
    )  # Of every block that was ever reserved
    # Functions that were passed to `on_reclaim`
    releases: list[Callable[[], object]] = field(default_factory=list)
    replies_out: int = 0
    blocks_out: int = 0
    calls: list[tuple[str, Any, bytes]] = field(default_factory=list)
    cancelled: int = 0
    waiting: int = 0
    gate: trio.Event | None = None  # Calls of the topic "slow" wait for it
    answer_bytes: int = 0  # Size of the filler of a diff
    listener: Listener | None = None
    # Leased by claims, with lease numbers from 7 on
    leased: list[int] = field(default_factory=list)
    leases: int = 0  # Number of leases of every topic, with seqs from 1 on
    silent: set[int] = field(default_factory=set)  # Shards that do not reply
    batch: FlushBatch = field(default_factory=lambda: FlushBatch([]))
    _is_waited: bool = False  # Set by a task that waits for the next call

    def shard_of(self, topic: str) -> int:
        return crc32(topic.encode()) % self.count

    def listen(self, listener: Listener) -> None:
        self.listener = listener

    def call(
        self,
        shard: int,
        call: Call[P, R],
        params: Any,
        body: Attachment,
        then: Callable[[Any], None],
        *,
        early: bool = False,
    ) -> PendingCall:
        raw, is_waited, self._is_waited = self._take(body), self._is_waited, False
        self.calls.append((call.method, params, raw))
        if getattr(params, "topic", "") == "bug":
            raise RuntimeError("a secret of the inside")
        pending = PendingCall(0, call, then, cast("LinkSession", Waiting(self)))
        if getattr(params, "topic", "") == "slow" and self.gate is not None and self.ready:
            self.waiting += 1
            trio.lowlevel.spawn_system_task(
                self._reply_late, self.gate, pending, params, raw, shard
            )
            return pending
        pending._session = None  # It is not counted
        if shard in self.silent and self.ready:
            return pending
        if is_waited:
            token = trio.lowlevel.current_trio_token()
            token.run_sync_soon(self._reply_now, pending, params, raw, shard)
        else:
            self._reply_now(pending, params, raw, shard)
        return pending

    async def _reply_late(self, gate: trio.Event, pending: PendingCall, *arguments: Any) -> None:
        await gate.wait()
        if not pending.is_done:
            self.waiting -= 1
            self._reply_now(pending, *arguments)

    def _reply_now(self, pending: PendingCall, params: Any, raw: bytes, shard: int) -> None:
        if pending.is_done:
            return
        pending.is_done = True
        answer: FakeReply | TopicsError
        try:
            if not self.ready:
                raise NotReady("the shard is recovering")
            answer = FakeReply(*self._answer(pending.call, params, raw, shard), self)
        except TopicsError as failure:
            answer = failure
        pending.then(answer)

    async def answer(
        self, shard: int, call: Call[P, R], params: Any, body: Attachment = b""
    ) -> Reply[Any]:
        """Return the reply in a later iteration of the loop, as a shard does."""
        self._is_waited = True
        return await super().answer(shard, call, params, body)

    def notify(self, shard: int, event: Event[P], params: P, *, is_deferred: bool = False) -> None:
        self.calls.append((event.method, params, b""))

    def reserve(self, shard: int, length: int, filler: BlockFiller | None) -> FakeBlock | None:
        if self.full:
            return None
        if filler is not None:
            self.fillers.append(filler)
        return FakeBlock(length, self)

    def abort_slowest(self, shard: int, filler: BlockFiller, now: float) -> bool:
        return False

    def head(self, shard: int, mark: HeadMark) -> int | None:
        return None

    def delay_ms(self, shard: int) -> float:
        return 0.0

    def readiness(self) -> Readiness:
        return Readiness(self.ready, 1.0 if self.ready else 0.25, len(self.topics), False)

    def _take(self, body: Attachment) -> bytes:
        if isinstance(body, FakeBlock):
            raw = bytes(body.view)
            body.free()
            return raw
        return bytes(body)  # type: ignore[arg-type]

    def _answer(
        self, call: Call[P, R], params: Any, raw: bytes, shard: int
    ) -> tuple[tuple[Any, ...], bytes]:
        if call is calls.TOPIC_LIST:
            return calls.TopicListResult(self._items(params, shard)), b""
        if call is calls.METRICS_READ:
            return self._metrics(params, shard), b""
        if call.method.startswith("backup."):
            return BACKED_UP.get(call.method, calls.NO_RESULT), b""
        if call.method.startswith("router."):
            assert shard == calls.ROUTER_OWNER
            return self._router_answer(call, params, raw)
        topic = params.topic
        assert self.shard_of(topic) == shard
        if topic == "shard-bug":
            raise Internal("a secret of the shard")
        if call is calls.APPEND and params.lengths is not None:
            return self._append_joined(call, params, raw, shard)
        try:
            document = json.loads(raw) if raw else {}
        except ValueError:
            raise InvalidRequest("the body is not JSON") from None
        rows = self.topics.get(topic)
        answer: dict[str, Any] = {"topic": topic}
        result: tuple[Any, ...] = calls.NO_RESULT
        if call is calls.APPEND:
            outcome = calls.AppendOutcome.CREATED if rows is None else calls.AppendOutcome.APPENDED
            result = calls.AppendResult(bytes((calls.outcome_byte(outcome, TOP_BAND),)))
            self.topics.setdefault(topic, []).extend(document["records"])
            head = len(self.topics[topic])
            answer |= {"head_seq": head, "created": rows is None}
        elif call is calls.TOPIC_PUT:
            result = calls.PutResult(rows is None)
            self.topics.setdefault(topic, [])
            answer |= {"created": rows is None, "config": document}
        elif call is calls.TOPIC_DELETE:
            if params.if_empty and rows:
                raise TopicNotEmpty("the topic holds records")
            answer |= {"deleted": self.topics.pop(topic, None) is not None}
        elif rows is None:
            raise TopicNotFound(topic)
        elif call is calls.LEASES:
            return self._leases(params)
        elif call is calls.CLAIM:
            result = calls.ClaimResult(7, self.leased)
            answer |= {"claimed": rows}
        elif call is calls.DIFF:
            result = calls.DiffResult(None)
            answer |= {
                "records": rows[document.get("from_seq", 0) :],
                "filler": "x" * self.answer_bytes,
            }
        else:
            answer |= {"head_seq": len(rows), "touch": getattr(params, "touch", None)}
        answer["performance"] = {"server_total_ms": 0.01}
        return result, json.dumps(answer, separators=(",", ":")).encode()

    def _append_joined(
        self, call: Call[P, R], params: Any, raw: bytes, shard: int
    ) -> tuple[tuple[Any, ...], bytes]:
        """Handle each request of the message as if it were sent alone."""
        outcomes, bodies, failures, start = [], [], [], 0
        for length in params.lengths:
            body, start = raw[start : start + length], start + length
            try:
                result, answer = self._answer(call, params._replace(lengths=None), body, shard)
            except TopicsError as failure:
                failures.append((failure.code, failure.message, failure.detail))
                outcomes.append(calls.outcome_byte(calls.AppendOutcome.FAILED, TOP_BAND))
                bodies.append(b"")
            else:
                outcomes += result[0]
                bodies.append(answer)
        lengths = [len(body) for body in bodies]
        return calls.AppendResult(bytes(outcomes), lengths, failures), b"".join(bodies)

    def _router_answer(
        self, call: Call[P, R], params: Any, raw: bytes
    ) -> tuple[tuple[Any, ...], bytes]:
        if call is calls.ROUTER_LIST:
            found = sorted(name for name in self.routers if name > (params.after or ""))
            items = [(name, b'{"router":"%b"}' % name.encode()) for name in found[: params.limit]]
            return calls.RouterListResult(items), b""
        name, result = params.router, calls.NO_RESULT
        answer: dict[str, Any] = {"router": name}
        if call is calls.ROUTER_PUT:
            created = name not in self.routers
            self.routers[name] = json.loads(raw)
            return calls.PutResult(created), json.dumps(answer | {"created": created}).encode()
        if call is calls.ROUTER_DELETE:
            answer["deleted"] = self.routers.pop(name, None) is not None
        elif name not in self.routers:
            raise RouterNotFound(name)
        return result, json.dumps(answer).encode()

    def _items(self, params: TopicListParams, shard: int) -> list[tuple[str, bytes]]:
        prefixes = None if params.prefixes is None else tuple(params.prefixes)
        names = sorted(
            name
            for name in self.topics
            if self.shard_of(name) == shard
            and name.startswith(params.prefix)
            and (params.after is None or name > params.after)
            and (prefixes is None or name.startswith(prefixes))
        )
        return [(name, b'{"topic":"%b"}' % name.encode()) for name in names[: params.limit]]

    def _metrics(self, params: MetricsParams, shard: int) -> MetricsResult:
        """Return a row for each topic with its number of records. Every router belongs to the
        first shard.
        """
        names = sorted(name for name in self.topics if self.shard_of(name) == shard)
        seen = [name for name in names if covered(name, params.prefixes)]
        topics = [
            TopicMetrics(name, len(self.topics[name]), 1, len(self.topics[name]), 10, *[None] * 4)
            for name in seen[: params.topics_max]
        ]
        own = sorted(self.routers) if shard == 0 else []
        routers = [RouterMetrics(name, 7, 900, 12) for name in own[: params.routers_max]]
        return MetricsResult(topics, len(seen) > len(topics), routers, len(own) > len(routers))

    def _leases(self, params: LeasesParams) -> tuple[tuple[Any, ...], bytes]:
        page = [*range(params.after + 1, self.leases + 1)][: params.limit]
        more = bool(page) and page[-1] < self.leases
        return calls.LeasesResult(page[-1] if more else None), json.dumps(page).encode()
