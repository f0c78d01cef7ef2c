"""Peeking: what is read off a payload is what decoding it says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.wire import encode_failure, encode_notification, encode_request, encode_success
from topics.formats.wire import calls
from topics.formats.wire.calls import CALLS, EVENTS
from topics.formats.wire.contract import Call, Event
from topics.formats.wire.message import Message
from topics.formats.wire.peeking import (
    FOLLOWERS,
    OPENS,
    followed_by,
    opened_by,
    topic_of,
    topics_of,
)

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", fullmatch=True)
NUMBERS = st.integers(0, 2**64 - 1)
NAMING = [call for call in CALLS if "topic" in call.params._fields]
# Messages about routers are in one order, whatever topic they name.
OF_ROUTERS = [call for call in NAMING if call.method.startswith("router.")]
FOLLOWING = [event for event in EVENTS if event.subject in FOLLOWERS]
PEEKS = (topic_of, topics_of, opened_by, followed_by)


def message(subject: str, payload: bytes) -> Message:
    return Message(1, 0, subject, payload, b"")


def request(call: Call[Any, Any], cid: int, **params: Any) -> Message:
    values = [params.get(field) for field in call.params._fields]
    return message(call.subject, encode_request(cid, call.method, values))


@given(topic=NAMES, number=NUMBERS, cid=NUMBERS)
@pytest.mark.parametrize("call", NAMING, ids=lambda call: call.method)
def test_a_request_names_its_topic(call: Call[Any, Any], topic: str, number: int, cid: int) -> None:
    asked = request(call, cid, topic=topic, feed=number, work=number)
    assert topic_of(asked) == (None if call in OF_ROUTERS else topic)
    kind = OPENS.get(call.subject)
    assert opened_by(asked) == ((kind, number) if kind else None)
    assert (topics_of(asked), followed_by(asked)) == ([], None)


@given(topics=st.lists(NAMES, max_size=40), cid=NUMBERS)
def test_a_request_about_several_topics_names_them_all(topics: list[str], cid: int) -> None:
    asked = request(calls.TOPIC_HEADS, cid, topics=topics)
    assert (topics_of(asked), topic_of(asked)) == (topics, None)


@given(number=NUMBERS)
@pytest.mark.parametrize("event", FOLLOWING, ids=lambda event: event.method)
def test_a_follower_names_what_it_follows(event: Event[Any], number: int) -> None:
    told = message(event.subject, encode_notification(event.method, (number,)))
    assert followed_by(told) == (FOLLOWERS[event.subject], number)
    assert topic_of(told) is None


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.method)
def test_answers_name_nothing(call: Call[Any, Any]) -> None:
    values = ["orders.eu"] * len(call.result._fields)
    for payload in (encode_success(5, values), encode_failure(5, 2000, "x" * 80)):
        assert [peek(message(call.subject, payload)) for peek in PEEKS[:2]] == [None, []]


def test_what_is_in_no_table_is_about_nothing() -> None:
    for subject in ("", "rpc/topic.list", "rpc/router.forward", "event/queue.unclaimed"):
        assert [peek(message(subject, bytes(80))) for peek in PEEKS] == [None, [], None, None]


@given(data=st.data(), junk=st.binary(max_size=90))
def test_any_bytes_give_an_answer(data: st.DataObject, junk: bytes) -> None:
    subjects = [call.subject for call in CALLS] + [event.subject for event in EVENTS]
    subject = data.draw(st.sampled_from(subjects))
    start = encode_request(1, subject.partition("/")[2], ())[: data.draw(st.integers(0, 80))]
    for payload in (junk, start + junk, memoryview(start + junk)):
        for peek in PEEKS:
            peek(Message(1, 0, subject, payload, b""))
