"""Several topics in one watch, topics that are made again, and resuming (§7.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import Api, create, data, ok
from tests.support.sse import (
    CAUGHT_UP,
    DELETED,
    ERROR,
    RECORD,
    TOMBSTONE,
    Stream,
    encoded,
    seqs,
    session,
    stone,
    watch,
)

KIB = 1024


@pytest.fixture(scope="module")
def many(server: Any, new_name: Callable[[], str]) -> list[str]:
    """As many topics as one session may watch."""
    names = [new_name() for _ in range(256)]
    with Api(server.address) as api:
        for name in names:
            ok(api.put(name), 201)
    return names


@pytest.mark.slow
def test_a_session_may_watch_256_topics(api: Api, many: list[str]) -> None:
    assert set(session(api, many)["topics"]) == set(many)


def test_every_id_holds_every_watched_topic(api: Api, new_name: Callable[[], str]) -> None:
    names = [new_name() for _ in range(3)]
    for number, name in enumerate(names):
        create(api, name, *range(10 * number))
    with watch(
        api, {name: {"from_seq": number} for number, name in enumerate(names)}, limit=4
    ) as stream:
        told = stream.told(names)
        ok(api.append(names[1], "x"))
        told.take(stream.event(RECORD))
    cursor = {name: number for number, name in enumerate(names)}
    for event in told.events:
        body = event.json()
        cursor[body["topic"]] = body["to_seq"] if event.event == RECORD else body["head_seq"]
        assert event.cursor == cursor
    assert cursor == {names[0]: 0, names[1]: 11, names[2]: 20}


def test_topics_stay_apart_and_in_order(api: Api, new_name: Callable[[], str]) -> None:
    names = [new_name() for _ in range(5)]
    for name in names:
        create(api, name)
    with watch(api, names) as stream:
        told = stream.told(names)
        assert sorted(body["topic"] for body in told.of(CAUGHT_UP)) == sorted(names)
        for number in range(100):
            ok(api.append(names[number % 5], number))
        while len(told.records) < 100:
            told.take(stream.event(RECORD, CAUGHT_UP))
    assert {name: told.data(name) for name in names} == {
        name: list(range(at, 100, 5)) for at, name in enumerate(names)
    }


@pytest.mark.parametrize("count", [64, 65], ids=["7.2 map", "7.2 token"])
@pytest.mark.slow
def test_an_id_resumes_whatever_its_form(
    api: Api, many: list[str], new_name: Callable[[], str], count: int
) -> None:
    names = [new_name(), *many[: count - 1]]
    create(api, names[0])
    url = session(api, {name: {"tail": True} for name in names})["stream_url"]
    with Stream(api.address, url) as stream:
        stream.told(names)
        ok(api.append(names[0], "first"))
        event = stream.event(RECORD)
        ok(api.append(names[0], "second"))
        assert data(stream.records(1)) == ["second"]
    if count <= 64:
        assert set(event.cursor) == set(names)
    assert event.id is not None
    assert len(event.id) < 8 * KIB  # it comes back in a header
    with Stream(api.address, url, last_event_id=event.id) as stream:
        assert stream.told(names).data(names[0]) == ["second"]
        ok(api.append(names[0], "third"))
        assert data(stream.records(1)) == ["third"]


@pytest.mark.slow
def test_one_stream_carries_256_topics(api: Api, many: list[str]) -> None:
    with watch(api, {name: {"tail": True} for name in many}) as stream:
        told = stream.told(many)
        assert sorted(body["topic"] for body in told.of(CAUGHT_UP)) == sorted(many)
        for name in many:
            ok(api.append(name, name))
        while len(told.records) < len(many):
            told.take(stream.event(RECORD, CAUGHT_UP))
    assert {name: told.data(name) for name in many} == {name: [name] for name in many}


def test_a_deleted_topic_ends_for_itself_only(api: Api, new_name: Callable[[], str]) -> None:
    gone, stays = new_name(), new_name()
    create(api, gone, 1, 2)
    create(api, stays)
    with watch(api, [gone, stays]) as stream:
        stream.told([gone, stays])
        ok(api.delete(gone))
        event = stream.event(DELETED)
        assert event.json() == {"topic": gone, "head_seq": 2, "reason": "deleted"}
        assert event.cursor[stays] == 0
        ok(api.append(stays, "x"))
        assert data(stream.records(1)) == ["x"]
        ok(api.append(gone, "another topic"), 201)
        ok(api.append(stays, "y"))
        assert data(stream.records(1)) == ["y"]
        stream.quiet(0.05)


def test_a_resumed_stream_tells_again_which_topics_were_deleted(
    api: Api, new_name: Callable[[], str]
) -> None:
    gone, stays = new_name(), new_name()
    create(api, gone, 1, 2)
    create(api, stays)
    url = session(api, [gone, stays])["stream_url"]
    with Stream(api.address, url) as stream:
        stream.told([gone, stays])
        ok(api.delete(gone))
        stream.event(DELETED)
    ok(api.append(gone, "another topic"), 201)
    with Stream(api.address, url) as stream:
        event = stream.event(DELETED)
        assert event.json() == {"topic": gone, "head_seq": 2, "reason": "deleted"}
        assert event.cursor == {gone: 2, stays: 0}
        ok(api.append(stays, "x"))
        assert data(stream.records(1)) == ["x"]


def recreated(stream: Stream, topic: str, head: int) -> None:
    """The recreated tombstone of the rulings, then all that the topic holds."""
    told = stream.told([topic])
    assert [stone(body, "recreated") for body in told.tombstones] == [(1, head)]
    assert told.events[0].event == TOMBSTONE
    assert seqs(told.records) == list(range(1, head + 1))


def test_a_topic_recreated_while_the_reader_is_away_is_told(api: Api, topic: str) -> None:
    create(api, topic, *range(5))
    url = session(api, {topic: {"from_seq": 3}})["stream_url"]
    ok(api.delete(topic))
    create(api, topic, *range(8))
    with Stream(api.address, url) as stream:
        recreated(stream, topic, 8)
        ok(api.append(topic, "x"))
        assert data(stream.records(1)) == ["x"]
        with Stream(api.address, url) as again:
            told = again.told([topic])
            assert (told.tombstones, told.records) == ([], [])


def test_a_start_above_the_head_means_that_the_topic_was_recreated(api: Api, topic: str) -> None:
    create(api, topic, 1, 2)
    with watch(api, {topic: {"from_seq": 50}}) as stream:
        recreated(stream, topic, 2)


def test_another_epoch_means_that_the_topic_was_recreated(api: Api, topic: str) -> None:
    old = create(api, topic, 1, 2, 3)
    ok(api.delete(topic))
    new = create(api, topic, 4, 5, 6, 7)
    with watch(api, {topic: {"from_seq": 2, "epoch": old}}) as stream:
        recreated(stream, topic, 4)
    with watch(api, {topic: {"from_seq": 2, "epoch": new}}) as stream:
        told = stream.told([topic])
        assert (told.tombstones, told.data()) == ([], [6, 7])


def test_a_client_that_missed_the_recreation_of_a_topic_is_told_again(api: Api, topic: str) -> None:
    """The tombstone and the records after it went out, and never came: its id is that of the old
    topic.
    """
    create(api, topic, 1, 2, 3)
    url = session(api, [topic])["stream_url"]
    with Stream(api.address, url) as stream:
        last_id = stream.told([topic]).last_id
        stream.leave()
    ok(api.delete(topic))
    create(api, topic, *range(8))
    with Stream(api.address, url, last_event_id=last_id) as stream:
        recreated(stream, topic, 8)
    with Stream(api.address, url, last_event_id=last_id) as stream:
        recreated(stream, topic, 8)
        last_id = stream.blocks[-1].id or ""
    with Stream(api.address, url, last_event_id=last_id) as stream:
        told = stream.told([topic])
        assert (told.tombstones, told.records) == ([], [])


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
    *("", "!!!", "AAAA", "eyJ", "1", "é", encoded([1]), encoded("x"), encoded({}), "x" * 4000),
    encoded({"elsewhere": 0}),
]
GARBAGE_SEQS: list[Any] = [-1, 0.5, "0", None, True, [0], {}, 2**64]


def test_garbage_in_last_event_id_is_ignored(api: Api, topic: str) -> None:
    create(api, topic, *range(5))
    for text in (*GARBAGE, *(encoded({topic: seq}) for seq in GARBAGE_SEQS)):
        url = session(api, {topic: {"from_seq": 3}})["stream_url"]
        with Stream(api.address, url, last_event_id=text) as stream:
            assert stream.told([topic]).data() == [3, 4], text


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
