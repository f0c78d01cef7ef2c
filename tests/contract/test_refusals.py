"""Refusals of invalid requests (§0.3, §0.5, §0.6) of all routes, in both planes and over WebSocket.
`refusal_rows` has the requests. No refused request changes any state.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.refusal_rows import (
    BAD_ROUTER_NAMES,
    BAD_TOPIC_NAMES,
    CODINGS,
    FIELD_ROWS,
    HTTP,
    KEYS,
    MALFORMED_NAMES,
    MEDIA_TYPES,
    METHODS,
    NO_STREAM,
    NOT_OBJECTS,
    ONE,
    ORDER,
    QUERIES,
    ROUTES,
    TOPIC_CALLS,
    UNKNOWN_PATHS,
    WIDS,
)
from tests.support.api import Answer, Api, listed, ok, refused
from tests.support.queues import HOUR_MS, Queue
from tests.support.routers import names as routers
from tests.support.routers import put as put_router
from tests.support.server import Server
from tests.support.sse import refused_stream, session
from tests.support.ws import BINARY, Socket, alive, failed

MIB = 2**20
QUEUE_CALLS = ("/claim", "/ack", "/nack", "/extend", "/leases", "/work?node=w")
ZIPPED = gzip.compress(json.dumps(ONE).encode())
CORRUPT = {
    "not gzip": b"hello",
    "the plain body": json.dumps(ONE).encode(),
    "zlib": zlib.compress(ZIPPED),
    "cut": ZIPPED[:-9],
    "head only": ZIPPED[:10],
    "without checksum": ZIPPED[:-8],
    "wrong checksum": ZIPPED[:-8] + b"\x00\x01\x02\x03" + ZIPPED[-4:],
    "wrong length": ZIPPED[:-1] + b"\x01",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("refusals") / "data", shards=2) as server:
        with Api(server.address) as api:
            records = [{"data": number, "tag": "a"} for number in range(2)]
            ok(api.append("log", records=records), 201)
            Queue.create(api, "queue", "held", "ready").claim("w", lease_ms=HOUR_MS)
            ok(put_router(api, "kept", "log", "copy"), 201)
        yield server


def seen(api: Api) -> Any:
    """Return the state that a refused request must not change."""
    names = ("head_seq", "count", "bytes", "config", "epoch")
    found = {name: api.state(name) for name in listed(api)}
    shown = {name: [state[field] for field in names] for name, state in found.items()}
    return shown, found["queue"]["queue"], Queue(api, "queue").leases(), routers(api)


@pytest.fixture
def checked_api(served: Server) -> Iterator[Api]:
    """Yield a client, and check that its requests change no state."""
    with Api(served.address) as api:
        before = seen(api)
        yield api
        assert seen(api) == before


@pytest.fixture
def checked_socket(served: Server) -> Iterator[Socket]:
    with Socket(served.address) as socket:
        yield socket
        alive(socket)


def body_of(body: dict[str, Any], field: str, text: str) -> bytes:
    """Return the body with this JSON text in a field."""
    name = field.split(",")[0]
    texts = {key: json.dumps(value) for key, value in body.items()}
    if name.startswith("record."):
        name, text = "records", f'[{{"data":1}},{{"data":2,"{name[7:]}":{text}}}]'
    if name == "topics":
        texts.pop("topic", None)
    texts[name] = text
    return ("{" + ",".join(f'"{key}":{value}' for key, value in texts.items()) + "}").encode()


@pytest.mark.parametrize(
    ("name", "field", "texts"), FIELD_ROWS, ids=[f"{name} {field}" for name, field, _ in FIELD_ROWS]
)
def test_a_field_with_an_invalid_value_is_refused(
    checked_api: Api, checked_socket: Socket, name: str, field: str, texts: list[str]
) -> None:
    route = ROUTES[name]
    for text in texts:
        body = body_of(route.body, field, text)
        if route.method == "WS":
            checked_socket.text(b'{"request_id":"bad",' + body[1:])
            failed(checked_socket.message(), "bad", "invalid_request")
            continue
        error = refused(checked_api.call(route.method, route.path, body), 400, "invalid_request")
        if name == "router" and "," not in field and "field" in error.get("detail", {}):
            assert error["detail"]["field"] == field


@pytest.mark.parametrize("name", ROUTES)
def test_a_missing_required_field_is_refused(
    checked_api: Api, checked_socket: Socket, name: str
) -> None:
    route = ROUTES[name]
    for field in route.body:
        body = {key: value for key, value in route.body.items() if key != field}
        if route.method == "WS":
            failed(reply_of(checked_socket, body), "bad", "invalid_request")
        else:
            refused(checked_api.call(route.method, route.path, body), 400, "invalid_request")


def reply_of(socket: Socket, body: dict[str, Any]) -> Any:
    socket.text(json.dumps({"request_id": "bad", **body}))
    return socket.message()


@pytest.mark.parametrize("name", HTTP)
def test_a_body_that_is_not_a_json_object_is_refused(checked_api: Api, name: str) -> None:
    route = ROUTES[name]
    for body in [*NOT_OBJECTS, *([b""] if route.body else [])]:
        refused(checked_api.call(route.method, route.path, body), 400, "invalid_request")


def test_a_command_that_is_not_a_json_object_is_refused(checked_socket: Socket) -> None:
    for text in (
        "",
        "{",
        "nope",
        "[]",
        "null",
        "5",
        '"ping"',
        '{"op":"ping",}',
        "{}{}",
        "[" * 99_999,
    ):
        checked_socket.text(text)
        failed(checked_socket.message(), None, "invalid_request")
    checked_socket.frame(BINARY, b'{"op":"ping","request_id":"b"}')
    assert checked_socket.message()["op"] == "error"


@pytest.mark.parametrize("name", HTTP)
def test_a_body_with_another_media_type_or_coding_is_refused(checked_api: Api, name: str) -> None:
    route = ROUTES[name]
    for kind in MEDIA_TYPES:
        answer = checked_api.call(route.method, route.path, route.body, {"Content-Type": kind})
        refused(answer, 415, "unsupported_media_type")
    for coding in CODINGS:
        answer = checked_api.call(
            route.method, route.path, route.body, {"Content-Encoding": coding}
        )
        refused(answer, 415, "unsupported_media_type")
    for body in CORRUPT.values():
        answer = checked_api.call(route.method, route.path, body, {"Content-Encoding": "gzip"})
        refused(answer, 400, "invalid_request")


def test_a_body_above_the_limit_is_refused(checked_api: Api) -> None:
    """The limit is 64 MiB for records and 128 KiB for other bodies, after decompression."""
    for name in HTTP:
        route, limit = ROUTES[name], 64 * MIB if name == "append" else MIB // 8
        bomb = gzip.compress(json.dumps(route.body).encode() + b" " * limit, compresslevel=1)
        answer = checked_api.call(route.method, route.path, bomb, {"Content-Encoding": "gzip"})
        refused(answer, 413, "payload_too_large")


@pytest.mark.parametrize(("method", "tail", "body"), TOPIC_CALLS, ids=lambda value: f"{value}"[:20])
def test_a_topic_in_the_path_must_have_a_valid_name_and_exist(
    checked_api: Api, method: str, tail: str, body: Any
) -> None:
    for name in BAD_TOPIC_NAMES:
        answer = checked_api.call(method, f"/v0/topics/{name}{tail}", body)
        refused(answer, 400, "invalid_request")
    for name in MALFORMED_NAMES:
        answer = checked_api.call(method, f"/v0/topics/{name}{tail}", body)
        assert answer.status in (400, 404)
        refused(answer, answer.status, "invalid_request", "not_found")
    if method in ("GET", "POST") and body != ONE:
        error = refused(
            checked_api.call(method, f"/v0/topics/x{tail}", body), 404, "topic_not_found"
        )
        assert error["detail"]["topic"] == "x"
    if tail in QUEUE_CALLS:
        refused(checked_api.call(method, f"/v0/topics/log{tail}", body), 409, "not_a_queue")


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("PUT", {}), ("DELETE", None)])
def test_a_router_in_the_path_must_have_a_valid_name_and_exist(
    checked_api: Api, method: str, body: Any
) -> None:
    body = body if body is None else {"source": "new", "dest": "x"}
    for name in BAD_ROUTER_NAMES:
        refused(checked_api.call(method, f"/v0/routers/{name}", body), 400, "invalid_request")
    if method == "GET":
        error = refused(checked_api.call("GET", "/v0/routers/a-%3Eb"), 404, "router_not_found")
        assert error["detail"]["router"] == "a->b"


def test_a_topic_in_a_body_must_exist(checked_api: Api, checked_socket: Socket) -> None:
    topics: dict[str, Any] = {"topics": {"log": {}, "x": {}}}
    refused(checked_api.append("x", 1, create=False), 404, "topic_not_found")
    refused(put_router(checked_api, "r", "log", "x", create_dest=False), 404, "topic_not_found")
    error = refused(checked_api.call("POST", "/v0/watch", topics), 404, "topic_not_found")
    assert error["detail"]["topic"] == "x"
    failed(reply_of(checked_socket, {"op": "subscribe", **topics}), "bad", "topic_not_found")
    failed(reply_of(checked_socket, {"op": "subscribe", "topic": "x"}), "bad", "topic_not_found")
    publish = {"op": "publish", "topic": "x", **ONE, "create": False}
    failed(reply_of(checked_socket, publish), "bad", "topic_not_found")


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([{"data": "x" * MIB}], "record_too_large"),
        ([{"data": 1, "meta": {"k": "x" * 17_000}}], "record_too_large"),
        ([{"data": 1}] * 10_001, "batch_too_large"),
        ([{"data": 1, "delay_ms": 0}], "invalid_request"),  # a log does not accept delays
        ([{"data": 1, "deliver_at": 1}], "invalid_request"),
    ],
    ids=["record", "meta", "batch", "delay", "time"],
)
def test_records_that_a_topic_does_not_accept_are_refused(
    checked_api: Api, checked_socket: Socket, records: list[Any], code: str
) -> None:
    for topic in ("new", "log"):
        refused(checked_api.append(topic, records=[{"data": 1}, *records]), 400, code)
        publish = {"op": "publish", "topic": topic, "records": records}
        failed(reply_of(checked_socket, publish), "bad", code)


@pytest.mark.parametrize("path", METHODS)
def test_the_refusal_of_a_method_names_the_allowed_ones(checked_api: Api, path: str) -> None:
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} - METHODS[path]:
        body = b"{}" if method in ("POST", "PUT", "PATCH") else None
        answer = checked_api.call(method, path, body)
        refused(answer, 405, "method_not_allowed")
        named = {*answer.headers["allow"].split(", ")}
        assert METHODS[path] <= named <= METHODS[path] | {"HEAD", "OPTIONS"}


@pytest.mark.parametrize("path", UNKNOWN_PATHS)
def test_an_unknown_path_gets_404(checked_api: Api, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        body = b"{}" if method in ("POST", "PUT") else None
        refused(checked_api.call(method, path, body), 404, "not_found")


@pytest.mark.parametrize(("method", "path", "body", "queries"), QUERIES, ids=lambda v: f"{v}"[:24])
def test_an_invalid_query_is_refused(
    checked_api: Api, method: str, path: str, body: Any, queries: list[str]
) -> None:
    for query in queries:
        refused(checked_api.call(method, f"{path}?{query}", body), 400, "invalid_request")


def test_a_stream_requires_a_session_and_an_accept_of_event_streams(checked_api: Api) -> None:
    def opened(path: str, accept: str = "text/event-stream") -> Answer:
        return refused_stream(checked_api.address, path, f"Accept: {accept}")

    url = session(checked_api, ["log"])["stream_url"]
    for accept in NO_STREAM:
        for path in (url, "/v0/watch?topic=log", "/v0/topics/queue/work?node=w"):
            refused(opened(path, accept), 406, "not_acceptable")
    wid = url.rpartition("/")[2]
    others = (wid[:-1], wid + "A", wid.removeprefix("wid_"), wid.swapcase(), wid + "/")
    for other in (*WIDS, *others):
        refused(opened(f"/v0/watch/{other}"), 404, "not_found")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("order") / "data"
    with Server(folder, shards=1, api_keys=KEYS) as server:
        yield server


@pytest.mark.parametrize(("token", "method", "path", "body", "kind", "status", "code"), ORDER)
def test_the_checks_of_a_request_have_a_fixed_order(
    guarded: Server,
    token: str | None,
    method: str,
    path: str,
    body: Any,
    kind: str,
    status: int,
    code: str,
) -> None:
    with Api(guarded.address, token=token) as api:
        headers = {"Content-Type": kind} if kind else {}
        refused(api.call(method, path, body, headers), status, code)


@pytest.mark.parametrize("name", ROUTES)
def test_unknown_fields_are_ignored(api: Api, socket: Socket, topic: str, name: str) -> None:
    """Names that differ from a field only in case are unknown, too."""
    Queue.create(api, topic, "a", lease_ms=HOUR_MS).claim("w")
    route = ROUTES[name]
    named = json.loads(json.dumps(route.body).replace('"new"', f'"{topic}"'))
    named = json.loads(json.dumps(named).replace('"log"', f'"{topic}"'))
    body = named | {"nope": {"a": [1]}, "$seq": 5} | {key.upper(): 5 for key in named}
    body |= {"TTL_MS": "x", "From_Seq": 9, "Limit": -1}
    if route.method == "WS":
        assert reply_of(socket, body)["op"] in ("subscribed", "unsubscribed", "ack")
        return
    path = route.path.replace("/new", f"/{topic}").replace("/log", f"/{topic}")
    path = path.replace("/queue", f"/{topic}").replace("/r", f"/{topic}.", 1)
    path = (
        f"/v0/routers/{topic}" if name == "router" else path.replace(f"/{topic}.edrive", "/redrive")
    )
    answer = api.call(route.method, path, body)
    ok(answer, answer.status)
    assert answer.status in (200, 201)
