"""Shards: what a front asks goes to the shard that owns it, and what shards send is told apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from trio.testing import MockClock

from tests.actors.link.link_support import SMALL
from topics.actors.link.board import Board, ShardState
from topics.actors.link.heads import HeadWriter
from topics.actors.link.link import Link
from topics.actors.link.link_memory import LinkMemory
from topics.actors.link.process_id import FRONT, shard_id
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import LinkSession
from topics.actors.rpc.typed_calls import InboundCall, serve
from topics.actors.shard_client.shards import LINKED_MAX_S, Shards
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig
from topics.formats.names import shard_of
from topics.formats.wire.calls import (
    FEED_ENDED,
    FEED_PAGE,
    TOPIC_GET,
    WORK_ENDED,
    WORK_JOBS,
    FeedEndedParams,
    FeedPageParams,
    TopicGetParams,
    WorkEndedParams,
    WorkJobsParams,
)
from topics.formats.wire.message import Message

PAGE = FeedPageParams(0, 1, 1, 1, 1, None, 5, 2, True)


class Shard:
    """The other end of a link; it answers with its number."""

    def __init__(self, board: Board, number: int, router: MessageRouter) -> None:
        self.memory = LinkMemory(FRONT, shard_id(number), SMALL)
        self.link = Link(self.memory, board, shard_id(number))
        self.number, self.router = number, router
        self.session: LinkSession | None = None
        self.asked: list[str] = []
        serve(router, TOPIC_GET, self._get)
        board.shard(number).state = ShardState.READY

    def _get(self, request: InboundCall[TopicGetParams, Any]) -> None:
        self.asked.append(request.params.topic)
        request.reply((), b"from %d" % self.number)

    def turn(self) -> None:
        self.link.turn(self._opened, self._arrived, lambda: None)
        self.link.flush()

    def _opened(self) -> None:
        self.session = self.router.open_session("front-0", self.link)

    def _arrived(self, messages: list[Message]) -> None:
        assert self.session is not None
        for message in messages:
            self.router.dispatch(self.session, message)


class Desk:
    """A front with two shards; the test takes the turns of all."""

    def __init__(self) -> None:
        self.board = Board(2)
        self.others = [Shard(self.board, number, MessageRouter()) for number in range(2)]
        links = [Link(other.memory, self.board, FRONT) for other in self.others]
        self.shards = Shards(links, self.board)
        self.told: list[tuple[Any, ...]] = []
        self.shards.listen(self)

    def opened(self, shard: int) -> None:
        """Not asked here."""

    closed = opened

    def page(self, shard: int, params: FeedPageParams, records: Any) -> None:
        self.told.append((shard, params, bytes(records)))

    def feed_ended(self, shard: int, params: FeedEndedParams) -> None:
        self.told.append((shard, params))

    def jobs(self, shard: int, params: WorkJobsParams, jobs: Any) -> None:
        self.told.append((shard, params, bytes(jobs)))

    def work_ended(self, shard: int, params: WorkEndedParams) -> None:
        self.told.append((shard, params))

    def turn(self) -> None:
        for _ in range(2):
            for link in self.shards._links:
                link.link.turn(link.opened, link.arrived, link.closed)
            for other in self.others:
                other.turn()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    desk.turn()
    yield desk
    for other in desk.others:
        other.memory.close()


def test_a_topic_belongs_to_the_same_shard_for_front_and_shards(desk: Desk) -> None:
    names = [f"t{number}" for number in range(20)]
    assert [desk.shards.shard_of(name) for name in names] == [shard_of(name, 2) for name in names]


def test_a_question_goes_to_the_shard_that_is_named_and_its_answer_to_who_asked(desk: Desk) -> None:
    heard: list[list[Any]] = [[], []]
    for shard, answers in enumerate(heard):
        params = TopicGetParams(f"t{shard}", touch=False, at=0)
        desk.shards.call(shard, TOPIC_GET, params, b"", answers.append)
    desk.turn()
    assert [other.asked for other in desk.others] == [["t0"], ["t1"]]
    assert [[bytes(reply.body) for reply in answers] for answers in heard] == [
        [b"from 0"],
        [b"from 1"],
    ]


def test_what_a_shard_sends_unasked_is_told_with_its_number(desk: Desk) -> None:
    ended = FeedEndedParams(5, 9, "internal")
    jobs, work_ended = WorkJobsParams(7, [1, 2], [4, 5]), WorkEndedParams(7, "not_a_queue", "why")
    for other in reversed(desk.others):
        assert other.session is not None
        other.session.notify(FEED_PAGE, PAGE, b"records of %d" % other.number)
        other.session.notify(FEED_ENDED, ended)
        other.session.notify(WORK_JOBS, jobs, b"jobs of %d" % other.number)
        other.session.notify(WORK_ENDED, work_ended)
        other.turn()
        desk.turn()
    assert desk.told == [
        (1, PAGE, b"records of 1"),
        (1, ended),
        (1, jobs, b"jobs of 1"),
        (1, work_ended),
        (0, PAGE, b"records of 0"),
        (0, ended),
        (0, jobs, b"jobs of 0"),
        (0, work_ended),
    ]


def test_the_head_of_a_page_is_read_from_the_words_of_its_shard(desk: Desk) -> None:
    topic = Topic(1, "a", 1, TopicConfig())
    topic.head_seq = 10
    mark = HeadWriter(desk.board.heads(1)).mark(topic)
    assert (desk.shards.head(1, mark), desk.shards.head(0, mark)) == (10, None)


def test_all_shards_together_are_ready_when_each_is(desk: Desk) -> None:
    assert desk.shards.readiness().ready
    desk.board.shard(1).state = ShardState.RECOVERING
    assert not desk.shards.readiness().ready
    assert [number for number, _ in desk.shards.readiness().unwell] == [1]


async def test_a_front_waits_for_its_sessions_with_the_shards_that_serve(
    autojump_clock: MockClock,
) -> None:
    board = Board(2)
    others = [Shard(board, number, MessageRouter()) for number in range(2)]
    shards = Shards([Link(other.memory, board, FRONT) for other in others], board)
    began = autojump_clock.current_time()
    await shards.wait_linked()
    assert autojump_clock.current_time() - began == LINKED_MAX_S, "no longer, and none is linked"
    for other in others:
        board.shard(other.number).state = ShardState.RECOVERING
    began = autojump_clock.current_time()
    await shards.wait_linked()
    assert autojump_clock.current_time() == began, "nobody is asked yet"


async def test_a_front_that_is_linked_does_not_wait(desk: Desk, autojump_clock: MockClock) -> None:
    began = autojump_clock.current_time()
    await desk.shards.wait_linked()
    assert autojump_clock.current_time() == began


def test_a_batch_that_fails_is_sent_and_over(desk: Desk) -> None:
    def fail() -> None:
        with desk.shards.batch:
            for shard in range(2):
                params = TopicGetParams(f"t{shard}", touch=False, at=0)
                desk.shards.call(shard, TOPIC_GET, params, b"", lambda _: None)
            for other in desk.others:
                other.turn()
                assert other.asked == []
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        fail()
    assert not desk.shards.batch.is_open
    for other in desk.others:
        other.turn()
    assert [other.asked for other in desk.others] == [["t0"], ["t1"]]
