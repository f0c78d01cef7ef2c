"""Loss in a watch (§3.3, §7.2): tombstones, and deletes, which are none."""

from __future__ import annotations

import time

import pytest

from tests.support.api import Api, create, data, ok
from tests.support.sse import (
    CAUGHT_UP,
    RECORD,
    TOMBSTONE,
    Stream,
    encoded,
    seqs,
    session,
    stone,
    watch,
)


def test_a_start_below_the_floor_is_told_at_connect(api: Api, topic: str) -> None:
    create(api, topic, *range(10), cap_records=4)
    body = session(api, [topic])
    assert body["topics"][topic]["earliest_seq"] == 7
    with Stream(api.address, body["stream_url"]) as stream:
        event = stream.event(TOMBSTONE)
        assert stone(event.json(), "from_seq_too_old") == (1, 6)
        assert (event.json()["topic"], event.json()["earliest_seq"], event.json()["head_seq"]) == (
            topic,
            7,
            10,
        )
        assert event.cursor == {topic: 6}
        told = stream.told([topic])
    assert (seqs(told.records), told.tombstones) == ([7, 8, 9, 10], [])
    assert told.of(RECORD)[0]["from_seq"] == 6


def test_what_a_cap_takes_while_the_reader_is_away_is_told_once(api: Api, topic: str) -> None:
    create(api, topic, 1, 2, 3, cap_records=5)
    url = session(api, [topic])["stream_url"]
    with Stream(api.address, url) as stream:
        told = stream.told([topic])
        assert told.data() == [1, 2, 3]
    for number in range(4, 21):
        ok(api.append(topic, number))
    with Stream(api.address, url, last_event_id=told.last_id) as stream:
        told = stream.told([topic])
        assert [stone(body, "from_seq_too_old") for body in told.tombstones] == [(4, 15)]
        assert told.events[0].event == TOMBSTONE
        assert told.data() == [16, 17, 18, 19, 20]
    with Stream(api.address, url) as stream:
        told = stream.told([topic])
        assert (told.tombstones, told.records) == ([], [])


def test_a_resume_after_a_tombstone_is_correct(api: Api, topic: str) -> None:
    create(api, topic, *range(1, 11), cap_records=4)
    url = session(api, [topic])["stream_url"]
    with Stream(api.address, url) as stream:
        event = stream.told([topic]).events[0]
        assert event.event == TOMBSTONE
    with Stream(api.address, url, last_event_id=event.id) as stream:
        told = stream.told([topic])
        assert (told.tombstones, told.data()) == ([], [7, 8, 9, 10])


def test_a_rewind_below_the_floor_is_a_loss(api: Api, topic: str) -> None:
    create(api, topic, *range(1, 11), cap_records=10)
    url = session(api, [topic])["stream_url"]
    with Stream(api.address, url) as stream:
        stream.told([topic])
    ok(api.append(topic, 11, 12, 13))
    with Stream(api.address, url, last_event_id=encoded({topic: 1})) as stream:
        told = stream.told([topic])
    assert [stone(body, "from_seq_too_old") for body in told.tombstones] == [(2, 3)]
    assert told.data() == list(range(4, 14))


def test_one_write_larger_than_the_cap_leaves_a_gap_in_a_live_stream(api: Api, topic: str) -> None:
    create(api, topic, cap_records=2)
    with watch(api, [topic]) as stream:
        stream.told([topic])
        ok(api.append(topic, *range(1, 7)))
        body = stream.event(TOMBSTONE).json()
        assert stone(body, "cap") == (1, 4)
        assert data(stream.records(2)) == [5, 6]


def test_evicting_what_a_reader_has_seen_is_no_loss(api: Api, topic: str) -> None:
    create(api, topic, cap_records=1)
    with watch(api, [topic]) as stream:
        stream.told([topic])
        for number in range(20):
            ok(api.append(topic, number))
            assert data(stream.records(1)) == [number]


@pytest.mark.slow
def test_what_expires_while_the_reader_is_away_is_told(api: Api, topic: str) -> None:
    create(api, topic, ttl_ms=100)
    url = session(api, [topic])["stream_url"]
    ok(api.append(topic, 1, 2))
    time.sleep(0.2)
    with Stream(api.address, url) as stream:
        told = stream.told([topic])
    assert [stone(body, "from_seq_too_old") for body in told.tombstones] == [(1, 2)]
    assert told.records == []


@pytest.mark.slow
def test_what_expires_after_it_was_seen_is_no_loss(api: Api, topic: str) -> None:
    create(api, topic)
    with watch(api, [topic]) as stream:
        stream.told([topic])
        ok(api.append(topic, 1))
        assert data(stream.records(1)) == [1]
        time.sleep(0.2)
        ok(api.put(topic, {"ttl_ms": 100}))
        assert api.state(topic)["count"] == 0
        ok(api.put(topic, {"ttl_ms": 0}))
        ok(api.append(topic, 2))
        assert data(stream.records(1)) == [2]


def test_deleted_records_are_passed_over_silently(api: Api, topic: str) -> None:
    create(api, topic)
    ok(
        api.append(
            topic, records=[{"data": at, "tag": "odd" if at % 2 else "even"} for at in range(1, 11)]
        )
    )
    url = session(api, [topic])["stream_url"]
    ok(api.call("POST", f"/v0/topics/{topic}/delete", {"before_seq": 4}))
    ok(api.call("POST", f"/v0/topics/{topic}/delete", {"match": ["tag", "Eq", "odd"]}))
    with Stream(api.address, url) as stream:
        told = stream.told([topic])
    assert (told.tombstones, told.data()) == ([], [4, 6, 8, 10])
    assert told.events[-1].cursor == {topic: 10}


def test_a_topic_whose_records_are_all_deleted_is_caught_up_at_its_head(
    api: Api, topic: str
) -> None:
    create(api, topic, 1, 2, 3)
    ok(api.call("POST", f"/v0/topics/{topic}/delete", {"before_seq": 4}))
    with watch(api, [topic]) as stream:
        event = stream.event(CAUGHT_UP)
        assert (event.json(), event.cursor) == ({"topic": topic, "head_seq": 3}, {topic: 3})
        ok(api.append(topic, 4))
        assert data(stream.records(1)) == [4]


def test_a_gap_runs_over_deleted_records_too(api: Api, topic: str) -> None:
    create(api, topic, *range(1, 11), cap_records=6)
    ok(api.call("POST", f"/v0/topics/{topic}/delete", {"before_seq": 8}))
    with watch(api, {topic: {"from_seq": 2}}) as stream:
        told = stream.told([topic])
    assert [stone(body, "from_seq_too_old") for body in told.tombstones] == [(3, 7)]
    assert told.data() == [8, 9, 10]
