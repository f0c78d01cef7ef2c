"""The HTTP protocol: framing, pipelining, old clients, and requests with false lengths."""

from __future__ import annotations

import json
import threading

import pytest

from tests.support.api import Api, Wire, ok, refused, request
from tests.support.polling import is_readable
from tests.support.server import Server

ONE = b'{"records":[{"data":1}]}'
MIB = 2**20
CALLS = pytest.mark.parametrize(
    ("method", "tail", "body"),
    [("PUT", "", b'{"ttl_ms":12345678}'), ("POST", "", ONE), ("POST", "/diff", b'{"limit":1}')],
    ids=["1.1 put", "2 append", "3 diff"],
)
HOT = pytest.mark.parametrize("method", ["POST", "PUT"])


def chunked(body: bytes, size: int) -> bytes:
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def start(method: str, path: str, *headers: str, version: str = "1.1") -> bytes:
    """Return the head of a JSON request, with no framing except that of ``headers``."""
    return request(method, path, None, "Content-Type: application/json", *headers, version=version)


# --- one connection, many requests


def test_pipelined_requests_of_both_kinds_are_answered_in_order(wire: Wire, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    wire.send(
        request("PUT", path, b'{"ttl_ms":0}')
        + request("POST", path, ONE)
        + request("GET", path)
        + request("POST", f"{path}/diff", b"{}")
        + request("GET", "/v0/health")
        + request("POST", path, ONE)
        + request("GET", "/v0/nope")
        + request("POST", f"{path}/diff", b'{"from_seq":1}')
        + request("DELETE", path)
        + request("POST", f"{path}/diff", b"{}")
    )
    assert ok(wire.answer(), 201)["created"] is True
    assert ok(wire.answer())["seqs"] == [1]
    assert ok(wire.answer())["head_seq"] == 1
    assert len(ok(wire.answer())["records"]) == 1
    assert wire.answer().json()["status"] == "ok"
    assert ok(wire.answer())["seqs"] == [2]
    refused(wire.answer(), 404, "not_found")
    assert [record["$seq"] for record in ok(wire.answer())["records"]] == [2]
    assert ok(wire.answer())["deleted"] is True
    refused(wire.answer(), 404, "topic_not_found")


def test_a_hundred_pipelined_appends_keep_their_order(wire: Wire, api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    wire.send(
        b"".join(
            request("POST", f"/v0/topics/{topic}", b'{"records":[{"data":%d}]}' % number)
            for number in range(100)
        )
    )
    assert [ok(wire.answer())["first_seq"] for _ in range(100)] == list(range(1, 101))
    assert [record["data"] for record in api.read(topic)] == list(range(100))


def test_a_refused_request_leaves_the_connection_usable(wire: Wire, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    for method, target, body, status in [
        ("POST", path, b"{", 400),
        ("POST", f"{path}/diff", b"{}", 404),
        ("PUT", path, b'{"ttl_ms":-1}', 400),
        ("PATCH", path, b"{}", 405),
        ("GET", "/v0/nope", None, 404),
        ("POST", path, b'{"records":[]}', 400),
    ]:
        wire.send(request(method, target, body))
        assert wire.answer().status == status
    wire.send(request("POST", path, ONE))
    ok(wire.answer(), 201)


@CALLS
def test_a_request_may_arrive_in_fragments_of_any_size(
    server: Server, api: Api, topic: str, method: str, tail: str, body: bytes
) -> None:
    ok(api.put(topic), 201)
    raw_request = request(method, f"/v0/topics/{topic}{tail}", body)
    with Wire(server.address) as wire:
        wire.send(*(raw_request[at : at + 1] for at in range(len(raw_request))))
        ok(wire.answer())
        for cut in range(1, len(raw_request), 7):
            wire.send(raw_request[:cut], raw_request[cut:])
            ok(wire.answer())


@pytest.mark.parametrize("size", [1, 7, 1000])
@CALLS
def test_a_body_may_be_chunked(
    wire: Wire, api: Api, topic: str, method: str, tail: str, body: bytes, size: int
) -> None:
    ok(api.append(topic, 0), 201)
    long = body.replace(b'"data":1', b'"data":"%b"' % (b"x" * 5000))
    head = start(method, f"/v0/topics/{topic}{tail}", "Transfer-Encoding: chunked")
    wire.send(head + chunked(long, size))
    assert {"PUT": "config", "POST": "records" if tail else "seqs"}[method] in ok(wire.answer())
    wire.send(request("GET", f"/v0/topics/{topic}"))
    ok(wire.answer())


def test_http_1_0_is_answered_and_closed(server: Server, topic: str) -> None:
    for method, path, body, status in [
        ("POST", f"/v0/topics/{topic}", ONE, 201),
        ("POST", f"/v0/topics/{topic}/diff", b"{}", 200),
        ("GET", f"/v0/topics/{topic}", None, 200),
    ]:
        with Wire(server.address) as wire:
            wire.send(request(method, path, body, version="1.0"))
            answer = wire.answer()
            ok(answer, status)
            assert "transfer-encoding" not in answer.headers
            wire.assert_closed()


def test_a_request_with_connection_close_closes_the_connection(server: Server, topic: str) -> None:
    for method, path, body, status in [
        ("POST", f"/v0/topics/{topic}", ONE, 201),
        ("POST", f"/v0/topics/{topic}/diff", b"{}", 200),
        ("GET", f"/v0/topics/{topic}", None, 200),
        ("GET", "/v0/nope", None, 404),
    ]:
        with Wire(server.address) as wire:
            wire.send(request(method, path, body, "Connection: close"))
            answer = wire.answer()
            assert answer.status == status
            assert answer.headers["connection"].lower() == "close"
            wire.assert_closed()


@CALLS
def test_expect_100_continue_gets_an_interim_response(
    wire: Wire, api: Api, topic: str, method: str, tail: str, body: bytes
) -> None:
    ok(api.append(topic, 0), 201)
    fields = ("Expect: 100-continue", f"Content-Length: {len(body)}")
    wire.send(start(method, f"/v0/topics/{topic}{tail}", *fields))
    assert wire.head()[0] == 100
    wire.send(body)
    ok(wire.answer())


@pytest.mark.parametrize(
    "path", ["/v0/health", "/healthz", "/v0/ready", "/readyz"], ids=lambda path: f"8 {path}"
)
def test_a_head_request_to_a_probe_gets_no_body(wire: Wire, path: str) -> None:
    wire.send(request("HEAD", path), request("GET", path))
    assert wire.answer("HEAD").status == 200
    body = wire.answer().json()
    assert body["status"] in ("ok", "ready")


# --- false lengths


def test_a_content_length_that_is_too_small_gets_a_response(
    server: Server, api: Api, topic: str
) -> None:
    for path in (f"/v0/topics/{topic}", f"/v0/topics/{topic}/diff"):
        with Wire(server.address) as wire:
            wire.send(start("POST", path, "Content-Length: 5") + ONE)
            refused(wire.answer(), 400, "invalid_request")
            wire.half_close()
            wire.rest()
    refused(api.get(topic), 404, "topic_not_found")


def test_a_request_with_an_incomplete_body_is_never_executed(
    server: Server, api: Api, topic: str
) -> None:
    ok(api.put(topic), 201)
    for method, path in (("POST", f"/v0/topics/{topic}"), ("PUT", f"/v0/topics/{topic}")):
        with Wire(server.address) as wire:
            wire.send(start(method, path, f"Content-Length: {len(ONE) + 10}") + ONE)
            wire.half_close()
            assert b" 200 " not in wire.rest().split(b"\r\n")[0]
    with Wire(server.address) as wire:
        wire.send(
            start("POST", f"/v0/topics/{topic}", "Transfer-Encoding: chunked")
            + b"%x\r\n%s\r\n" % (len(ONE), ONE)
        )
        wire.half_close()
        assert b" 200 " not in wire.rest().split(b"\r\n")[0]
    assert api.state(topic)["head_seq"] == 0


LIES = [
    ("not a number", ["Content-Length: abc"]),
    ("negative", ["Content-Length: -1"]),
    ("signed", ["Content-Length: +24"]),
    ("hexadecimal", ["Content-Length: 0x18"]),
    ("empty", ["Content-Length: "]),
    ("two values", ["Content-Length: 24, 25"]),
    ("two headers", ["Content-Length: 24", "Content-Length: 25"]),
    ("length and chunked", ["Content-Length: 24", "Transfer-Encoding: chunked"]),
    ("chunked and length", ["Transfer-Encoding: chunked", "Content-Length: 24"]),
    ("unknown coding", ["Transfer-Encoding: nonsense"]),
    ("chunked is not the last", ["Transfer-Encoding: chunked, gzip"]),
    ("hidden chunked", ["Transfer-Encoding: xchunked"]),
]


@HOT
@pytest.mark.parametrize("headers", [row[1] for row in LIES], ids=[row[0] for row in LIES])
def test_invalid_framing_is_refused_and_closes_the_connection(
    server: Server, api: Api, topic: str, headers: list[str], method: str
) -> None:
    smuggled = request("PUT", f"/v0/topics/{topic}.smuggled", b"{}")
    assert len(ONE) == 24
    with Wire(server.address) as wire:
        wire.send(start(method, f"/v0/topics/{topic}", *headers) + ONE + smuggled)
        answer = wire.answer()
        assert answer.status in (400, 501), str(answer)
        if answer.status == 400:
            refused(answer, 400, "invalid_request")
        wire.assert_closed()
    refused(api.get(topic), 404, "topic_not_found")
    refused(api.get(f"{topic}.smuggled"), 404, "topic_not_found")


@HOT
def test_a_content_length_with_chunks_cannot_smuggle_a_request(
    server: Server, api: Api, topic: str, method: str
) -> None:
    smuggled = request("PUT", f"/v0/topics/{topic}.smuggled", b"{}")
    with Wire(server.address) as wire:
        wire.send(
            start(method, f"/v0/topics/{topic}", "Content-Length: 5", "Transfer-Encoding: chunked")
            + b"0\r\n\r\n"
            + smuggled
        )
        refused(wire.answer(), 400, "invalid_request")
        wire.assert_closed()
    refused(api.get(topic), 404, "topic_not_found")
    refused(api.get(f"{topic}.smuggled"), 404, "topic_not_found")


BAD_CHUNKS = [
    b"zz\r\n",
    b"-1\r\n",
    b"5\r\nabcdefgh\r\n",
    b"\r\n",
    b"1" * 40 + b"\r\n",
    b"0x5\r\nabcde\r\n",
]


@pytest.mark.parametrize("chunk", BAD_CHUNKS, ids=repr)
@HOT
def test_an_invalid_chunk_is_refused_and_closes_the_connection(
    server: Server, api: Api, topic: str, chunk: bytes, method: str
) -> None:
    with Wire(server.address) as wire:
        wire.send(start(method, f"/v0/topics/{topic}", "Transfer-Encoding: chunked") + chunk)
        refused(wire.answer(), 400, "invalid_request")
        wire.assert_closed()
    refused(api.get(topic), 404, "topic_not_found")


GARBAGE = [
    *(b"\x00\x01\x02\x03\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /v0/health HTTP/1.1\r\nHost topics\r\n\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
def test_invalid_http_gets_400_or_a_closed_connection(
    server: Server, api: Api, garbage: bytes
) -> None:
    with Wire(server.address) as wire:
        wire.send(garbage)
        wire.half_close()
        rest = wire.rest()
        assert rest == b"" or rest.split(b" ")[1] in (b"400", b"505"), rest
    ok(api.listing(page_size=1))


def test_a_head_that_never_ends_is_refused(server: Server, api: Api) -> None:
    with Wire(server.address) as wire:
        try:
            wire.send(b"GET /v0/health HTTP/1.1\r\nX: " + b"a" * (4 * MIB))
        except (ConnectionResetError, BrokenPipeError):
            pass  # the server refused the head before it read all of it
        else:
            wire.half_close()
        rest = wire.rest()
        assert b" 200 " not in rest.split(b"\r\n")[0]
    ok(api.listing(page_size=1))


# --- large bodies


def send_until_answered(wire: Wire, *parts: bytes) -> None:
    """Send, but stop as soon as the server responds."""
    for part in parts:
        if is_readable(wire.socket.fileno(), 0):
            return
        try:
            wire.send(part)
        except (ConnectionResetError, BrokenPipeError):
            return


@pytest.mark.parametrize("route", ["append", "put", "diff"])
def test_a_length_above_64_mib_gets_413_before_the_body_is_sent(
    server: Server, topic: str, route: str
) -> None:
    method = "PUT" if route == "put" else "POST"
    path = f"/v0/topics/{topic}" + ("/diff" if route == "diff" else "")
    with Wire(server.address) as wire:
        wire.send(start(method, path, f"Content-Length: {64 * MIB + 1}"))
        refused(wire.answer(), 413, "payload_too_large")


@pytest.mark.slow
def test_chunks_of_more_than_64_mib_get_413(server: Server, api: Api, topic: str) -> None:
    chunk = b"%x\r\n%s\r\n" % (MIB, b" " * MIB)
    with Wire(server.address) as wire:
        sender = threading.Thread(
            target=send_until_answered,
            args=(
                wire,
                start("POST", f"/v0/topics/{topic}", "Transfer-Encoding: chunked"),
                *[chunk] * 66,
            ),
        )
        sender.start()
        try:
            refused(wire.answer(), 413, "payload_too_large")
        finally:
            sender.join()
    refused(api.get(topic), 404, "topic_not_found")


@pytest.mark.slow
def test_a_body_of_64_mib_is_accepted(server: Server, topic: str) -> None:
    body = bytearray(b'{"records":[')
    body += b",".join([b'{"data":"' + b"x" * (MIB - 64) + b'"}'] * 63) + b"]}"
    body += b" " * (64 * MIB - len(body))
    with Api(server.address, timeout_s=60) as api:
        assert ok(api.call("POST", f"/v0/topics/{topic}", bytes(body)), 201)["count"] == 63
        assert (
            len(json.dumps(ok(api.diff(topic, from_seq=62))["records"][0]["data"])) == MIB - 64 + 2
        )
        ok(api.delete(topic))
