"""Resuming a watch (§7.2): ids, rewinding, take-over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import Api, create, data, ok
from tests.support.sse import (
    ERROR,
    RECORD,
    Stream,
    encoded,
    session,
    watch,
)

# A server learns late that a client has gone and may send into a dead connection; so tests resume
# with the id that the client has seen, as clients do, or let the session wait for its first stream,
# or take it over from a stream that still reads.


def test_a_session_goes_on_where_its_stream_ended(api: Api, topic: str) -> None:
    create(api, topic, 1, 2)
    url = session(api, [topic])["stream_url"]
    last_id = None
    for round_ in range(4):
        with Stream(api.address, url, last_event_id=last_id) as stream:
            told = stream.told([topic])
            last_id = told.last_id
        assert told.data() == ([1, 2] if round_ == 0 else [round_ * 10, round_ * 10 + 1])
        ok(api.append(topic, (round_ + 1) * 10, (round_ + 1) * 10 + 1))


def test_a_session_knows_its_cursors_when_the_id_is_lost(
    api: Api, new_name: Callable[[], str]
) -> None:
    left, right = new_name(), new_name()
    create(api, left, 1, 2)
    create(api, right, 3)
    url = session(api, [left, right])["stream_url"]
    with Stream(api.address, url) as first:
        assert sorted(first.told([left, right]).data()) == [1, 2, 3]
        ok(api.append(right, 4))
        assert data(first.records(1)) == [4]
        with Stream(api.address, url) as second:
            told = second.told([left, right])
            assert (told.records, told.tombstones) == ([], [])
            assert told.events[-1].cursor == {left: 2, right: 2}


def test_a_session_with_tail_misses_nothing_before_its_stream(api: Api, topic: str) -> None:
    create(api, topic, "old")
    url = session(api, {topic: {"tail": True}})["stream_url"]
    ok(api.append(topic, "new"))
    with Stream(api.address, url) as stream:
        assert stream.told([topic]).data() == ["new"]


def test_last_event_id_rewinds_to_its_map(api: Api, topic: str) -> None:
    create(api, topic, *range(10))
    url = session(api, [topic], limit=2)["stream_url"]
    with Stream(api.address, url) as stream:
        events = [event for event in stream.told([topic]).events if event.event == RECORD]
    for at in (3, 0, 4, 2):
        with Stream(api.address, url, last_event_id=events[at].id) as stream:
            assert stream.told([topic]).data() == list(range(2 * at + 2, 10))


def test_last_event_id_never_advances(api: Api, topic: str) -> None:
    create(api, topic, *range(5))
    url = session(api, {topic: {"from_seq": 2}})["stream_url"]
    with Stream(api.address, url, last_event_id=encoded({topic: 4})) as stream:
        assert stream.told([topic]).data() == [2, 3, 4]


def test_last_event_id_may_go_below_the_start_of_the_session(api: Api, topic: str) -> None:
    create(api, topic, *range(5))
    url = session(api, {topic: {"from_seq": 4}})["stream_url"]
    with Stream(api.address, url, last_event_id=encoded({topic: 1})) as stream:
        assert stream.told([topic]).data() == [1, 2, 3, 4]


def test_last_event_id_counts_for_each_topic_by_itself(
    api: Api, new_name: Callable[[], str]
) -> None:
    left, right, other = new_name(), new_name(), new_name()
    for name in (left, right, other):
        create(api, name, *range(6))
    url = session(api, {left: {"from_seq": 3}, right: {"from_seq": 3}, other: {"from_seq": 3}})[
        "stream_url"
    ]
    with Stream(
        api.address, url, last_event_id=encoded({left: 5, right: 1, "nobody-watches-this": 0})
    ) as stream:
        told = stream.told([left, right, other])
    assert {name: told.data(name) for name in (left, right, other)} == {
        left: [3, 4, 5],
        right: [1, 2, 3, 4, 5],
        other: [3, 4, 5],
    }


GARBAGE = [
    "",
    "!!!",
    "AAAA",
    "eyJ",
    "1",
    "é",
    encoded([1]),
    encoded("x"),
    encoded({}),
    encoded({"elsewhere": 0}),
    "x" * 4000,
]
GARBAGE_SEQS = [-1, 0.5, "0", None, True, [0], {}, 2**64]


@pytest.mark.parametrize("text", GARBAGE, ids=lambda value: f"7.2 {value[:20]}")
def test_garbage_in_last_event_id_is_ignored(api: Api, topic: str, text: str) -> None:
    create(api, topic, *range(5))
    url = session(api, {topic: {"from_seq": 3}})["stream_url"]
    with Stream(api.address, url, last_event_id=text) as stream:
        assert stream.told([topic]).data() == [3, 4]


@pytest.mark.parametrize("seq", GARBAGE_SEQS, ids=lambda value: f"7.2 {value}")
def test_a_garbage_seq_in_last_event_id_is_ignored(api: Api, topic: str, seq: Any) -> None:
    create(api, topic, *range(5))
    url = session(api, {topic: {"from_seq": 3}})["stream_url"]
    with Stream(api.address, url, last_event_id=encoded({topic: seq})) as stream:
        assert stream.told([topic]).data() == [3, 4]


def test_a_second_get_takes_the_session_over(api: Api, topic: str) -> None:
    create(api, topic, 1)
    url = session(api, [topic])["stream_url"]
    with Stream(api.address, url) as first:
        first.told([topic])
        with Stream(api.address, url) as second:
            last = first.event(ERROR)
            assert type(last.json()["code"]) is int
            assert isinstance(last.json()["error"], str)
            assert last.id is None
            assert last.retry == "2147483647", "an EventSource must not come back at once"
            with pytest.raises(EOFError):
                first.block()
            ok(api.append(topic, 2))
            assert data(second.records(1)) == [2]


def test_sessions_of_one_topic_are_independent(api: Api, topic: str) -> None:
    create(api, topic, 1)
    with watch(api, [topic]) as first, watch(api, [topic]) as second:
        assert first.told([topic]).data() == second.told([topic]).data() == [1]
        ok(api.append(topic, 2))
        assert data(first.records(1)) == data(second.records(1)) == [2]
        first.quiet(0.05)
