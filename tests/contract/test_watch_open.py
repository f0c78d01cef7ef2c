"""POST /v0/watch and GET /v0/watch/:wid (§7.1, §7.2): a session and its stream."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support.api import Api, create, ok, refused
from tests.support.sse import CAUGHT_UP, RECORD, Stream, encoded, session, watch


def test_a_session_returns_its_stream_and_the_state_of_every_topic(
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
        contents = stream.read_until_caught_up([topic])
        assert contents.data() == ["x"]
        assert {event.event for event in contents.events} == {RECORD, CAUGHT_UP}


def test_a_session_starts_at_the_cursor_of_an_event(api: Api, new_name: Callable[[], str]) -> None:
    """Ids of both kinds of streams are cursors (§0.7). A topic that is not in the cursor starts as
    requested.
    """
    old, other = new_name(), new_name()
    epoch = create(api, old, 1, 2)
    create(api, other, "a", "b")
    with watch(api, [old]) as stream:
        of_a_session = stream.read_until_caught_up([old]).last_id
    with Stream(api.address, f"/v0/watch?topic={old}") as stream:
        of_a_request = stream.read_until_caught_up([old]).last_id
    ok(api.append(old, 3))
    for cursor in (of_a_session, of_a_request):
        body = session(api, {old: {}, other: {"from_seq": 1}}, cursor=cursor)
        assert body["topics"][old] == {
            "from_seq": 2,
            "head_seq": 3,
            "earliest_seq": 1,
            "epoch": epoch,
        }
        assert body["topics"][other]["from_seq"] == 1
        with Stream(api.address, body["stream_url"]) as stream:
            assert sorted(map(str, stream.read_until_caught_up([old, other]).data())) == ["3", "b"]
        assert list(session(api, [other], cursor=cursor)["topics"]) == [other]


@pytest.mark.parametrize(
    "cursor", ["", "\ud800", "MTIz", encoded({}), encoded({"t": -1}), encoded(["t"]), 5]
)
def test_a_cursor_that_is_not_the_id_of_an_event_is_refused(
    api: Api, topic: str, cursor: object
) -> None:
    """``MTIz`` is the id of a checkpoint, which is valid only in its own session."""
    create(api, topic, 1)
    answer = api.call("POST", "/v0/watch", {"topics": {topic: {}}, "cursor": cursor})
    assert refused(answer, 400, "invalid_request")["detail"].get("field", "cursor") == "cursor"


def test_a_stream_has_exactly_these_headers(api: Api, topic: str) -> None:
    create(api, topic)
    url = session(api, [topic])["stream_url"]
    accepts = ["Accept: text/event-stream", "Accept-Encoding: gzip, deflate, br"]
    with Stream(api.address, url, headers=accepts) as stream:
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


def test_retry_is_sent_once_at_open(api: Api, topic: str) -> None:
    create(api, topic, 1)
    url = session(api, [topic])["stream_url"]
    for number in (1, 2):
        with Stream(api.address, url) as stream:
            assert stream.block().retry == "2000"
            stream.read_until_caught_up([topic])
            ok(api.append(topic, number))
            stream.records(1)
            assert [event.retry for event in stream.blocks[1:] if event.retry is not None] == []
