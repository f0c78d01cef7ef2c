"""The events of a watch stream (§7.2): fields, limits, payloads, filters, classes, loss."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from tests.support.api import SLACK_S, Api, RawDiff, create, data, ok
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

KIB = 1024
MIB = 1024 * KIB


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


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, ["data", "meta"]),
        ({"include_tags": True}, ["data", "meta", "$tag"]),
        ({"include_meta": False}, ["data"]),
        ({"include_meta": False, "include_tags": True}, ["data", "$tag"]),
        ({"include_data": False}, []),
        ({"include_data": False, "include_tags": True, "include_meta": True}, ["$tag"]),
        ({"include_data": True, "include_meta": True, "include_tags": False}, ["data", "meta"]),
    ],
    ids=lambda value: f"7.1 {value}",
)
def test_a_session_chooses_what_records_show(
    api: Api, topic: str, fields: dict[str, bool], shown: list[str]
) -> None:
    create(api, topic)
    body = {"records": [{"data": 1, "tag": "t", "node": "n", "meta": {"m": 1}}]}
    ok(api.call("POST", f"/v0/topics/{topic}", body))
    with watch(api, [topic], **fields) as stream:
        (record,) = stream.told([topic]).records
        assert set(record) == {"$seq", "$ts", "$node", *shown}
        ok(api.call("POST", f"/v0/topics/{topic}", body))
        (record,) = stream.records(1)
        assert set(record) == {"$seq", "$ts", "$node", *shown}


@pytest.mark.parametrize(
    ("limit", "most"),
    [(1, 1), (3, 3), (0, 256), (None, 256), (1000, 1000), (1001, 1000), (2**32 - 1, 1000)],
)
def test_an_event_holds_at_most_limit_records(
    api: Api, topic: str, limit: int | None, most: int
) -> None:
    count = min(2 * most + 1, 1100)
    create(api, topic, *range(count))
    with watch(api, [topic], **({} if limit is None else {"limit": limit})) as stream:
        told = stream.told([topic])
    assert told.data() == list(range(count))
    events = told.of(RECORD)
    assert max(len(event["records"]) for event in events) <= most
    assert [event["from_seq"] for event in events] == [
        0,
        *(event["to_seq"] for event in events[:-1]),
    ]
    assert [event["to_seq"] for event in events] == [
        event["records"][-1]["$seq"] for event in events
    ]
    assert {event["head_seq"] for event in events} == {count}
    assert [event.cursor[topic] for event in told.events if event.event == RECORD] == [
        event["to_seq"] for event in events
    ]


BUDGETS: list[tuple[str, int, int, dict[str, int], int]] = [
    ("256 KiB by default", 6, 100 * KIB, {}, 262_144),
    ("1 MiB for 0", 6, 300 * KIB, {"max_batch_bytes": 0}, MIB),
    ("a few records", 10, 1000, {"max_batch_bytes": 3500}, 3500),
    ("one byte still gives one record", 5, 1000, {"max_batch_bytes": 1}, 1),
    (
        "a record above the budget comes alone",
        3,
        900 * KIB,
        {"max_batch_bytes": 10 * KIB},
        10 * KIB,
    ),
    ("more on request", 6, 300 * KIB, {"max_batch_bytes": 4 * MIB}, 4 * MIB),
    ("at most 8 MiB", 20, 512 * KIB, {"max_batch_bytes": 64 * MIB}, 8 * MIB),
]


@pytest.mark.parametrize(
    ("records", "size", "fields", "budget"),
    [
        pytest.param(
            *row[1:], id=f"7.1 {row[0]}", marks=[pytest.mark.slow] if "8 MiB" in row[0] else []
        )
        for row in BUDGETS
    ],
)
def test_the_byte_budget_holds(
    api: Api, topic: str, records: int, size: int, fields: dict[str, int], budget: int
) -> None:
    create(api, topic)
    for start in range(0, records, 5):
        ok(api.append(topic, *["x" * (size - 2)] * min(5, records - start)))
    with watch(api, [topic], **fields) as stream:
        told = stream.told([topic])
    assert seqs(told.records) == list(range(1, records + 1))
    counts = [len(event["records"]) for event in told.of(RECORD)]
    assert min(counts) >= 1
    assert (max(counts) - 1) * size < budget  # §7.1: a read stops once the batch reaches the budget


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


VALUES = [
    b"1.10",
    b"1E400",
    b"1234567890123456789012345678901234567890",
    rb'"\u00e9\/\u0000"',
    '"é\u2028"'.encode(),
    b'{"b" : 1,  "a":\t2}',
    b'":\\n\\ndata: x"',
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"0.3 {value!r}")
def test_payloads_come_back_verbatim(api: Api, topic: str, value: bytes) -> None:
    create(api, topic)
    body = b'{"records":[{"data":%s,"meta":{"k": %s}}]}' % (value, value)
    ok(api.call("POST", f"/v0/topics/{topic}", body))
    with watch(api, [topic]) as stream:
        events = [stream.event(RECORD)]
        stream.event(CAUGHT_UP)
        ok(api.call("POST", f"/v0/topics/{topic}", body))
        events.append(stream.event(RECORD))
    for event in events:
        assert event.data is not None
        (record,) = msgspec.json.decode(event.data.encode(), type=RawDiff).records
        assert bytes(record.data) == value
        assert bytes(record.meta) == b'{"k": %s}' % value


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


@pytest.mark.parametrize("consistency", ["eventual", "strong"])
@pytest.mark.parametrize(
    "durability", ["ephemeral", "memory", pytest.param("disk", marks=pytest.mark.slow), "fsync"]
)  # a `disk` record may wait 200 ms for its sync
def test_every_class_is_watched_with_every_consistency(
    api: Api, topic: str, durability: str, consistency: str
) -> None:
    create(api, topic, 0, 1, durability=durability)
    with watch(api, [topic], consistency=consistency) as stream:
        records = stream.records(2)
        for number in (2, 3, 4):
            sent = time.monotonic()
            ok(api.append(topic, number))
            records += stream.records(1)
            assert time.monotonic() - sent < SLACK_S
    assert (data(records), seqs(records)) == ([0, 1, 2, 3, 4], [1, 2, 3, 4, 5])


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
