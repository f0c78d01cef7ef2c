"""Tests of peers: a shard calls other shards and itself, and handles replies in a new iteration."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.peers import call_peer, call_until_connected
from tests.support.shard import LIMITS, ShardHarness
from tests.support.wire import Wire, encode_failure, encode_success
from topics.actors.link.board import Board
from topics.actors.link.link import Link
from topics.actors.link.link_memory import LinkMemory
from topics.actors.link.process_id import ProcessId, shard_id
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import Reply
from topics.actors.shard.context import clock
from topics.actors.shard.loop import ShardLoop
from topics.actors.shard.peers import Peers
from topics.errors import TopicNotFound, TopicsError
from topics.formats.json_text import json_bytes
from topics.formats.names import shard_of
from topics.formats.wire.calls import (
    APPEND,
    NO_RESULT,
    TOPIC_GET,
    AppendOutcome,
    AppendParams,
    TopicGetParams,
    outcome_in,
)
from topics.formats.wire.message import Message
from topics.process.family import SHARD_LINK
from topics.storage.recovery.shard_recovery import recover

STATE = TopicGetParams("a", touch=False, at=0)


def append_to(topic: str) -> AppendParams:
    return AppendParams(topic, None, with_seqs=True, prefixes=None, at=time.monotonic_ns())


def records(*datas: Any) -> bytes:
    return json_bytes({"records": [{"data": data} for data in datas]})


def outcome_of(answer: Reply[Any] | TopicsError) -> str:
    return answer.code if isinstance(answer, TopicsError) else "reply"


class PeersHarness:
    """The peers of a shard whose iterations the test runs. Each session with a peer is a wire."""

    def __init__(self) -> None:
        self.wakes = 0
        self.router = MessageRouter()
        self.peers = Peers(4, self._wake)
        self.outcomes: list[str] = []

    def _wake(self) -> None:
        self.wakes += 1

    def connect(self, shard: int) -> tuple[Wire, Callable[[bytes], None], Callable[[], None]]:
        """Open a session with a peer."""
        wire = Wire()
        session = self.router.open_session(f"shard-{shard}", wire)
        self.peers.add(shard, session)

        def answer(payload: bytes) -> None:
            message = Message(1, 0, TOPIC_GET.subject, payload, b"{}")
            assert self.router.dispatch(session, message) is None

        return wire, answer, session.close

    def call_peer(self, shard: int) -> None:
        self.peers.call(
            shard, TOPIC_GET, STATE, b"", lambda got: self.outcomes.append(outcome_of(got))
        )

    def run_iteration(self) -> list[str]:
        """Run an iteration. Return all outcomes that the callers have received."""
        if self.peers.is_due:
            self.peers.is_due = False
            self.peers.on_due()
        outcomes, self.outcomes = self.outcomes, []
        return outcomes


def test_a_call_to_a_disconnected_peer_fails_in_the_next_iteration_not_during_the_call() -> None:
    peers_harness = PeersHarness()
    peers_harness.call_peer(2)
    assert (peers_harness.outcomes, peers_harness.wakes) == ([], 1)
    assert peers_harness.run_iteration() == ["not_ready"]
    assert peers_harness.run_iteration() == []


def test_replies_and_failures_of_a_peer_reach_the_caller() -> None:
    peers_harness = PeersHarness()
    wire, answer, _ = peers_harness.connect(3)
    peers_harness.call_peer(3)
    answer(encode_success(wire.message_ids[-1], NO_RESULT))
    peers_harness.call_peer(3)
    data = {"code": TopicNotFound.code, "detail": {"topic": "a"}}
    answer(encode_failure(wire.message_ids[-1], 2001, "none", data))
    assert peers_harness.outcomes == ["reply", "topic_not_found"]
    assert peers_harness.wakes == 0


def test_the_disconnect_of_a_peer_fails_its_calls_in_the_next_iteration() -> None:
    peers_harness = PeersHarness()
    _, _, close = peers_harness.connect(1)
    peers_harness.call_peer(1)
    peers_harness.call_peer(1)
    close()
    assert peers_harness.outcomes == []
    assert peers_harness.run_iteration() == ["not_ready", "not_ready"]
    peers_harness.call_peer(1)
    assert peers_harness.run_iteration() == ["not_ready"]


def test_a_call_on_a_session_whose_end_is_not_noticed_fails_in_the_next_iteration() -> None:
    peers_harness = PeersHarness()
    wire, _, _ = peers_harness.connect(1)
    wire.broken = True
    peers_harness.call_peer(1)
    assert peers_harness.outcomes == []
    assert peers_harness.run_iteration() == ["not_ready"]


def test_a_call_made_by_a_reply_handler_fails_in_a_later_iteration() -> None:
    peers_harness = PeersHarness()

    def again(answer: Reply[Any] | TopicsError) -> None:
        peers_harness.outcomes.append(outcome_of(answer))
        peers_harness.call_peer(0)

    peers_harness.peers.call(0, TOPIC_GET, STATE, b"", again)
    assert peers_harness.run_iteration() == ["not_ready"]
    assert peers_harness.run_iteration() == ["not_ready"]


def test_a_reconnected_peer_is_called_on_its_new_session() -> None:
    peers_harness = PeersHarness()
    _, _, close_old = peers_harness.connect(1)
    wire, answer, _ = peers_harness.connect(1)
    close_old()
    peers_harness.call_peer(1)
    answer(encode_success(wire.message_ids[-1], NO_RESULT))
    assert peers_harness.outcomes == ["reply"]


def test_a_listener_is_notified_of_each_session_and_makes_the_first_call() -> None:
    peers_harness, calls = PeersHarness(), list[tuple[int, bool]]()

    def opened(shard: int) -> None:
        calls.append((shard, peers_harness.peers.is_connected(shard)))
        peers_harness.call_peer(shard)

    peers_harness.peers.on_open.append(opened)
    wire, _, close = peers_harness.connect(2)
    assert len(wire.message_ids) == 1
    close()
    assert not peers_harness.peers.is_connected(2)
    peers_harness.connect(2)
    assert calls == [(2, True), (2, True)]


def test_peers_know_the_shard_of_a_topic() -> None:
    assert PeersHarness().peers.shard_of("jobs") == shard_of("jobs", 4)


# A shard and itself


async def test_a_shard_that_calls_itself_waits_for_its_log_as_a_front_does(
    harness: ShardHarness, nursery: trio.Nursery
) -> None:
    got: list[Reply[Any] | TopicsError] = []

    async def append() -> None:
        got.append(await call_peer(harness.loop, 0, APPEND, append_to("a"), records(1, 2)))

    nursery.start_soon(append)
    await wait_all_tasks_blocked()
    assert harness.log.groups, "the append was decided, and waits for the log"
    assert got == []
    harness.log.sync()
    harness.advance()
    await wait_all_tasks_blocked()
    (reply,) = got
    assert isinstance(reply, Reply)
    assert [*map(outcome_in, reply.result.outcomes)] == [AppendOutcome.CREATED]
    assert msgspec.json.decode(bytes(reply.body))["seqs"] == [1, 2]
    reply.release()
    assert reply.body == b""
    assert harness.seqs("a") == [1, 2]


async def test_a_shard_that_calls_itself_receives_the_error_that_was_raised(
    harness: ShardHarness,
) -> None:
    failure = await call_peer(harness.loop, 0, TOPIC_GET, STATE)
    assert isinstance(failure, TopicNotFound)
    assert failure.detail["topic"] == "a"


async def test_a_message_of_a_shard_to_itself_is_handled_in_a_later_iteration(
    harness: ShardHarness,
) -> None:
    """This includes messages that a reply handler sends, so that no iteration runs forever."""
    iterations: list[int] = []

    def then(answer: Reply[Any] | TopicsError) -> None:
        iterations.append(harness.loop.context.iteration_count - before)
        if len(iterations) < 4:
            harness.loop.context.peers.call(0, TOPIC_GET, STATE, b"", then)

    await wait_all_tasks_blocked()
    before = harness.loop.context.iteration_count
    harness.loop.context.peers.call(0, TOPIC_GET, STATE, b"", then)
    harness.loop.end_iteration()
    await wait_all_tasks_blocked()
    assert iterations == [2, 4, 6, 8], "one iteration for each request and one for each reply"


async def test_the_attachment_of_a_message_of_a_shard_to_itself_is_a_copy(
    harness: ShardHarness, nursery: trio.Nursery
) -> None:
    harness.make("a")
    harness.log.immediate = True
    body = bytearray(records("as it was"))

    def then(_: object) -> None:
        pass

    harness.loop.context.peers.call(0, APPEND, append_to("a"), body, then)
    body[:] = bytes(len(body))
    harness.loop.end_iteration()
    await wait_all_tasks_blocked()
    harness.diff("a")
    ((_, page),) = harness.bodies()
    assert [record["data"] for record in page["records"]] == ["as it was"]


async def test_calls_of_a_shard_to_itself_fail_when_its_log_fails(
    harness: ShardHarness, nursery: trio.Nursery
) -> None:
    got: list[Reply[Any] | TopicsError] = []

    async def append() -> None:
        got.append(await call_peer(harness.loop, 0, APPEND, append_to("a"), records(1)))

    nursery.start_soon(append)
    await wait_all_tasks_blocked()
    harness.failed(OSError(5, "broken"))
    harness.loop.deadlines.wake()
    await wait_all_tasks_blocked()
    (reply,) = got
    assert isinstance(reply, Reply)
    assert [*map(outcome_in, reply.result.outcomes)] == [AppendOutcome.FAILED]


# Two shards with a link


class Shards:
    """Two shards with real logs in one process, and the link between them."""

    def __init__(self, folder: Path, nursery: trio.Nursery) -> None:
        self.folder, self.nursery = folder, nursery
        self.board = Board(2)
        self.memory = LinkMemory(shard_id(0), shard_id(1), SHARD_LINK)
        self.stop = trio.Event()
        self.shards = [
            recover(folder, index, 2, clock(), wal_file_bytes=4 << 20, wal_sync_ms=20)
            for index in range(2)
        ]
        self.loops = [ShardLoop(self.shards[i], i, self.board, LIMITS) for i in range(2)]

    def start(self, index: int) -> None:
        own: ProcessId = shard_id(index)
        links = [Link(self.memory, self.board, own)]
        self.nursery.start_soon(self.loops[index].run, links, self.stop)

    def end_session(self) -> None:
        self.board.bump_session(*self.memory.ends)
        self.memory.ring_doorbells()

    def close(self) -> None:
        self.stop.set()
        for shard in self.shards:
            shard.wal.stop()
        self.memory.close()


async def test_two_shards_call_each_other_over_their_link(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """Bodies and replies are too long for the ring and are sent in both directions concurrently."""
    both = Shards(tmp_path, nursery)
    for index in range(2):
        both.start(index)
    seqs: dict[int, list[int]] = {}

    async def append(caller: int) -> None:
        body = records(*["x" * 60_000] * 8, "y" * 300_000)
        for _ in range(2):
            reply = await call_until_connected(
                both.loops[caller], 1 - caller, APPEND, append_to("a"), body
            )
            assert isinstance(reply, Reply)
            seqs[caller] = msgspec.json.decode(bytes(reply.body))["seqs"]
            reply.release()

    with trio.fail_after(30):
        async with trio.open_nursery() as callers:
            callers.start_soon(append, 0)
            callers.start_soon(append, 1)
    assert seqs == {0: [*range(10, 19)], 1: [*range(10, 19)]}
    assert [shard.engine.topic("a").head_seq for shard in both.shards] == [18, 18]
    both.close()


async def test_a_peer_can_be_called_while_a_link_session_with_it_is_open(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    both = Shards(tmp_path, nursery)
    both.start(0)
    with trio.fail_after(30):
        assert outcome_of(await call_peer(both.loops[0], 1, TOPIC_GET, STATE)) == "not_ready"
        both.start(1)
        both.end_session()
        answer = await call_until_connected(both.loops[0], 1, TOPIC_GET, STATE)
        assert isinstance(answer, TopicNotFound)
    both.close()
