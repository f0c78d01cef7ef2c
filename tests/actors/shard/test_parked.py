"""Parked messages: what keeps its order, and who gets how much of the turns."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.wire import encode_notification, encode_request, encode_success
from topics.actors.rpc.session import LinkSession
from topics.actors.shard.parked import COMMON, COST_BYTES, COST_MAX, WEIGHTS, ParkedMessages
from topics.engine.priority import BANDS, TOP_BAND
from topics.formats.wire import calls
from topics.formats.wire.contract import Call, Event
from topics.formats.wire.message import Message

ROUND = sum(WEIGHTS)


class Session:
    """Stands for a link session: messages only come with it."""


class Desk:
    """Messages of one session to topics whose names end with their band."""

    def __init__(self) -> None:
        self.bands: dict[str, int] = {}
        self.looked_up: Counter[str] = Counter()
        self.parked = ParkedMessages(self._band_of)
        self.session = cast("LinkSession", Session())
        self.now = 1.0
        self._number = 0

    def _band_of(self, topic: str) -> int:
        self.looked_up[topic] += 1
        return self.bands.get(topic, int(topic[-1]))

    def _park(self, subject: str, payload: bytes, body: bytes, session: LinkSession | None) -> int:
        message = Message(self._number, 0, subject, payload, body)
        self.parked.park([(session or self.session, [message])], self.now)
        return self._number

    def ask(
        self,
        call: Call[Any, Any],
        *params: Any,
        body: bytes = b"",
        session: LinkSession | None = None,
    ) -> int:
        """A request; the id of its message."""
        self._number += 1
        payload = encode_request(self._number, call.method, params)
        return self._park(call.subject, payload, body, session)

    def append(self, topic: str, length: int = 0, session: LinkSession | None = None) -> int:
        return self.ask(calls.APPEND, topic, body=bytes(length), session=session)

    def tell(self, event: Event[Any], *params: Any, session: LinkSession | None = None) -> int:
        self._number += 1
        return self._park(event.subject, encode_notification(event.method, params), b"", session)

    def answer(self) -> int:
        self._number += 1
        return self._park(calls.APPEND.subject, encode_success(3, ["a4"]), b"", None)

    def take(self, cost: float = math.inf) -> list[int]:
        """Ids of the next messages."""
        return [message.message_id for message in self.messages(cost)]

    def messages(self, cost: float = math.inf) -> list[Message]:
        taken = self.parked.take(cost, self.now)
        return [message for _, messages in taken for message in messages]


@pytest.fixture
def desk() -> Desk:
    return Desk()


# Shares


def test_bands_share_a_round_by_their_weights(desk: Desk) -> None:
    sent = {desk.append(f"a{band}"): band for _ in range(10 * ROUND) for band in range(BANDS)}
    sent |= {desk.tell(calls.UNCLAIMED, 1): COMMON for _ in range(10 * ROUND)}
    for _ in range(3):
        taken = Counter(sent[number] for number in desk.take(ROUND))
        assert [taken[each] for each in range(COMMON + 1)] == [*WEIGHTS]


def test_a_band_that_is_alone_gets_everything(desk: Desk) -> None:
    numbers = [desk.append("a0") for _ in range(200)]
    assert desk.take(200) == numbers


def test_what_a_band_did_not_use_is_not_saved_up(desk: Desk) -> None:
    for _ in range(400):
        desk.append("low1")
    for _ in range(20):  # more rounds than one, in which the band has little to take
        desk.append("high4")
        desk.take(WEIGHTS[1] + 1)
    high = {desk.append("high4") for _ in range(300)}
    taken = desk.take(270)
    assert len(high.intersection(taken)) <= 270 * 16 / 18 + 16


def test_an_urgent_message_waits_for_a_part_of_a_round(desk: Desk) -> None:
    for band in range(TOP_BAND):
        for _ in range(500):
            desk.append(f"a{band}")
    desk.take(333)
    urgent = desk.append("a4")
    assert urgent in desk.take(sum(WEIGHTS[:TOP_BAND]) + 1)


@pytest.mark.parametrize("before", [0, 1, 10])
def test_the_lowest_band_gets_its_turn_in_each_round(desk: Desk, before: int) -> None:
    for band in range(1, BANDS):
        for _ in range(50 * ROUND):
            desk.append(f"a{band}")
    for _ in range(50 * ROUND):
        desk.tell(calls.UNCLAIMED, 1)
    for _ in range(before):
        desk.append("a0")
    low = desk.append("a0")
    assert low in desk.take((before + 2) * ROUND)


@pytest.mark.parametrize("is_first", [True, False])
def test_topics_of_a_band_take_turns(desk: Desk, is_first: bool) -> None:
    noisy = [] if is_first else [desk.append("noisy1") for _ in range(100)]
    quiet = [desk.append(f"quiet{number}.1") for number in range(5) for _ in range(2)]
    noisy += [desk.append("noisy1") for _ in range(100)]
    assert set(quiet) <= set(desk.take(12))
    assert desk.take(5) == noisy[2:7]


def test_long_messages_cost_more(desk: Desk) -> None:
    for _ in range(100):
        desk.append("long2", 4 * COST_BYTES)
    short = {desk.append("short1") for _ in range(100)}
    taken = desk.take(100 + 20)
    assert len(short.intersection(taken)) / 2 > len(set(taken) - short) / 4
    assert len(desk.take(1)) == 1, "however long it is"


def test_one_very_long_message_delays_its_band_for_a_while_only(desk: Desk) -> None:
    desk.append("a0", 1000 * COST_MAX * COST_BYTES)
    next_one = desk.append("a0")
    for _ in range(200 * ROUND):
        desk.append("a4")
    assert next_one in desk.take((COST_MAX + 2) * (WEIGHTS[0] + WEIGHTS[4]) + COST_MAX)


# Bands


def test_a_band_is_looked_up_once_in_a_turn(desk: Desk) -> None:
    for _ in range(10):
        desk.append("a1")
    desk.take(5)
    assert desk.looked_up["a1"] == 1
    desk.now = 2.0
    desk.take(4)
    assert desk.looked_up["a1"] == 2


def test_a_line_changes_its_band_with_its_topic(desk: Desk) -> None:
    for _ in range(300):
        desk.append("other3")
    line = [desk.append("a0") for _ in range(50)]
    desk.take(20)
    desk.now, desk.bands["a0"] = 2.0, 4
    taken = [number for number in desk.take(120) if number in line]
    assert taken == line[-len(taken) :] or taken == line[: len(taken)]
    assert len(taken) > 40, "most of them, with twice the weight of the others"


# Order


def test_what_names_no_topic_is_in_order(desk: Desk) -> None:
    other = cast("LinkSession", Session())
    sent = []
    for number in range(5):
        desk.append("a4")
        sent.append(desk.tell(calls.FEED_TAKEN, number))
        sent.append(desk.ask(calls.FORWARD, "a4", session=other))
        sent.append(desk.ask(calls.ROUTER_ENDPOINT, "a0", True))
        sent.append(desk.answer())
        sent.append(desk.tell(calls.UNCLAIMED, 7, session=other))
    assert [number for number in desk.take() if number in sent] == sent


def test_a_cancellation_stays_behind_its_request(desk: Desk) -> None:
    other = cast("LinkSession", Session())
    flood = [desk.append("a4") for _ in range(40)]
    claim = desk.ask(calls.CLAIM, "q0", 1)
    cancelled = desk.tell(calls.CALL_CANCELLED, claim)
    unrelated = desk.tell(calls.CALL_CANCELLED, claim, session=other)
    taken = desk.take()
    assert taken.index(claim) < taken.index(cancelled)
    assert taken.index(unrelated) < taken.index(flood[0])
    for _ in range(40):
        desk.append("q0")
    late = desk.tell(calls.CALL_CANCELLED, claim)
    assert desk.take().index(late) < 3, "its request has been taken"


@pytest.mark.parametrize(
    ("open_call", "close"),
    [(calls.FEED_OPEN, calls.FEED_CLOSE), (calls.WORK_OPEN, calls.WORK_CLOSE)],
    ids=["feed", "work"],
)
def test_a_close_stays_behind_its_open(
    desk: Desk, open_call: Call[Any, Any], close: Event[Any]
) -> None:
    opens = [desk.ask(open_call, 7, topic) for topic in ("a0", "a1")]
    closed = desk.tell(close, 7)
    other = desk.tell(close, 8)
    taken = desk.take(2 * ROUND)
    assert taken[0] == other
    assert taken.index(opens[1]) < taken.index(closed)
    assert desk.parked._followed == {}


def test_a_request_about_several_topics_waits_behind_each_of_them(desk: Desk) -> None:
    before = [desk.append(topic) for topic in ("a0", "b1", "a0", "c3", "b1")]
    heads = desk.ask(calls.TOPIC_HEADS, ["none", "c3", "a0", "b1"])
    for _ in range(5 * ROUND):
        desk.append("d4")
        desk.append("c3")
    desk.append("a0")
    taken = desk.take()
    assert max(map(taken.index, before)) < taken.index(heads)
    assert len(taken) == 5 + 1 + 10 * ROUND + 1
    alone = desk.ask(calls.TOPIC_HEADS, ["none", "c3"])
    assert desk.take() == [alone]


def test_a_close_stays_behind_the_last_open_of_its_number(desk: Desk) -> None:
    first = desk.ask(calls.FEED_OPEN, 7, "a4")
    before = [desk.append("b0") for _ in range(40)]
    last = desk.ask(calls.FEED_OPEN, 7, "b0")
    assert desk.take(1) == [first]
    closed = desk.tell(calls.FEED_CLOSE, 7)
    assert desk.take() == [*before, last, closed]


# How long


def test_a_message_tells_how_long_it_was_parked(desk: Desk) -> None:
    for _ in range(3):
        desk.append("a1")
    assert [message.parked_ms for message in desk.messages(1)] == [0.0]
    desk.now += 0.25
    desk.append("a1")
    assert [message.parked_ms for message in desk.messages()] == [250.0, 250.0, 0.0]


# A walk


class Walk(RuleBasedStateMachine):
    """Any messages in any order, taken piece by piece."""

    TOPICS = ("a0", "b1", "c1", "d2", "e3", "f4", "g4")

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.sessions = [cast("LinkSession", Session()) for _ in range(3)]
        self.orders: dict[Any, list[int]] = defaultdict(list)  # numbers that must stay in order
        self.requests: dict[int, LinkSession] = {}
        self.taken: set[int] = set()

    def _sent(self, number: int, *orders: Any) -> None:
        for order in orders:
            self.orders[order].append(number)

    @rule(
        topic=st.sampled_from(TOPICS),
        count=st.integers(1, 20),
        length=st.sampled_from([0, 100, 9000, 10**6]),
        session=st.integers(0, 2),
    )
    def append(self, topic: str, count: int, length: int, session: int) -> None:
        for _ in range(count):
            number = self.desk.append(topic, length, self.sessions[session])
            self.requests[number] = self.sessions[session]
            self._sent(number, topic)

    @rule(session=st.integers(0, 2), feed=st.integers(0, 3), topic=st.sampled_from(TOPICS))
    def open_feed(self, session: int, feed: int, topic: str) -> None:
        number = self.desk.ask(calls.FEED_OPEN, feed, topic, session=self.sessions[session])
        self.desk.tell(calls.FEED_CLOSE, feed, session=self.sessions[session])
        self._sent(number, topic, ("open", number))
        self._sent(number + 1, ("open", number))

    @rule(session=st.integers(0, 2))
    def forward(self, session: int) -> None:
        self._sent(self.desk.ask(calls.FORWARD, "a0", session=self.sessions[session]), "common")

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.requests)))
        session = self.requests.pop(request)
        number = self.desk.tell(calls.CALL_CANCELLED, request, session=session)
        before = [] if request in self.taken else [request]
        self.orders["cancelled", request] = [*before, number]

    @rule(topics=st.lists(st.sampled_from(TOPICS), max_size=4, unique=True))
    def heads(self, topics: Sequence[str]) -> None:
        number = self.desk.ask(calls.TOPIC_HEADS, list(topics))
        for topic in topics:
            self._sent(number, ("heads", number, topic))
            self.orders["heads", number, topic][:0] = self.orders[topic][-1:]

    @rule(topic=st.sampled_from(TOPICS), band=st.integers(0, TOP_BAND))
    def change_band(self, topic: str, band: int) -> None:
        self.desk.bands[topic] = band

    @rule(cost=st.sampled_from([1, 5, 16, 200]), turn=st.booleans())
    def take(self, cost: int, turn: bool) -> None:
        self.desk.now += turn
        before = self.desk.parked.count
        self._check(self.desk.take(cost), before)

    def _check(self, taken: list[int], before: int) -> None:
        assert len(taken) == before - self.desk.parked.count
        assert bool(taken) == bool(before)
        places = {number: place for place, number in enumerate(taken)}
        assert len(places) == len(taken), "none twice"
        assert self.taken.isdisjoint(taken)
        self.taken.update(taken)
        for order, numbers in self.orders.items():
            found = [number for number in numbers if number in places]
            in_order = sorted(found, key=places.__getitem__)
            assert found == in_order, order
            # None of them has overtaken one that waits.
            waiting = [number for number in numbers if number not in places]
            assert not found or not waiting or self._is_behind(numbers, found, waiting), order
            self.orders[order] = waiting

    @staticmethod
    def _is_behind(numbers: list[int], found: list[int], waiting: list[int]) -> bool:
        return max(map(numbers.index, found)) < min(map(numbers.index, waiting))

    @invariant()
    def everything_is_counted(self) -> None:
        parked = self.desk.parked
        lines = [*parked._lines.values(), parked._common]
        assert parked.count == sum(len(line.messages) for line in lines)
        assert sorted(id(line) for ring in parked._rings for line in ring) == sorted(
            id(line) for line in lines if line.messages
        )

    def teardown(self) -> None:
        before = self.desk.parked.count
        self._check(self.desk.take(), before)
        assert self.desk.parked.count == 0
        assert self.desk.parked._followed == {}
        assert self.desk.parked._lines == {}


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
