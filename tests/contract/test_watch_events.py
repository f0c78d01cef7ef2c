"""The events of a watch stream (§7.2): fields, limits, payloads, filters, classes, loss."""

from __future__ import annotations

import json
import time
from typing import Any

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


def test_an_empty_topic_is_caught_up_at_0(api: Api, topic: str) -> None:
    create(api, topic)
    with watch(api, [topic]) as stream:
        event = stream.event(CAUGHT_UP)
        assert event.json() == {"topic": topic, "head_seq": 0}
        assert event.cursor == {topic: 0}
        stream.quiet(0.1)


def test_a_record_event_has_exactly_these_fields(api: Api, topic: str) -> None:
    create(api, topic)
    ok(
        api.append(
            topic,
            records=[{"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": 2}}, {"data": None}],
        )
    )
    ts = [record["$ts"] for record in api.read(topic)]
    with watch(api, [topic]) as stream:
        event = stream.event(RECORD)
        assert event.json() == {
            "topic": topic,
            "records": [
                {"$seq": 1, "$ts": ts[0], "$node": "n", "data": {"a": 1}, "meta": {"m": 2}},
                {"$seq": 2, "$ts": ts[1], "data": None},
            ],
            "from_seq": 0,
            "to_seq": 2,
            "head_seq": 2,
        }
        assert event.cursor == {topic: 2}
        after = stream.event(CAUGHT_UP)
        assert (after.json(), after.cursor) == ({"topic": topic, "head_seq": 2}, {topic: 2})


def test_a_live_record_has_the_same_event(api: Api, topic: str) -> None:
    create(api, topic, "old")
    with watch(api, {topic: {"tail": True}}) as stream:
        assert stream.event(CAUGHT_UP).json() == {"topic": topic, "head_seq": 1}
        ok(api.append(topic, records=[{"data": 5, "tag": "t", "meta": {"m": 1}}]))
        event = stream.event(RECORD)
        body = event.json()
        assert body.pop("records") == [
            {"$seq": 2, "$ts": api.read(topic)[1]["$ts"], "data": 5, "meta": {"m": 1}}
        ]
        assert body == {"topic": topic, "from_seq": 1, "to_seq": 2, "head_seq": 2}
        assert event.cursor == {topic: 2}


def test_line_ends_in_a_payload_do_not_end_an_event(api: Api, topic: str) -> None:
    create(api, topic)
    inner = (
        b'{"a":\n\n1,\r\n"event: x":\r[2,\n\n\n3],\n"id":\n'
        b'"\\n\\r\\u2028\xe2\x80\xa8\xe2\x80\xa9\xc2\x85"}'
    )
    body = b'{"records":[{"data":%s,"meta":{\n\n"data:":\r\n\r\n"x"}},{"data":\n"next"\n}]}' % inner
    for _ in range(2):
        ok(api.call("POST", f"/v0/topics/{topic}", body))
    with watch(api, [topic]) as stream:
        backlog = stream.told([topic]).records
        ok(api.call("POST", f"/v0/topics/{topic}", body))
        live = stream.records(2)
        ok(api.append(topic, "after"))
        assert data(stream.records(1)) == ["after"]
    for pair in (backlog[:2], backlog[2:], live):
        assert data(pair) == [json.loads(inner), "next"]
        assert pair[0]["meta"] == {"data:": "x"}


@pytest.mark.parametrize(
    ("node", "seen"),
    [
        ("a", [1, 2, 3, 4]),
        ("b", [0, 2, 3, 4]),
        (["a"], [1, 2, 3, 4]),
        (["a", "b"], [2, 3, 4]),
        ([], [0, 1, 2, 3, 4]),
        ("nobody", [0, 1, 2, 3, 4]),
    ],
)
def test_a_node_is_not_told_what_it_wrote(api: Api, topic: str, node: Any, seen: list[int]) -> None:
    create(api, topic)
    records = [
        {"data": at, **({"node": name} if name else {})}
        for at, name in enumerate(["a", "b", None, "A", "ab"])
    ]
    ok(api.append(topic, records=records))
    with watch(api, [topic], node=node) as stream:
        assert stream.told([topic]).data() == seen
        ok(api.append(topic, records=records))
        assert data(stream.records(len(seen))) == seen


def test_records_that_are_all_filtered_end_in_caught_up(api: Api, topic: str) -> None:
    create(api, topic)
    ok(api.append(topic, 1, 2, 3, node="me"))
    url = session(api, [topic], node="me")["stream_url"]
    with Stream(api.address, url) as stream:
        event = stream.event(CAUGHT_UP)
        assert (event.json(), event.cursor) == ({"topic": topic, "head_seq": 3}, {topic: 3})
        for _ in range(5):
            ok(api.append(topic, "mine", node="me"))
        ok(api.append(topic, "yours", node="you"))
        (record,) = stream.records(1)
        assert (record["$seq"], record["data"]) == (9, "yours")
        assert stream.blocks[-1].event in (RECORD, CAUGHT_UP)
        assert stream.blocks[-1].cursor == {topic: 9}


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
