"""The calls and events between a front and its shards, on real links and the clock of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from topics.actors.link.board import Board, ShardState
from topics.actors.link.heads import HeadSlotWriter
from topics.actors.link.link import Link
from topics.actors.link.link_memory import LinkMemory, LinkSizes
from topics.actors.link.process_id import FRONT, shard_id
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import InboundMessage, LinkSession, Reply
from topics.actors.shard_client.shards import LINKED_MAX_S, RING_BYTES_PER_MS, Shards
from topics.config import Settings
from topics.engine.topic import Topic
from topics.errors import NotReady, TopicsError
from topics.formats.api.topic_config import TopicConfig
from topics.formats.wire.calls import (
    APPEND,
    CLAIM,
    DIFF,
    FEED_ENDED,
    FEED_PAGE,
    FEED_READ,
    TOPIC_GET,
    UNCLAIMED,
    WORK_ENDED,
    WORK_JOBS,
    FeedEndedParams,
    FeedPageParams,
    TopicGetParams,
    TopicParams,
    UnclaimedParams,
    WorkEndedParams,
    WorkJobsParams,
)
from topics.formats.wire.contract import Call
from topics.formats.wire.message import Message

SETTINGS = Settings(ring_bytes=1 << 16, inline_bytes=4096, arena_bytes=1 << 20)
NOTHING: Any = ()  # Params that are not read
OK = 200
POLL = b'{"from_seq":0,"wait_ms":30000}'
WAITING = b'{"node":"n","wait_ms":30000}'


PAGE = FeedPageParams(0, 1, 1, 1, 1, None, 5, 2, True)


class Shard:
    """The shard end of a link. Its heartbeat advances while ``awake``. It replies to queries of a
    topic's state immediately, and to all other calls when the test calls `reply`.
    """

    def __init__(self, board: Board, number: int, router: MessageRouter) -> None:
        self.cells, self.number = board.shard(number), number
        self.memory = LinkMemory(FRONT, shard_id(number), LinkSizes.of(SETTINGS))
        self.link = Link(self.memory, board, shard_id(number))
        self.requests: list[InboundMessage[Any, Any]] = []
        self.names: list[str] = []
        self.awake = True
        self.router = router
        for call in (APPEND, CLAIM, DIFF, FEED_READ):
            router.serve(call, self.requests.append)
        router.serve(TOPIC_GET, self._get)
        self.unclaimed: list[UnclaimedParams] = []
        router.subscribe(UNCLAIMED, lambda event: self.unclaimed.append(event.params))
        self.session: LinkSession | None = None
        self.cells.state = ShardState.READY

    def _get(self, request: InboundMessage[TopicGetParams, Any]) -> None:
        self.names.append(request.params.topic)
        request.reply((), b"from %d" % self.number)

    async def send_heartbeats(self) -> None:
        while True:
            self.cells.heartbeat_ms += self.awake
            await trio.sleep(0.5)

    async def run(self) -> None:
        def opened() -> None:
            self.session = self.router.open_session("front-0", self.link)

        def arrived(messages: list[Message]) -> None:
            assert self.session is not None
            for message in messages:
                self.router.dispatch(self.session, message)

        def closed() -> None:
            if self.session is not None:
                self.session.close()

        await self.link.run(opened, arrived, closed)

    async def reply(self, *result: Any) -> None:
        for request in self.requests:
            request.reply(result or (OK,))
        self.requests.clear()
        self.link.flush()
        await wait_all_tasks_blocked()


class ShardClientHarness:
    """A front and its shards. Events of the shards are in ``events``."""

    def __init__(self, shards: int = 2) -> None:
        self.board = Board(shards)
        self.others = [Shard(self.board, number, MessageRouter()) for number in range(shards)]
        self.shard = self.others[0]
        self.memory = self.shard.memory
        self.shards = Shards([Link(o.memory, self.board, FRONT) for o in self.others], self.board)
        self.events: list[tuple[Any, ...]] = []
        self.shards.listen(self)
        self.nursery: trio.Nursery

    def opened(self, shard: int) -> None:
        """Do nothing when a link session opens."""

    closed = opened

    def page(self, shard: int, params: Any, records: Any = b"") -> None:
        self.events.append((shard, params, bytes(records)))

    jobs = feed_ended = work_ended = page

    def start_call(
        self, call: Call[Any, Any], body: bytes = b"{}", params: Any = NOTHING
    ) -> list[Any]:
        """Make a call in a task. The reply is added to the returned list."""
        answers: list[Any] = []

        async def make_call() -> None:
            try:
                answers.append((await self.shards.answer(0, call, params, body)).result[0])
            except NotReady as failure:
                answers.append(failure.detail.get("reason"))

        self.nursery.start_soon(make_call)
        return answers

    async def stall(self) -> None:
        self.shard.awake = False
        await trio.sleep(4)


@pytest.fixture
async def harness() -> AsyncIterator[ShardClientHarness]:
    harness = ShardClientHarness()
    async with trio.open_nursery() as harness.nursery:
        harness.nursery.start_soon(harness.shards.run)
        for other in harness.others:
            harness.nursery.start_soon(other.run)
            harness.nursery.start_soon(other.send_heartbeats)
        await trio.sleep(1)
        yield harness
        harness.nursery.cancel_scope.cancel()
    for other in harness.others:
        other.memory.close()


async def test_calls_of_a_stalled_shard_fail_and_new_calls_are_refused(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    hanging = harness.start_call(APPEND)
    replies: list[Reply[Any] | TopicsError] = []
    harness.shards.call(0, FEED_READ, NOTHING, b"", replies.append)
    await harness.stall()
    assert hanging == ["stalled"]
    assert isinstance(replies[0], NotReady)
    new = harness.start_call(APPEND)
    with pytest.raises(NotReady):
        harness.shards.reserve(0, 100_000, None)
    await wait_all_tasks_blocked()
    assert new == ["stalled"]
    assert harness.shards.readiness().unavailable == ((0, "stalled"),)
    assert not harness.shards.readiness().ready


async def test_a_long_poll_survives_a_stall_and_late_replies_are_dropped(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    poll, read, hanging = (
        harness.start_call(DIFF, POLL),
        harness.start_call(DIFF),
        harness.start_call(APPEND),
    )
    await harness.stall()
    assert (poll, read, hanging) == ([], ["stalled"], ["stalled"])
    harness.shard.awake = True
    await trio.sleep(1.6)  # A tick, then a check
    assert harness.shards.readiness().ready
    await harness.shard.reply()
    assert (poll, read, hanging) == ([OK], ["stalled"], ["stalled"])
    retried = harness.start_call(APPEND)
    await wait_all_tasks_blocked()
    await harness.shard.reply()
    assert retried == [OK]


async def test_only_a_waiting_claim_survives_a_stall(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    params = TopicParams("q", 0)
    waiting = harness.start_call(CLAIM, WAITING, params)
    claim = harness.start_call(CLAIM, b'{"node":"n"}', params)
    await harness.stall()
    assert (waiting, claim) == ([], ["stalled"])
    harness.shard.awake = True
    await trio.sleep(1.6)
    await harness.shard.reply(5, [1, 2])
    assert waiting == [5]
    assert harness.shard.unclaimed == [UnclaimedParams("q", 5, [1, 2])], (
        "the leases of the claim that had failed"
    )


async def test_only_a_positive_wait_ms_makes_a_call_wait(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    waiting = [
        harness.start_call(DIFF, b'{"node":"wait_ms", "wait_ms" : 1}'),
        harness.start_call(CLAIM, b'{"wait_ms":500,"node":"n"}', TopicParams("q", 0)),
    ]
    others = [
        harness.start_call(DIFF, b'{"from_seq":0,"wait_ms":0}'),
        harness.start_call(DIFF, b'{"node":"wait_ms"}'),
        harness.start_call(DIFF, rb'{"node":"\"wait_ms\":1"}'),
        harness.start_call(DIFF, b'{"limit":1,"other":["wait_ms",1]}'),
        harness.start_call(CLAIM, b'{"node":"n","wait_ms":0}', TopicParams("q", 0)),
    ]
    await harness.stall()
    assert waiting == [[], []]
    assert others == [["stalled"]] * 5


async def test_a_long_poll_ends_when_the_stalled_shard_is_killed(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    poll = harness.start_call(DIFF, POLL)
    await harness.stall()
    harness.shard.cells.state = ShardState.DOWN
    harness.board.bump_session(*harness.memory.ends)
    harness.memory.ring_doorbells()
    await trio.sleep(0.1)
    assert poll == [None]
    assert harness.shards.readiness().unavailable == ((0, "down"),)


async def test_a_hanging_disk_fails_the_waiting_writes_and_no_reads(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    read, hanging = harness.start_call(DIFF), harness.start_call(APPEND)
    await trio.sleep(1)
    harness.shard.cells.disk_silent_ms = 10_500
    await trio.sleep(0.6)
    assert (read, hanging) == ([], ["disk_stalled"])
    assert harness.shards.readiness().unavailable == ((0, "disk_stalled"),)
    await wait_all_tasks_blocked()
    request_count = len(harness.shard.requests)
    refused = harness.start_call(APPEND)
    await wait_all_tasks_blocked()
    assert (refused, len(harness.shard.requests)) == (["disk_stalled"], request_count), (
        "the call is not sent to the shard"
    )
    harness.shard.cells.disk_silent_ms = 0
    await harness.shard.reply()
    assert (read, hanging) == ([OK], ["disk_stalled"])
    assert harness.shards.readiness().ready
    retried = harness.start_call(APPEND)
    await wait_all_tasks_blocked()
    await harness.shard.reply()
    assert retried == [OK], "the call is sent immediately, not after the next check"


async def test_eight_calls_of_a_batch_are_sent_before_its_end(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    link = harness.shards._links[0].link
    is_kept = []
    with harness.shards.batch:
        for _ in range(9):
            harness.shards.call(0, APPEND, NOTHING, b"{}", lambda _: None)
            is_kept.append(link.backlog_bytes > 0)
    assert is_kept == [*[True] * 7, False, True]
    assert link.backlog_bytes == 0


async def test_calls_that_tasks_make_after_an_iteration_are_flushed_together(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    link, batch = harness.shards._links[0].link, harness.shards.batch
    with batch:
        pass
    batch.runs_tasks = True
    for _ in range(2):
        harness.shards.call(0, APPEND, NOTHING, b"{}", lambda _: None)
        assert link.backlog_bytes
    batch.flush()
    assert link.backlog_bytes == 0


async def test_a_cancelled_call_is_abandoned(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.move_on_after(1):
        await harness.shards.answer(0, APPEND, NOTHING)
    session = harness.shards._links[0].session
    assert session is not None
    assert session.calls == {}
    await harness.shard.reply()
    retried = harness.start_call(APPEND)
    await wait_all_tasks_blocked()
    await harness.shard.reply()
    assert retried == [OK]


async def test_a_caller_that_is_cancelled_after_the_reply_arrived_still_receives_it(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    """The task owns the reply when it is woken, before it runs. It must release the memory to which
    the reply refers.
    """
    with trio.CancelScope() as scope:
        got: list[Any] = []

        async def make_call() -> None:
            got.append(await harness.shards.answer(0, APPEND, NOTHING))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_call)
            await wait_all_tasks_blocked()
            session = harness.shards._links[0].session
            assert session is not None
            (pending,) = session.calls.values()
            answered, then = trio.Event(), pending.then

            def cancel(answer: Any) -> None:
                then(answer)
                scope.cancel()
                answered.set()

            pending.then = cancel
            await harness.shard.reply()
            with trio.CancelScope(shield=True):
                await answered.wait()
    assert [reply.result[0] for reply in got] == [OK]


async def test_calls_made_in_an_iteration_of_a_ring_are_sent_at_its_end(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    seen: list[bool] = []
    harness.shards.call(
        0, APPEND, NOTHING, b"", lambda _: seen.append(harness.shards.batch.is_open)
    )
    await wait_all_tasks_blocked()
    await harness.shard.reply()
    assert seen == [True]
    assert not harness.shards.batch.is_open


async def test_a_damaged_shard_is_reported_as_damaged(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    harness.shard.cells.state = ShardState.DAMAGED
    shards = Shards(
        [Link(harness.memory, harness.board, FRONT)], harness.board
    )  # one that has no session yet
    with pytest.raises(NotReady) as refused:
        await shards.answer(0, APPEND, NOTHING)
    assert refused.value.detail == {"reason": "damaged", "replay_progress": 0.0}
    assert shards.readiness().unavailable == ((0, "damaged"),)


async def test_the_delay_of_a_shard_is_the_sum_of_ring_and_inbox(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    assert harness.shards.delay_ms(0) == 0
    harness.shard.cells.delay_ms = 7
    assert harness.shards.delay_ms(0) == 7
    backlog = [b"x" * 1000] * 10
    link = harness.shards._links[0].link
    while link.backlog_bytes < 10 * RING_BYTES_PER_MS:
        for body in backlog:
            harness.shards.call(0, APPEND, NOTHING, body, lambda _answer: None)
    assert 17 <= harness.shards.delay_ms(0) < 18


async def test_a_shard_without_calls_delays_no_request(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    harness.shard.cells.delay_ms = 700
    await harness.stall()
    assert harness.shards.delay_ms(0) == 0


async def test_a_successor_is_not_ready_before_its_link_session_is_open(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    harness.board.bump_session(
        *harness.memory.ends
    )  # The shard has died, and no doorbell was rung yet
    harness.shard.cells.state = ShardState.READY
    assert harness.shards.readiness().unavailable == ((0, "connecting"),)


async def test_a_call_reaches_the_specified_shard_and_its_reply_the_caller(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    replies: list[list[Any]] = [[], []]
    for shard, answers in enumerate(replies):
        params = TopicGetParams(f"t{shard}", touch=False, at=0)
        harness.shards.call(shard, TOPIC_GET, params, b"", answers.append)
    await wait_all_tasks_blocked()
    assert [other.names for other in harness.others] == [["t0"], ["t1"]]
    assert [[bytes(reply.body) for reply in answers] for answers in replies] == [
        [b"from 0"],
        [b"from 1"],
    ]


async def test_an_event_of_a_shard_is_delivered_with_the_number_of_the_shard(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    ended = FeedEndedParams(5, 9, "internal")
    jobs, work_ended = WorkJobsParams(7, [1, 2], [4, 5]), WorkEndedParams(7, "not_a_queue", "why")
    for other in reversed(harness.others):
        assert other.session is not None
        other.session.notify(FEED_PAGE, PAGE, b"records of %d" % other.number)
        other.session.notify(FEED_ENDED, ended)
        other.session.notify(WORK_JOBS, jobs, b"jobs of %d" % other.number)
        other.session.notify(WORK_ENDED, work_ended)
        other.link.flush()
        await wait_all_tasks_blocked()
    assert harness.events == [
        (1, PAGE, b"records of 1"),
        (1, ended, b""),
        (1, jobs, b"jobs of 1"),
        (1, work_ended, b""),
        (0, PAGE, b"records of 0"),
        (0, ended, b""),
        (0, jobs, b"jobs of 0"),
        (0, work_ended, b""),
    ]


async def test_the_head_of_a_page_is_read_from_the_cells_of_its_shard(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    topic = Topic(1, "a", 1, TopicConfig())
    topic.head_seq = 10
    mark = HeadSlotWriter(harness.board.heads(1)).mark(topic)
    assert (harness.shards.head(1, mark), harness.shards.head(0, mark)) == (10, None)


async def test_the_front_is_ready_if_all_shards_are_ready(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    assert harness.shards.readiness().ready
    harness.board.shard(1).state = ShardState.RECOVERING
    assert not harness.shards.readiness().ready
    assert [number for number, _ in harness.shards.readiness().unavailable] == [1]


async def test_a_front_waits_for_its_sessions_with_the_serving_shards(
    autojump_clock: trio.testing.MockClock,
) -> None:
    harness = ShardClientHarness()
    shards, board = harness.shards, harness.board
    began = autojump_clock.current_time()
    await shards.wait_linked()
    assert autojump_clock.current_time() - began == LINKED_MAX_S, (
        "no shard is linked, and the wait is bounded"
    )
    for other in harness.others:
        board.shard(other.number).state = ShardState.RECOVERING
    began = autojump_clock.current_time()
    await shards.wait_linked()
    assert autojump_clock.current_time() == began, (
        "a front does not wait for shards that are not serving yet"
    )


async def test_a_linked_front_does_not_wait(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    began = autojump_clock.current_time()
    await harness.shards.wait_linked()
    assert autojump_clock.current_time() == began


async def test_a_batch_whose_block_raises_is_sent_and_closed(
    harness: ShardClientHarness, autojump_clock: trio.testing.MockClock
) -> None:
    def fail() -> None:
        with harness.shards.batch:
            for shard in range(2):
                params = TopicGetParams(f"t{shard}", touch=False, at=0)
                harness.shards.call(shard, TOPIC_GET, params, b"", lambda _: None)
            assert all(link.link.backlog_bytes for link in harness.shards._links)
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        fail()
    assert not harness.shards.batch.is_open
    await wait_all_tasks_blocked()
    assert [other.names for other in harness.others] == [["t0"], ["t1"]]
