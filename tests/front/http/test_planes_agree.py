"""Both planes accept exactly the same bytes.

Each request of one table is sent to a route of each plane, in one write and in several.
"""

from __future__ import annotations

import gzip

import pytest
import trio

from tests.support.fake_shards import FakeShards
from tests.support.front import Running, running
from tests.support.raw_client import RawResponse
from topics.config import Settings
from topics.errors import InvalidRequest
from topics.formats.api.request_heads import parse_head

# Both routes have the same requirements: the first is in the data plane, the second in the admin
# plane.
DIFF, REDRIVE = b"POST /v0/topics/a/diff", b"POST /v0/topics/a/redrive"
JSON = b"content-type: application/json\r\n"
HOST = b"host: localhost\r\n"
PLAIN = b" HTTP/1.1\r\n" + HOST
TYPED = PLAIN + JSON
CHUNKED = TYPED + b"transfer-encoding: chunked\r\n"
TWO_BYTES = b"content-length: 2\r\n\r\n{}"
SHAKE = (
    b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)

OPEN, SHUT = False, True
# name: the bytes after the request line's path, the status, and whether the connection is closed
# afterwards
REQUESTS: dict[str, tuple[bytes, int, bool]] = {
    "plain": (TYPED + TWO_BYTES, 200, OPEN),
    "no body": (PLAIN + b"\r\n", 200, OPEN),
    "HTTP/1.0": (b" HTTP/1.0\r\n" + JSON + TWO_BYTES, 200, SHUT),
    "HTTP/1.0 with keep-alive": (b" HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", 200, SHUT),
    "close": (PLAIN + b"connection: close\r\n\r\n", 200, SHUT),
    "HTTP/2.0": (b" HTTP/2.0\r\n" + HOST + b"\r\n", 400, SHUT),
    "an empty host": (b" HTTP/1.1\r\nhost:\r\n\r\n", 200, OPEN),
    "a host with two dots": (b" HTTP/1.1\r\nhost: a..b\r\n\r\n", 200, OPEN),
    "a host that IDNA does not know": (
        b" HTTP/1.1\r\nhost: xn--" + b"a" * 80 + b"\r\n\r\n",
        200,
        OPEN,
    ),
    "a host with a bad port": (b" HTTP/1.1\r\nhost: a:b:c\r\n\r\n", 400, SHUT),
    "a control character": (PLAIN + b"x-a: \x1b\r\n\r\n", 400, SHUT),
    "octets above ASCII in a field": (PLAIN + b"x-a: \xff\xe9\r\n\r\n", 200, OPEN),
    "two hundred fields": (PLAIN + b"x: y\r\n" * 200 + b"\r\n", 200, OPEN),
    "a head of the longest size": (PLAIN + b"x: " + b"y" * 65_000 + b"\r\n\r\n", 200, OPEN),
    "a fragment": (b"#x HTTP/1.1\r\n" + HOST + b"\r\n", -1, OPEN),
    "a websocket's handshake": (PLAIN + SHAKE + b"\r\n", 200, OPEN),
    "h2c": (
        PLAIN
        + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA\r\n\r\n",
        200,
        OPEN,
    ),
    "an unknown expectation": (PLAIN + b"expect: a-miracle\r\n\r\n", 200, OPEN),
    "a long length": (TYPED + b"content-length: " + b"9" * 18 + b"\r\n\r\n{}", 413, SHUT),
    "chunks": (CHUNKED + b"\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", 200, OPEN),
    "chunks with extensions": (CHUNKED + b"\r\n2;x=y\r\n{}\r\n0;z\r\n\r\n", 200, OPEN),
    "a space before an extension": (CHUNKED + b"\r\n2 ;x\r\n{}\r\n0\r\n\r\n", 200, OPEN),
    "a trailer": (CHUNKED + b"\r\n2\r\n{}\r\n0\r\na: b\r\n\r\n", 200, OPEN),
    "a bad trailer": (CHUNKED + b"\r\n2\r\n{}\r\n0\r\na b\r\n\r\n", 400, SHUT),
    "text": (PLAIN + b"content-type: text/plain\r\n" + TWO_BYTES, 415, OPEN),
    "text in chunks": (
        PLAIN + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        415,
        SHUT,
    ),
    "another content coding": (TYPED + b"content-encoding: br\r\n" + TWO_BYTES, 415, OPEN),
    "no gzip": (TYPED + b"content-encoding: gzip\r\n" + TWO_BYTES, 400, SHUT),
    "two keys": (PLAIN + b"idempotency-key: a\r\nidempotency-key: b\r\n\r\n", 400, OPEN),
    "a key that is not UTF-8": (PLAIN + b"idempotency-key: \xff\r\n\r\n", 400, OPEN),
    "a topic with a bad escape": (b"%zz HTTP/1.1\r\n" + HOST + b"\r\n", -1, OPEN),
}
PACKED = gzip.compress(b"{}")
REQUESTS["gzip"] = (
    b" HTTP/1.1\r\n"
    + HOST
    + JSON
    + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(PACKED)
    + PACKED,
    200,
    OPEN,
)

# complete heads that test the request line; status, closed
LINES: dict[str, tuple[bytes, int, bool]] = {
    "an unknown method": (b"BREW /v0/topics/a HTTP/1.1", 405, OPEN),
    "TRACE": (b"TRACE /v0/topics/a/diff HTTP/1.1", 405, OPEN),
    "CONNECT": (b"CONNECT localhost:80 HTTP/1.1", 404, OPEN),
    "OPTIONS": (b"OPTIONS /v0/topics/a HTTP/1.1", 405, OPEN),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1", 404, OPEN),
    "a path without a slash": (b"GET v0/health HTTP/1.1", 404, OPEN),
    "a slash at the end": (b"GET /v0/health/ HTTP/1.1", 404, OPEN),
    "an escaped path": (b"GET /v0/he%61lth HTTP/1.1", 200, OPEN),
    "a bad escape": (b"GET /v0/topics/%zz HTTP/1.1", 400, OPEN),
    "an escaped NUL": (b"GET /v0/topics/a%00 HTTP/1.1", 400, OPEN),
    "an escaped slash": (b"POST /v0/topics/a%2Fdiff HTTP/1.1", 200, OPEN),
    "HEAD": (b"HEAD /v0/health HTTP/1.1", 200, OPEN),
    "HEAD of a topic": (b"HEAD /v0/topics/a HTTP/1.1", 200, OPEN),
    "HEAD of a stream": (b"HEAD /v0/watch?topic=a HTTP/1.1", 405, OPEN),
    "a query that is not UTF-8": (b"GET /v0/topics?prefix=%ff HTTP/1.1", 400, OPEN),
    "an absolute URL": (b"GET http://localhost:4000/v0/health HTTP/1.1", 200, OPEN),
    "an absolute URL with a query": (
        b"GET http://localhost/v0/topics?prefix=b HTTP/1.1",
        200,
        OPEN,
    ),
    "an absolute URL without a path": (b"GET http://localhost HTTP/1.1", 200, OPEN),
    "an absolute URL without a host": (b"GET http:///v0/health HTTP/1.1", 404, OPEN),
    "another scheme": (b"GET ftp://localhost/v0/health HTTP/1.1", 404, OPEN),
}
Seen = tuple[int, str, bool, tuple[str | None, ...]]

APP = "https://app.example"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
FIELDS = f"X-Request-Id: mine\r\ntraceparent: {PARENT}\r\nOrigin: {APP}\r\n".encode()
# The response fields that result from them, and those of a response to input that is not HTTP.
ECHOED = ("mine", PARENT, APP, "Retry-After, X-Request-Id", "Origin")
MADE = ("made", None, None, None, "Origin")


def echoed(answer: RawResponse) -> tuple[str | None, ...]:
    request_id = answer.headers["x-request-id"]
    cors = ("access-control-allow-origin", "access-control-expose-headers", "vary")
    return (
        "mine" if request_id == "mine" else "made",
        *(answer.headers.get(name) for name in ("traceparent", *cors)),
    )


def is_http(wire: bytes) -> bool:
    end = wire.find(b"\r\n\r\n") + 4
    try:
        parse_head(wire[:end])
    except InvalidRequest:
        return False
    return True


def with_fields(wire: bytes) -> bytes:
    """Return the request with fields that affect every response."""
    return wire.replace(b"\r\n", b"\r\n" + FIELDS, 1)


async def seen(run: Running, wire: bytes, cut: int) -> Seen:
    """Return the status, the error code, whether the connection is closed, and the fields of the
    exchange. Check that every response except a success has the error envelope.
    """
    client = await run.connect()
    await client.send(wire[:cut])
    if cut < len(wire):
        await trio.testing.wait_all_tasks_blocked()
        await client.send(wire[cut:])
    method = wire.split(b" ", 1)[0].decode()
    answer = await client.receive(method=method)
    code = "" if answer.status < 300 or method == "HEAD" else answer.code
    closed = answer.headers.get("connection") == "close"
    if closed:
        assert await client.is_closed()
    else:
        assert (await client.request("GET", "/v0/health")).status == 200
    return answer.status, code, closed, echoed(answer)


async def agreed(wires: dict[str, bytes]) -> dict[str, set[Seen]]:
    """Return the responses to each request, sent in one write and cut at several positions."""
    found: dict[str, set[Seen]] = {name: set() for name in wires}
    settings = Settings(
        inline_bytes=4096,
        max_body_bytes=1024 * 1024,
        allowed_hosts=("*",),
        cors_origins=(APP,),
    )
    async with running(settings=settings, shards=FakeShards(topics={"a": []})) as run:
        for name, plain in wires.items():
            wire = with_fields(plain)
            end = wire.find(b"\r\n\r\n") + 4
            for cut in {len(wire), end, max(end - 3, 1), len(wire) - 1, 9}:
                found[name].add(await seen(run, wire, cut))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("route", [DIFF, REDRIVE], ids=["diff", "redrive"])
async def test_both_planes_respond_equally_to_the_same_bytes(route: bytes) -> None:
    found = await agreed({name: route + rest for name, (rest, _, _) in REQUESTS.items()})
    for name, (_, status, closed) in REQUESTS.items():
        [(was, _, ended, fields)] = found[name]
        expected_status = status if status > 0 else 404  # no such path
        assert (was, ended) == (expected_status, closed), name
        wire = with_fields(route + REQUESTS[name][0])
        assert fields == (ECHOED if is_http(wire) else MADE), name


@pytest.mark.slow
async def test_both_planes_parse_a_request_line_equally() -> None:
    found = await agreed(
        {name: line + b"\r\n" + HOST + b"\r\n" for name, (line, _, _) in LINES.items()}
    )
    for name, (_, status, closed) in LINES.items():
        [(was, _, ended, fields)] = found[name]
        assert (was, ended, fields) == (status, closed, ECHOED), name


async def test_the_http_2_preface_is_refused_with_a_400_and_a_close() -> None:
    async with running() as run:
        client = await run.connect()
        await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        answer = await client.receive()
        assert (answer.status, answer.code, answer.headers["connection"]) == (
            400,
            "invalid_request",
            "close",
        )
        assert "HTTP/1.1" in answer.json()["error"]["message"]
        assert await client.is_closed()


@pytest.mark.parametrize(
    ("line", "key", "status", "code"),
    [
        ("GET /v0/health", "k", 200, ""),
        ("GET /v0/nothing", "nobody", 401, "unauthorized"),
        ("GET /v0/nothing", "k", 404, "not_found"),
        ("GET /v0/watch", "k", 400, "invalid_request"),
        ("GET /v0/topics/a/diff", "k", 405, "method_not_allowed"),
    ],
)
async def test_a_handshake_on_another_path_is_an_ordinary_request(
    line: str, key: str, status: int, code: str
) -> None:
    async with running(keys="k") as run:
        client = await run.connect()
        await client.send(
            f"{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n".encode()
            + SHAKE
            + b"\r\n"
        )
        answer = await client.receive()
        assert (answer.status, answer.code if code else "") == (status, code)
        assert (await client.request("GET", "/v0/health")).status == 200


@pytest.mark.parametrize(
    "line",
    ["GET /v0/health", "GET /v0/topics/a", "DELETE /v0/topics/a", "GET /v0/watch/w", "GET /v0/ws"],
)
@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_on_a_route_without_one_is_ignored(line: str, chunked: bool) -> None:
    """The response does not wait for the body. A chunked body closes the connection."""
    body = b"x" * 30_000
    fields, body = (
        (b"transfer-encoding: chunked", b"7530\r\n" + body + b"\r\n0\r\n\r\n")
        if chunked
        else (b"content-length: 30000", body)
    )
    async with running(shards=FakeShards(topics={"a": []})) as run:
        client = await run.connect()
        await client.send(
            line.encode() + b" HTTP/1.1\r\nhost: localhost\r\n" + fields + b"\r\n\r\n"
        )
        answer = await client.receive()
        assert answer.status in (200, 404, 426)
        await client.send(body[:20_000])
        await client.send(body[20_000:])
        if chunked:
            assert answer.headers["connection"] == "close"
            assert await client.is_closed()
        else:
            assert (await client.request("GET", "/v0/health")).status == 200
