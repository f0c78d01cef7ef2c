"""POST /v0/watch (§7.1): what a session answers, and which requests make none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import wrong_types
from tests.support.api import Api, create, ok, refused
from tests.support.sse import CAUGHT_UP, RECORD, Stream, session, watch


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
    *wrong_types.LIVE_VIEW,
    *wrong_types.rows(wrong_types.UNSIGNED, "heartbeat_ms"),
    *wrong_types.rows([*wrong_types.TOPICS, "null"], "topics"),
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
        assert {event.event for event in told.events} == {RECORD, CAUGHT_UP}


def test_a_lenient_session_is_strict_about_all_else(api: Api, topic: str) -> None:
    create(api, topic)
    refused(
        api.call("POST", "/v0/watch?lenient=true", {"topics": {topic: {"from_seq": -1}}}),
        400,
        "invalid_request",
    )


def test_a_session_may_not_watch_257_topics(api: Api, topic: str) -> None:
    chosen: dict[str, Any] = {f"{topic}.{number}": {} for number in range(257)}
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
