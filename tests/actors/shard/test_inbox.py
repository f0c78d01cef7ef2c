"""Inbox: in order of arrival while few wait, by weight and for a short time while many do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.wire import BY_SUBJECT, encode_notification, encode_request, encode_success
from topics.actors.shard.inbox import (
    BY_TOPIC,
    COST_BYTES,
    COST_MAX,
    FIFO_MAX,
    FIRST_COST_S,
    ITERATION_MAX_S,
    Inbox,
    first_param,
)
from topics.formats.wire.calls import (
    APPEND,
    CALL_CANCELLED,
    CLAIM,
    DIFF,
    FEED_CLOSE,
    AppendParams,
    TopicParams,
)
from topics.formats.wire.contract import Call
from topics.formats.wire.message import Message

MESSAGE_S = ITERATION_MAX_S / 40


class Session:
    """A stub of a link session, which an inbox only passes on."""


class InboxHarness:
    """An inbox whose messages take some time each. The last character of a topic is its band."""

    def __init__(self) -> None:
        self.now, self.looked_up = 100.0, 0
        self.box = Inbox(self._band_of, lambda: self.now)
        self.session: Any = Session()
        self._number = 0

    def _band_of(self, topic: str) -> int:
        self.looked_up += 1
        return int(topic[-1])

    def put(
        self,
        topic: str,
        count: int = 1,
        session: Any = None,
        body: bytes = b"",
        call: Call[Any, Any] = APPEND,
    ) -> list[int]:
        """Add equal requests that arrive together. Return the ids of their messages."""
        numbers = range(self._number + 1, self._number + 1 + count)
        self._number += count
        messages = [
            Message(number, 0, call.subject, _request(number, topic, call), body)
            for number in numbers
        ]
        self.box.put(session or self.session, messages)
        return [*numbers]

    def put_event(self, event: Any = FEED_CLOSE, about: int = 1, session: Any = None) -> list[int]:
        """Add an event. Return the id of its message."""
        self._number += 1
        message = Message(
            self._number, 0, event.subject, encode_notification(event.method, (about,)), b""
        )
        self.box.put(session or self.session, [message])
        return [self._number]

    def next_batch(self) -> list[int]:
        return [message.message_id for message in self.messages()]

    def drain(self) -> list[int]:
        """Take all waiting messages, iteration by iteration."""
        taken = []
        while self.box.count:
            taken += self.next_batch()
        return taken

    def messages(self) -> list[Message]:
        taken: list[Message] = []
        for _, messages in self.box.next_batch():
            taken += messages
            self.now += MESSAGE_S * len(messages)
        return taken


def _request(number: int, topic: str, call: Call[Any, Any] = APPEND) -> bytes:
    is_append = call is APPEND
    params = AppendParams(topic, None, True, None, 0) if is_append else TopicParams(topic, 0)
    return encode_request(number, call.method, params)


@pytest.fixture
def harness() -> InboxHarness:
    return InboxHarness()


def test_few_messages_are_taken_in_one_batch_in_order_of_arrival(harness: InboxHarness) -> None:
    other: Any = Session()
    first = harness.put("low0", FIFO_MAX - 2)
    second = harness.put("high4", 1, other)
    third = harness.put("low0", 1)
    taken = [*harness.box.next_batch()]
    assert [session for session, _ in taken] == [harness.session, other, harness.session]
    assert [message.message_id for _, each in taken for message in each] == first + second + third
    assert (harness.box.count, harness.looked_up) == (0, 0), "their topics are not read"
    assert harness.next_batch() == []


def test_many_messages_are_taken_by_weight_within_the_time_limit_of_an_iteration(
    harness: InboxHarness,
) -> None:
    low, high = harness.put("low0", 200), harness.put("high4", 20)
    taken = harness.next_batch()
    assert set(high) <= set(taken)
    assert taken[0] == high[0]
    assert ITERATION_MAX_S / MESSAGE_S <= len(taken) <= ITERATION_MAX_S / MESSAGE_S + 1
    assert harness.box.count == len(low + high) - len(taken)


@pytest.mark.parametrize("call", sorted(BY_TOPIC))
def test_a_request_of_an_urgent_topic_is_taken_before_a_flood_of_the_same_kind(
    harness: InboxHarness, call: str
) -> None:
    """This holds for every kind of request, above all for reads and claims."""
    kind = BY_SUBJECT[call]
    harness.put("low0", 300, call=kind)
    urgent = harness.put("high4", 2, call=kind)
    assert harness.next_batch()[:2] == urgent


def test_each_message_is_taken_once_and_the_requests_of_a_topic_keep_their_order(
    harness: InboxHarness,
) -> None:
    low, high, taken = list[int](), list[int](), list[int]()
    for call in (APPEND, CLAIM, DIFF) * 30:
        low += harness.put("low0", 3, call=call)
        high += harness.put("high4", 1, call=call)
    while harness.box.count:
        taken += harness.next_batch()
        if len(taken) < 120:
            high += harness.put("high4", 10)
    assert [number for number in taken if number in low] == low
    assert [number for number in taken if number in high] == high
    assert len(taken) == len(low) + len(high)


def test_a_cancellation_is_taken_after_its_request(harness: InboxHarness) -> None:
    other: Any = Session()
    harness.put("high4", 300)
    *_, claim = harness.put("low0", 50, call=CLAIM)
    assert claim not in harness.next_batch()
    [cancelled] = harness.put_event(CALL_CANCELLED, claim)
    [of_another] = harness.put_event(CALL_CANCELLED, claim, other)
    taken = harness.drain()
    assert taken.index(of_another) < taken.index(claim) < taken.index(cancelled)
    assert not harness.box._topics_by_call, "calls that were taken are dropped from the table"


def test_other_messages_keep_their_order_and_a_flood_starves_neither_kind(
    harness: InboxHarness,
) -> None:
    low, others = harness.put("low0", 300), []
    for _ in range(100):
        others += harness.put_event()
    taken = harness.drain()
    assert [number for number in taken if number in others] == others
    assert [number for number in taken if number in low] == low
    middle = taken[: len(taken) // 4]
    assert set(middle) & set(low)
    assert set(middle) & set(others)


def test_topics_of_a_band_alternate_and_a_long_body_counts_more(harness: InboxHarness) -> None:
    flood, quiet = harness.put("flood1", 200), harness.put("quiet1", 5)
    taken = harness.next_batch()
    assert set(quiet) < set(taken)
    harness = InboxHarness()
    harness.put("long3", 100, body=bytes(COST_BYTES * COST_MAX))
    short = harness.put("short1", 100)
    assert len(set(harness.next_batch()) & set(short)) > len(taken) // 2
    assert flood


def test_a_topic_whose_band_changes_keeps_its_order(harness: InboxHarness) -> None:
    bands = iter([0, 4] * 1000)
    harness.box._band_of = lambda _: next(bands)
    first, second = harness.put("a", 100), harness.put("b", 100)
    taken = harness.drain()
    assert [number for number in taken if number in first] == first
    assert [number for number in taken if number in second] == second


@given(st.integers(0, 120), st.binary(max_size=8), st.text(max_size=300))
def test_the_topic_of_a_request_is_found_and_malformed_bytes_raise_no_error(
    cut: int, more: bytes, name: str
) -> None:
    payload = _request(7, name)
    assert first_param(Message(7, 0, APPEND.subject, payload, b""), str) == name
    first_param(Message(7, 0, APPEND.subject, payload[:cut] + more, b""), str)
    answer = encode_success(3, ["topic"])
    assert first_param(Message(7, 0, APPEND.subject, answer, b""), str) is None


def test_a_message_that_arrives_during_an_iteration_waits_for_the_next_one(
    harness: InboxHarness,
) -> None:
    for count in (1, FIFO_MAX + 1):
        first = harness.put("a4", count)
        taken = harness.box.next_batch()
        session, messages = next(iter(taken))
        late = harness.put("a4")
        rest = [message.message_id for _, each in taken for message in each]
        assert [message.message_id for message in messages] + rest == first
        assert (harness.box.count, harness.next_batch()) == (1, late)
        assert session is harness.session


def test_messages_report_how_long_they_were_parked(harness: InboxHarness) -> None:
    harness.put("a1", FIFO_MAX + 100)
    iterations = []
    while harness.box.count:
        iterations.append([message.parked_ms for message in harness.messages()])
        harness.now += 0.5  # the iteration is ended, and other tasks run
    assert len(iterations) > 3
    assert {*iterations[0]} == {0.0}
    for number, waited in enumerate(iterations[1:], 1):
        assert {*waited} == {waited[0]}
        assert waited[0] == pytest.approx(number * 500, rel=0.1)
    harness.put("a1", 3)
    assert [message.parked_ms for message in harness.messages()] == [0.0] * 3


# Estimated time of the waiting messages


def test_few_messages_have_no_estimated_wait(harness: InboxHarness) -> None:
    harness.put("a1", FIFO_MAX)
    assert harness.box.wait_s == 0.0
    harness.put("a1")
    assert harness.box.wait_s == pytest.approx((FIFO_MAX + 1) * FIRST_COST_S)


def test_the_estimated_wait_includes_the_work_at_the_end_of_an_iteration(
    harness: InboxHarness,
) -> None:
    end_s = 0.001
    harness.put("a1", 5000)
    for _ in range(50):
        before = harness.box.count
        harness.next_batch()
        harness.now += end_s
    cost_s = MESSAGE_S + end_s / (before - harness.box.count)
    assert harness.box.wait_s == pytest.approx(harness.box.count * cost_s, rel=0.05)


def test_a_pause_between_two_floods_does_not_count_as_cost(harness: InboxHarness) -> None:
    harness.put("a1", FIFO_MAX + 1)
    while harness.box.count:
        harness.next_batch()
    cost_s = harness.box._cost_s
    harness.now += 3600
    harness.put("a1", FIFO_MAX + 1)
    harness.next_batch()
    assert harness.box._cost_s == cost_s
