"""Every refusal of the routes of queues (§10, §0.6): bodies, types, topics, methods and limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import wrong_types
from tests.support.api import Answer, Api, ok, refused
from tests.support.queues import Queue, Work, counters, data, work_path
from tests.support.server import Server
from tests.support.sse import Stream, turned_away

pytestmark = pytest.mark.slow

GOOD: dict[str, dict[str, Any]] = {
    "claim": {"node": "w"},
    "ack": {"node": "w", "seqs": [1]},
    "nack": {"node": "w", "seqs": [1]},
    "extend": {"node": "w", "seqs": [1], "lease_ms": 1000},
    "redrive": {},
}
POSTS = pytest.mark.parametrize("verb", GOOD)
SETTLING = ("ack", "nack", "extend")


@pytest.fixture
def held(queue: Queue) -> Queue:
    """A queue whose job 1 is held by w; job 2 is ready."""
    queue.push("held", "ready")
    queue.claim("w")
    return queue


def is_untouched(queue: Queue) -> None:
    assert queue.counters() == counters(ready=1, in_flight=1)
    assert queue.live() == [1, 2]


# --- bodies


def fields(verb: str) -> list[tuple[str, str]]:
    """Each field of a request with each text that it must not have."""
    node = [*wrong_types.TEXT, '""', '"' + "x" * 129 + '"', '"' + "é" * 65 + '"']
    found = [("node", text) for text in node]
    if verb == "claim":
        found += wrong_types.rows(wrong_types.UNSIGNED, "max", "lease_ms", "wait_ms")
        found += [("max", "0")]
    if verb == "nack":
        found += wrong_types.rows(wrong_types.UNSIGNED, "delay_ms")
    if verb == "extend":
        found += wrong_types.rows([*wrong_types.UNSIGNED, "null"], "lease_ms")
    if verb in SETTLING:
        found += [("seqs", text) for text in wrong_types.SEQS]
        found += [("lease_ids", text) for text in wrong_types.TOKENS_OF_ONE]
    if verb == "redrive":
        found = wrong_types.rows(wrong_types.UNSIGNED, "limit")
        found += [("limit", "0"), *wrong_types.rows(wrong_types.UNSIGNED, "before_seq")]
        found += [("to", text) for text in ("5", "true", "[]", '""', '"-x"', '"a b"')]
        found += [("match", text) for text in wrong_types.MATCH]
    return found


WRONG = [(verb, field, text) for verb in GOOD for field, text in fields(verb)]


@pytest.mark.parametrize(
    ("verb", "field", "text"),
    WRONG,
    ids=[f"10 {verb} {field} {t[:20]}" for verb, field, t in WRONG],
)
def test_a_field_of_a_wrong_type_is_a_400_and_changes_nothing(
    held: Queue, verb: str, field: str, text: str
) -> None:
    texts = {name: json.dumps(value) for name, value in GOOD[verb].items()} | {field: text}
    body = "{" + ",".join(f'"{name}":{value}' for name, value in texts.items()) + "}"
    refused(held.call(verb, body.encode()), 400, "invalid_request")
    is_untouched(held)


MISSING = [(verb, field) for verb, body in GOOD.items() for field in body]


@pytest.mark.parametrize(("verb", "field"), MISSING)
def test_a_field_that_is_required_and_missing_is_a_400(held: Queue, verb: str, field: str) -> None:
    body = {name: value for name, value in GOOD[verb].items() if name != field}
    refused(held.call(verb, body), 400, "invalid_request")
    is_untouched(held)


NO_BODIES = [b"", b"{", b"[]", b"null", b"5", b'"x"', b'{"node":"w"', b"{'node':'w'}", b"\xff"]


@POSTS
@pytest.mark.parametrize("body", NO_BODIES, ids=lambda body: f"0.3 {body!r}")
def test_a_body_that_is_no_object_is_a_400(held: Queue, verb: str, body: bytes) -> None:
    if verb == "redrive" and not body:
        pytest.skip("an empty body means {} where every field is optional")
    refused(held.call(verb, body), 400, "invalid_request")
    is_untouched(held)


@POSTS
@pytest.mark.parametrize("kind", ["text/plain", "", "application/jsonx"])
def test_another_content_type_is_a_415(held: Queue, verb: str, kind: str) -> None:
    path = f"/v0/topics/{held.name}/{verb}"
    answer = held.api.call("POST", path, GOOD[verb], {"Content-Type": kind})
    refused(answer, 415, "unsupported_media_type")
    is_untouched(held)


def test_a_redrive_without_a_body_moves_what_it_can(api: Api, topic: str) -> None:
    ok(api.append(topic, "stray"), 201)
    body = ok(api.call("POST", f"/v0/topics/{topic}/redrive"))
    assert (body["moved"], body["skipped"], body["reason"]) == (0, 1, "no_source")


@pytest.mark.parametrize("verb", SETTLING)
def test_more_than_1000_seqs_are_too_large_a_batch(held: Queue, verb: str) -> None:
    body = GOOD[verb] | {"seqs": list(range(1, 1002))}
    refused(held.call(verb, body), 400, "batch_too_large")
    is_untouched(held)
    body = GOOD[verb] | {"seqs": list(range(2, 1002))}
    assert len(ok(held.call(verb, body))["skipped"]) == 1000


# --- topics

CALLS = [*(("POST", verb) for verb in GOOD), ("GET", "work?node=w"), ("GET", "leases")]
EVERY = pytest.mark.parametrize(("method", "tail"), CALLS, ids=[f"10 {tail}" for _, tail in CALLS])


def called(api: Api, name: str, method: str, tail: str) -> Answer:
    if tail.startswith("work"):
        path = f"/v0/topics/{name}/{tail}"
        return turned_away(api.address, path, "Accept: text/event-stream")
    return api.call(method, f"/v0/topics/{name}/{tail}", GOOD.get(tail))


@EVERY
def test_an_absent_topic_is_a_404_and_is_not_made(
    api: Api, topic: str, method: str, tail: str
) -> None:
    for _ in range(2):
        error = refused(called(api, topic, method, tail), 404, "topic_not_found")
        assert error["detail"]["topic"] == topic
    refused(api.get(topic), 404, "topic_not_found")


@EVERY
def test_a_log_is_not_a_queue(api: Api, topic: str, method: str, tail: str) -> None:
    ok(api.append(topic, 1, config={"lease_ms": 1000, "max_deliveries": 1}), 201)
    if tail == "redrive":
        assert ok(called(api, topic, method, tail))["moved"] == 0, "dead letters lie in logs, too"
        return
    refused(called(api, topic, method, tail), 409, "not_a_queue")
    assert [record["data"] for record in api.read(topic)] == [1]


@EVERY
@pytest.mark.parametrize("name", ["-x", "a%20b", "a%0A", "x" * 256], ids=lambda name: name[:9])
def test_a_bad_name_is_a_400(api: Api, method: str, tail: str, name: str) -> None:
    refused(called(api, name, method, tail), 400, "invalid_request")


@EVERY
def test_another_method_is_a_405(held: Queue, method: str, tail: str) -> None:
    verb = tail.partition("?")[0]
    for other in {"GET", "POST", "PUT", "DELETE", "PATCH"} - {method}:
        body = b"{}" if other in ("POST", "PUT", "PATCH") else None
        answer = held.api.call(other, f"/v0/topics/{held.name}/{verb}", body)
        refused(answer, 405, "method_not_allowed")
        named = {name.strip() for name in answer.headers["allow"].split(",")}
        assert {method} <= named <= {method, "HEAD", "OPTIONS"}
    is_untouched(held)


@pytest.mark.parametrize("tail", ["claim/", "claims", "Claim", "claim/x", "leases/1", "work/"])
def test_a_path_that_is_nearly_right_is_a_404(held: Queue, tail: str) -> None:
    answer = held.api.call("POST", f"/v0/topics/{held.name}/{tail}", GOOD["claim"])
    refused(answer, 404, "not_found")


@POSTS
def test_the_order_of_checks(api: Api, topic: str, verb: str) -> None:
    path = f"/v0/topics/{topic}/{verb}"
    answer = api.call("PATCH", path, b"x", {"Content-Type": "text/plain"})
    refused(answer, 405, "method_not_allowed")
    answer = api.call("POST", path, b"{", {"Content-Type": "text/plain"})
    refused(answer, 415, "unsupported_media_type")
    refused(api.call("POST", path, b"{"), 400, "invalid_request")
    ok(api.append(topic, 1), 201)
    refused(api.call("POST", path, b"{"), 400, "invalid_request")


# --- work

BAD_QUERIES = [
    *("", "max=1", "node=", "node", f"node={'x' * 129}", "node=%FF"),
    *(f"node=w&max={text}" for text in ("0", "-1", "1.5", "x", "", "true", "1e1")),
    *(f"node=w&lease_ms={text}" for text in ("-1", "1.5", "x", "", "true")),
]


@pytest.mark.parametrize("query", BAD_QUERIES, ids=lambda query: f"10.8 {query[:30]}")
def test_a_work_stream_with_a_bad_query_is_a_400(held: Queue, query: str) -> None:
    path = f"/v0/topics/{held.name}/work?{query}"
    answer = turned_away(held.api.address, path, "Accept: text/event-stream")
    refused(answer, 400, "invalid_request")
    is_untouched(held)


@pytest.mark.parametrize("accept", ["application/json", "text/html", "text/event-stream;q=0"])
def test_an_accept_header_without_event_streams_is_a_406(held: Queue, accept: str) -> None:
    path = work_path(held.name, node="w")
    refused(turned_away(held.api.address, path, f"Accept: {accept}"), 406, "not_acceptable")
    is_untouched(held)


@pytest.mark.parametrize("headers", [[], ["Accept: */*"], ["Accept: text/*"]], ids=str)
def test_an_accept_header_that_admits_event_streams_opens_one(
    held: Queue, headers: list[str]
) -> None:
    with Stream(held.api.address, work_path(held.name, node="w"), headers=headers) as stream:
        assert stream.event("job").json()["data"] == "ready"


# --- limits that were changed


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    path = tmp_path_factory.mktemp("small-queues") / "data"
    with (
        Server(path, max_claim=5, max_node_bytes=3, max_body_bytes=2000) as server,
        Api(server.address) as api,
    ):
        yield api


@pytest.mark.slow
def test_max_claim_may_be_changed(small: Api, topic: str) -> None:
    queue = Queue.create(small, topic, *range(20))
    assert data(queue.claim("w", 1000)) == [0, 1, 2, 3, 4]
    assert queue.ack([1, 2, 3, 4, 5])["acked"] == 5
    for verb in SETTLING:
        body = GOOD[verb] | {"seqs": [1, 2, 3, 4, 5, 6]}
        refused(queue.call(verb, body), 400, "batch_too_large")
    with Work(queue, "w", 1000) as stream:
        assert data(stream.jobs(5)) == [5, 6, 7, 8, 9]
        stream.quiet(0.3)


@pytest.mark.slow
def test_the_length_of_a_node_may_be_changed(small: Api, topic: str) -> None:
    queue = Queue.create(small, topic, "a", "b")
    assert data(queue.claim("éx")) == ["a"]
    for verb, body in GOOD.items():
        if verb != "redrive":
            refused(queue.call(verb, body | {"node": "éé"}), 400, "invalid_request")
    path = work_path(topic, node="éé")
    answer = turned_away(small.address, path, "Accept: text/event-stream")
    refused(answer, 400, "invalid_request")


@pytest.mark.slow
@POSTS
def test_a_body_above_the_limit_is_a_413(small: Api, topic: str, verb: str) -> None:
    queue = Queue.create(small, topic, "a")
    body = json.dumps(GOOD[verb]).encode()
    refused(queue.call(verb, body + b" " * 2000), 413, "payload_too_large")
    assert queue.counters() == counters(ready=1)
    ok(queue.call(verb, body + b" " * (2000 - len(body))))
