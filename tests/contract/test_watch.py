"""POST /v0/watch and GET /v0/watch/:wid (§7.1, §7.2) as one reader sees them: answers, headers,
frames, resuming.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.contract.api import GAP, SLACK_S, Api, RawDiff, Wire, create, data, ok, refused, request
from tests.support.sse import (
    CAUGHT_UP,
    DELETED,
    ERROR,
    RECORD,
    TOMBSTONE,
    Stream,
    encoded,
    session,
    turned_away,
    watch,
)

KIB = 1024
MIB = 1024 * KIB
STONE = GAP | {"topic"}


def seqs(records: list[Any]) -> list[int]:
    return [record["$seq"] for record in records]


def stone(told_or_body: Any, reason: str) -> tuple[int, int]:
    """Both ends of a gap, whose frame must have the fields of §7.2."""
    assert STONE <= set(told_or_body) <= STONE | {"missed_estimate", "epoch"}, told_or_body
    assert told_or_body["reason"] == reason, told_or_body
    return told_or_body["gap_from"], told_or_body["gap_to"]


# --- POST: what a session answers


def test_a_session_names_its_stream_and_where_every_topic_stands(
    api: Api, new_name: Callable[[], str]
) -> None:
    jobs, events, audit = new_name(), new_name(), new_name()
    epochs = {
        jobs: create(api, jobs, *range(10)),
        events: create(api, events, *range(5), cap_records=3),
        audit: create(api, audit),
    }
    body = session(api, {jobs: {"from_seq": 4}, events: {"tail": True}, audit: {}})
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", body["wid"])
    assert body["stream_url"] == f"/v0/watch/{body['wid']}"
    assert body["session_ttl_ms"] == 300_000
    assert body["topics"] == {
        jobs: {"from_seq": 4, "head_seq": 10, "earliest_seq": 1, "epoch": epochs[jobs]},
        events: {"from_seq": 5, "head_seq": 5, "earliest_seq": 3, "epoch": epochs[events]},
        audit: {"from_seq": 0, "head_seq": 0, "earliest_seq": 1, "epoch": epochs[audit]},
    }


def test_every_session_has_a_wid_of_its_own(api: Api, topic: str) -> None:
    create(api, topic)
    assert len({session(api, [topic])["wid"] for _ in range(50)}) == 50


def test_tail_ignores_from_seq(api: Api, topic: str) -> None:
    create(api, topic, *range(7))
    assert session(api, {topic: {"from_seq": 2, "tail": True}})["topics"][topic]["from_seq"] == 7
    assert session(api, {topic: {"from_seq": 2, "tail": False}})["topics"][topic]["from_seq"] == 2


WRONG = [
    *(
        (field, raw)
        for field in ("limit", "heartbeat_ms", "max_batch_bytes")
        for raw in ("-1", '"5"', "1.5", "true", "[]")
    ),
    *(
        (field, raw)
        for field in ("include_meta", "include_tags", "include_data")
        for raw in ("1", '"true"', "[]", "{}")
    ),
    *(("node", raw) for raw in ("5", "true", "{}", "[1]", "[null]", '["a",5]', '[["a"]]')),
    *(("consistency", raw) for raw in ("5", "true", '"weak"', '"STRONG"', '""', "[]")),
    *(("topics", raw) for raw in ("{}", "null", "[]", '"TOPIC"', "5", "true", '["TOPIC"]')),
    *(("topics", f'{{"TOPIC":{raw}}}') for raw in ("5", "[]", '"x"', "true")),
    *(
        ("topics", f'{{"TOPIC":{{"from_seq":{raw}}}}}')
        for raw in ("-1", '"1"', "1.5", "1.0", "true", "null", "[]", str(2**64))
    ),
    *(("topics", f'{{"TOPIC":{{"tail":{raw}}}}}') for raw in ("1", '"true"', "[]")),
    *(("topics", f'{{"TOPIC":{{"epoch":{raw}}}}}') for raw in ("{}", "[]", "true", "1.5")),
    *(
        ("topics", f'{{"{name}":{{}}}}')
        for name in ("", "-x", "a b", "a/b", "é", "x" * 256, "a\\n")
    ),
]


@pytest.mark.parametrize(("field", "raw"), WRONG, ids=lambda value: f"7.1 {value[:40]}")
def test_a_wrong_type_is_a_400(api: Api, topic: str, field: str, raw: str) -> None:
    create(api, topic)
    fields = {"topics": '{"TOPIC":{}}'} | {field: raw}
    body = "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"
    refused(
        api.call("POST", "/v0/watch", body.replace("TOPIC", topic).encode()), 400, "invalid_request"
    )


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{", b"{}", b'{"topics":NaN}', b"{}{}"],
    ids=lambda value: f"7.1 {value!r}",
)
def test_a_body_that_names_no_topics_is_a_400(api: Api, body: bytes) -> None:
    refused(api.call("POST", "/v0/watch", body), 400, "invalid_request")


def test_a_session_is_asked_for_in_json(api: Api, topic: str) -> None:
    create(api, topic)
    refused(
        api.call("POST", "/v0/watch", b'{"topics":{}}', {"Content-Type": "text/plain"}),
        415,
        "unsupported_media_type",
    )


def test_unknown_fields_are_ignored(api: Api, topic: str) -> None:
    create(api, topic, "x")
    with watch(api, {topic: {"from_seq": 0, "sideways": [1]}}, colour="red") as stream:
        assert stream.told([topic]).data() == ["x"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_a_session_is_made_with_post_only(api: Api, method: str) -> None:
    refused(api.call(method, "/v0/watch"), 405, "method_not_allowed")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_a_stream_is_opened_with_get_only(api: Api, topic: str, method: str) -> None:
    create(api, topic)
    refused(api.call(method, session(api, [topic])["stream_url"]), 405, "method_not_allowed")


def test_an_unknown_topic_is_a_404(api: Api, topic: str) -> None:
    create(api, topic)
    answer = api.call("POST", "/v0/watch", {"topics": {topic: {}, f"{topic}.absent": {}}})
    assert refused(answer, 404, "topic_not_found")["detail"]["topic"] == f"{topic}.absent"
    refused(api.get(f"{topic}.absent"), 404, "topic_not_found")


def test_a_lenient_session_drops_unknown_topics(api: Api, topic: str) -> None:
    create(api, topic, "x")
    body = ok(
        api.call("POST", "/v0/watch?lenient=true", {"topics": {topic: {}, f"{topic}.absent": {}}})
    )
    assert set(body["topics"]) == {topic}
    refused(
        api.call("POST", "/v0/watch?lenient=false", {"topics": {topic: {}, f"{topic}.absent": {}}}),
        404,
        "topic_not_found",
    )
    with Stream(api.address, body["stream_url"]) as stream:
        told = stream.told([topic])
        assert told.data() == ["x"]
        assert {frame.event for frame in told.frames} == {RECORD, CAUGHT_UP}


def test_a_lenient_session_is_strict_about_all_else(api: Api, topic: str) -> None:
    create(api, topic)
    refused(
        api.call("POST", "/v0/watch?lenient=true", {"topics": {topic: {"from_seq": -1}}}),
        400,
        "invalid_request",
    )


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


def test_a_session_may_not_watch_257_topics(api: Api, topic: str) -> None:
    chosen = {f"{topic}.{number}": {} for number in range(257)}
    refused(api.call("POST", "/v0/watch", {"topics": chosen}), 400, "invalid_request")


CLAMPED = [
    {"limit": 0},
    {"limit": 2**32 - 1},
    {"heartbeat_ms": 0},
    {"heartbeat_ms": 999},
    {"heartbeat_ms": 60_001},
    {"heartbeat_ms": 10**9},
    {"max_batch_bytes": 0},
    {"max_batch_bytes": 1},
    {"max_batch_bytes": 2**40},
]


@pytest.mark.parametrize("fields", CLAMPED, ids=lambda value: f"7.1 {value}")
def test_a_number_out_of_range_is_clamped(api: Api, topic: str, fields: dict[str, int]) -> None:
    create(api, topic, 1)
    with watch(api, [topic], **fields) as stream:
        assert stream.told([topic]).data() == [1]


# --- GET: establishment


def test_a_stream_has_exactly_these_headers(api: Api, topic: str) -> None:
    create(api, topic)
    with watch(api, [topic]) as stream:
        assert stream.raw_head.startswith(b"HTTP/1.1 200")
        names = [name.lower() for name, _ in stream.headers]
        assert len(names) == len(set(names)), stream.headers
        expected = {
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-store, no-transform",
            "Connection": "keep-alive",
            "X-Accel-Buffering": "no",
        }
        headers = {name.lower(): value for name, value in stream.headers}
        assert {name: headers.get(name.lower()) for name in expected} == expected
        assert "content-length" not in headers
        assert "content-encoding" not in headers


def test_a_stream_is_never_compressed(api: Api, topic: str) -> None:
    create(api, topic, "x" * 5000)
    url = session(api, [topic])["stream_url"]
    with Stream(
        api.address,
        url,
        headers=["Accept: text/event-stream", "Accept-Encoding: gzip, deflate, br"],
    ) as stream:
        assert stream.told([topic]).data() == ["x" * 5000]


def test_retry_is_sent_once_at_open(api: Api, topic: str) -> None:
    create(api, topic, 1)
    url = session(api, [topic])["stream_url"]
    for number in (1, 2):
        with Stream(api.address, url) as stream:
            assert stream.frame().retry == "2000"
            stream.told([topic])
            ok(api.append(topic, number))
            stream.records(1)
            assert [frame.retry for frame in stream.frames[1:] if frame.retry is not None] == []


@pytest.mark.parametrize(
    "wid",
    ["wid_" + "A" * 22, "wid_", "wid", "x", "wid_BuRguGorNdVFWNQULz-rrw", "wid_%00", "A" * 4000],
)
def test_an_unknown_wid_is_a_404(api: Api, wid: str) -> None:
    refused(
        turned_away(api.address, f"/v0/watch/{wid}", "Accept: text/event-stream"), 404, "not_found"
    )


def test_a_wid_is_exact(api: Api, topic: str) -> None:
    create(api, topic)
    wid = session(api, [topic])["wid"]
    for other in (wid[:-1], wid + "A", wid.removeprefix("wid_"), wid.swapcase(), wid + "/"):
        refused(
            turned_away(api.address, f"/v0/watch/{other}", "Accept: text/event-stream"),
            404,
            "not_found",
        )


@pytest.mark.parametrize(
    "accept",
    [
        "application/json",
        "text/html",
        "text/event-stream;q=0",
        "text/event-stream;q=0, */*",
        "image/*",
    ],
)
def test_an_accept_header_without_event_streams_is_a_406(api: Api, topic: str, accept: str) -> None:
    create(api, topic, 1)
    url = session(api, [topic])["stream_url"]
    refused(turned_away(api.address, url, f"Accept: {accept}"), 406, "not_acceptable")
    with Stream(api.address, url) as stream:
        assert stream.told([topic]).data() == [1]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Accept: */*"],
        ["Accept: text/*"],
        ["Accept: TEXT/Event-Stream"],
        ["Accept: text/event-stream; charset=utf-8"],
        ["Accept: text/html, text/event-stream;q=0.1"],
        ["Accept: application/json, */*;q=0.5"],
        ["Accept: application/json", "Accept: text/event-stream"],
    ],
    ids=lambda value: f"7.2 {value}",
)
def test_an_accept_header_that_admits_event_streams_opens_one(
    api: Api, topic: str, headers: list[str]
) -> None:
    create(api, topic, 1)
    with Stream(api.address, session(api, [topic])["stream_url"], headers=headers) as stream:
        assert stream.told([topic]).data() == [1]


def test_a_session_and_its_stream_may_use_one_connection(wire: Wire, api: Api, topic: str) -> None:
    create(api, topic, "x")
    wire.send(request("POST", "/v0/watch", json.dumps({"topics": {topic: {}}}).encode()))
    url = ok(wire.answer())["stream_url"]
    wire.send(request("GET", url, None, "Accept: text/event-stream"))
    status, headers = wire.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert b"retry: 2000" in wire._until(b"\n\n")


# --- frames


def test_an_empty_topic_is_caught_up_at_0(api: Api, topic: str) -> None:
    create(api, topic)
    with watch(api, [topic]) as stream:
        frame = stream.event(CAUGHT_UP)
        assert frame.json() == {"topic": topic, "head_seq": 0}
        assert frame.cursor == {topic: 0}
        stream.quiet(0.1)


def test_a_record_frame_has_exactly_these_fields(api: Api, topic: str) -> None:
    create(api, topic)
    ok(
        api.append(
            topic,
            records=[{"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"m": 2}}, {"data": None}],
        )
    )
    ts = [record["$ts"] for record in api.read(topic)]
    with watch(api, [topic]) as stream:
        frame = stream.event(RECORD)
        assert frame.json() == {
            "topic": topic,
            "records": [
                {"$seq": 1, "$ts": ts[0], "$node": "n", "data": {"a": 1}, "meta": {"m": 2}},
                {"$seq": 2, "$ts": ts[1], "data": None},
            ],
            "from_seq": 0,
            "to_seq": 2,
            "head_seq": 2,
        }
        assert frame.cursor == {topic: 2}
        after = stream.event(CAUGHT_UP)
        assert (after.json(), after.cursor) == ({"topic": topic, "head_seq": 2}, {topic: 2})


def test_a_live_record_has_the_same_frame(api: Api, topic: str) -> None:
    create(api, topic, "old")
    with watch(api, {topic: {"tail": True}}) as stream:
        assert stream.event(CAUGHT_UP).json() == {"topic": topic, "head_seq": 1}
        ok(api.append(topic, records=[{"data": 5, "tag": "t", "meta": {"m": 1}}]))
        frame = stream.event(RECORD)
        body = frame.json()
        assert body.pop("records") == [
            {"$seq": 2, "$ts": api.read(topic)[1]["$ts"], "data": 5, "meta": {"m": 1}}
        ]
        assert body == {"topic": topic, "from_seq": 1, "to_seq": 2, "head_seq": 2}
        assert frame.cursor == {topic: 2}


def test_an_append_is_seen_while_it_is_new(api: Api, topic: str) -> None:
    create(api, topic)
    with watch(api, [topic]) as stream:
        stream.told([topic])
        for number in range(30):
            sent = time.monotonic()
            ok(api.append(topic, number))
            assert data(stream.records(1)) == [number]
            assert time.monotonic() - sent < SLACK_S


def test_a_write_of_many_records_comes_in_order(api: Api, topic: str) -> None:
    create(api, topic)
    with watch(api, [topic]) as stream:
        stream.told([topic])
        for start in range(0, 600, 200):
            ok(api.append(topic, *range(start, start + 200)))
        records = stream.records(600)
    assert (data(records), seqs(records)) == (list(range(600)), list(range(1, 601)))


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
def test_a_frame_holds_at_most_limit_records(
    api: Api, topic: str, limit: int | None, most: int
) -> None:
    count = min(2 * most + 1, 1100)
    create(api, topic, *range(count))
    with watch(api, [topic], **({} if limit is None else {"limit": limit})) as stream:
        told = stream.told([topic])
    assert told.data() == list(range(count))
    frames = told.of(RECORD)
    assert max(len(frame["records"]) for frame in frames) <= most
    assert [frame["from_seq"] for frame in frames] == [
        0,
        *(frame["to_seq"] for frame in frames[:-1]),
    ]
    assert [frame["to_seq"] for frame in frames] == [
        frame["records"][-1]["$seq"] for frame in frames
    ]
    assert {frame["head_seq"] for frame in frames} == {count}
    assert [frame.cursor[topic] for frame in told.frames if frame.event == RECORD] == [
        frame["to_seq"] for frame in frames
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
    counts = [len(frame["records"]) for frame in told.of(RECORD)]
    assert min(counts) >= 1
    assert (max(counts) - 1) * size < budget  # §7.1: a read stops once the batch reaches the budget


def test_line_ends_in_a_payload_do_not_end_a_frame(api: Api, topic: str) -> None:
    create(api, topic)
    inner = b'{"a":\n\n1,\r\n"event: x":\r[2,\n\n\n3],\n"id":\n"\\n\\r\\u2028\xe2\x80\xa8\xe2\x80\xa9\xc2\x85"}'
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
        frames = [stream.event(RECORD)]
        stream.event(CAUGHT_UP)
        ok(api.call("POST", f"/v0/topics/{topic}", body))
        frames.append(stream.event(RECORD))
    for frame in frames:
        assert frame.data is not None
        (record,) = msgspec.json.decode(frame.data.encode(), type=RawDiff).records
        assert bytes(record.data) == value
        assert bytes(record.meta) == b'{"k": %s}' % value


# --- several topics


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
    for frame in told.frames:
        body = frame.json()
        cursor[body["topic"]] = body["to_seq"] if frame.event == RECORD else body["head_seq"]
        assert frame.cursor == cursor
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
        frame = stream.event(RECORD)
        ok(api.append(names[0], "second"))
        assert data(stream.records(1)) == ["second"]
    if count <= 64:
        assert set(frame.cursor) == set(names)
    assert frame.id is not None
    assert len(frame.id) < 8 * KIB  # it comes back in a header
    with Stream(api.address, url, last_event_id=frame.id) as stream:
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


# --- node filter (§4.5)


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
        frame = stream.event(CAUGHT_UP)
        assert (frame.json(), frame.cursor) == ({"topic": topic, "head_seq": 3}, {topic: 3})
        for _ in range(5):
            ok(api.append(topic, "mine", node="me"))
        ok(api.append(topic, "yours", node="you"))
        (record,) = stream.records(1)
        assert (record["$seq"], record["data"]) == (9, "yours")
        assert stream.frames[-1].event in (RECORD, CAUGHT_UP)
        assert stream.frames[-1].cursor == {topic: 9}


def test_a_topic_may_opt_out_of_the_node_filter(api: Api, topic: str) -> None:
    create(api, topic, dedupe_node=False)
    ok(api.append(topic, 1, node="me"))
    with watch(api, [topic], node="me") as stream:
        assert stream.told([topic]).data() == [1]
        ok(api.append(topic, 2, node="me"))
        assert data(stream.records(1)) == [2]


# --- consistency


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


# --- resuming (§7.2)


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
            assert told.frames[-1].cursor == {left: 2, right: 2}


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
        frames = [frame for frame in stream.told([topic]).frames if frame.event == RECORD]
    for at in (3, 0, 4, 2):
        with Stream(api.address, url, last_event_id=frames[at].id) as stream:
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
            with pytest.raises(EOFError):
                first.frame()
            ok(api.append(topic, 2))
            assert data(second.records(1)) == [2]


def test_sessions_of_one_topic_are_independent(api: Api, topic: str) -> None:
    create(api, topic, 1)
    with watch(api, [topic]) as first, watch(api, [topic]) as second:
        assert first.told([topic]).data() == second.told([topic]).data() == [1]
        ok(api.append(topic, 2))
        assert data(first.records(1)) == data(second.records(1)) == [2]
        first.quiet(0.05)


# --- loss: tombstones (§3.3, §7.2)


def test_a_start_below_the_floor_is_told_at_connect(api: Api, topic: str) -> None:
    create(api, topic, *range(10), cap_records=4)
    body = session(api, [topic])
    assert body["topics"][topic]["earliest_seq"] == 7
    with Stream(api.address, body["stream_url"]) as stream:
        frame = stream.event(TOMBSTONE)
        assert stone(frame.json(), "from_seq_too_old") == (1, 6)
        assert (frame.json()["topic"], frame.json()["earliest_seq"], frame.json()["head_seq"]) == (
            topic,
            7,
            10,
        )
        assert frame.cursor == {topic: 6}
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
        assert told.frames[0].event == TOMBSTONE
        assert told.data() == [16, 17, 18, 19, 20]
    with Stream(api.address, url) as stream:
        told = stream.told([topic])
        assert (told.tombstones, told.records) == ([], [])


def test_a_resume_after_a_tombstone_is_correct(api: Api, topic: str) -> None:
    create(api, topic, *range(1, 11), cap_records=4)
    url = session(api, [topic])["stream_url"]
    with Stream(api.address, url) as stream:
        frame = stream.told([topic]).frames[0]
        assert frame.event == TOMBSTONE
    with Stream(api.address, url, last_event_id=frame.id) as stream:
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
    create(api, topic, ttl_ms=1500)
    with watch(api, [topic]) as stream:
        stream.told([topic])
        ok(api.append(topic, 1))
        assert data(stream.records(1)) == [1]
        time.sleep(1.7)
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
    assert told.frames[-1].cursor == {topic: 10}


def test_a_topic_whose_records_are_all_deleted_is_caught_up_at_its_head(
    api: Api, topic: str
) -> None:
    create(api, topic, 1, 2, 3)
    ok(api.call("POST", f"/v0/topics/{topic}/delete", {"before_seq": 4}))
    with watch(api, [topic]) as stream:
        frame = stream.event(CAUGHT_UP)
        assert (frame.json(), frame.cursor) == ({"topic": topic, "head_seq": 3}, {topic: 3})
        ok(api.append(topic, 4))
        assert data(stream.records(1)) == [4]


def test_a_gap_runs_over_deleted_records_too(api: Api, topic: str) -> None:
    create(api, topic, *range(1, 11), cap_records=6)
    ok(api.call("POST", f"/v0/topics/{topic}/delete", {"before_seq": 8}))
    with watch(api, {topic: {"from_seq": 2}}) as stream:
        told = stream.told([topic])
    assert [stone(body, "from_seq_too_old") for body in told.tombstones] == [(3, 7)]
    assert told.data() == [8, 9, 10]


# --- topics that go and come back


def test_a_deleted_topic_ends_for_itself_only(api: Api, new_name: Callable[[], str]) -> None:
    gone, stays = new_name(), new_name()
    create(api, gone, 1, 2)
    create(api, stays)
    with watch(api, [gone, stays]) as stream:
        stream.told([gone, stays])
        ok(api.delete(gone))
        frame = stream.event(DELETED)
        assert frame.json() == {"topic": gone, "head_seq": 2, "reason": "deleted"}
        assert frame.cursor[stays] == 0
        ok(api.append(stays, "x"))
        assert data(stream.records(1)) == ["x"]
        ok(api.append(gone, "another topic"), 201)
        ok(api.append(stays, "y"))
        assert data(stream.records(1)) == ["y"]
        stream.quiet(0.05)


def test_whoever_comes_back_is_told_again_which_topics_have_ended(
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
        frame = stream.event(DELETED)
        assert frame.json() == {"topic": gone, "head_seq": 2, "reason": "deleted"}
        assert frame.cursor == {gone: 2, stays: 0}
        ok(api.append(stays, "x"))
        assert data(stream.records(1)) == ["x"]


def recreated(stream: Stream, topic: str, head: int) -> None:
    """The recreated tombstone of the rulings, then all that the topic holds."""
    told = stream.told([topic])
    assert [stone(body, "recreated") for body in told.tombstones] == [(1, head)]
    assert told.frames[0].event == TOMBSTONE
    assert seqs(told.records) == list(range(1, head + 1))


def test_a_topic_made_again_while_the_reader_is_away_is_told(api: Api, topic: str) -> None:
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


def test_a_start_above_the_head_means_that_the_topic_was_made_again(api: Api, topic: str) -> None:
    create(api, topic, 1, 2)
    with watch(api, {topic: {"from_seq": 50}}) as stream:
        recreated(stream, topic, 2)


def test_another_epoch_means_that_the_topic_was_made_again(api: Api, topic: str) -> None:
    old = create(api, topic, 1, 2, 3)
    ok(api.delete(topic))
    new = create(api, topic, 4, 5, 6, 7)
    with watch(api, {topic: {"from_seq": 2, "epoch": old}}) as stream:
        recreated(stream, topic, 4)
    with watch(api, {topic: {"from_seq": 2, "epoch": new}}) as stream:
        told = stream.told([topic])
        assert (told.tombstones, told.data()) == ([], [6, 7])


def test_a_client_that_missed_the_making_of_a_topic_is_told_again(api: Api, topic: str) -> None:
    """The tombstone and the records after it went out, and never came: its id is that of the old
    topic.
    """
    create(api, topic, 1, 2, 3)
    url = session(api, [topic])["stream_url"]
    with Stream(api.address, url) as stream:
        last_id = stream.told([topic]).last_id
    ok(api.delete(topic))
    create(api, topic, *range(8))
    with Stream(api.address, url, last_event_id=last_id) as stream:
        recreated(stream, topic, 8)
    with Stream(api.address, url, last_event_id=last_id) as stream:
        recreated(stream, topic, 8)
        last_id = stream.frames[-1].id
    with Stream(api.address, url, last_event_id=last_id) as stream:
        told = stream.told([topic])
        assert (told.tombstones, told.records) == ([], [])
