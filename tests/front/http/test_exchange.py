"""Exchanges: request ids and traceparents of responses, and the access log line of each request."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from tests.support.fake_shards import FakeShards
from tests.support.front import HANDSHAKE, RECORD, Running, running
from tests.support.raw_client import RawClient, request
from topics.config import Settings
from topics.formats.api.route_names import ROUTE_NAMES, STATUS_NAMES
from topics.formats.setting_values import Network, Networks
from topics.front.http.exchange import peer_of
from topics.front.http.request_counts import RequestIds

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Lines = list[Mapping[str, Any]]


@asynccontextmanager
async def logged(
    level: Any = "all", *, trusted_proxies: tuple[Network, ...] = (), **how: Any
) -> AsyncIterator[tuple[Running, Lines]]:
    """A server and the lines of its access log."""
    lines: Lines = []
    settings = Settings(
        access_log=level, max_body_bytes=1 << 20, drain_ms=2000, trusted_proxies=trusted_proxies
    )
    async with running(settings=settings, write_request=lines.append, **how) as run:
        yield run, lines


# Fields of all responses

REQUESTS = [
    ("POST", "/v0/topics/a", RECORD),
    ("POST", "/v0/topics/a/diff", b"{}"),
    ("PUT", "/v0/topics/a", b"{}"),
    ("GET", "/v0/topics", b""),
    ("HEAD", "/v0/health", b""),
    ("GET", "/v0/nothing", b""),
    ("BREW", "/v0/topics/a", b""),
    ("POST", "/v0/topics/a", b"{"),
    ("GET", "/v0/ws", b""),
    ("POST", "/v0/topics/bug", RECORD),
]


async def test_every_response_has_the_ids_of_the_client_or_a_generated_one() -> None:
    async with running() as run:
        client = await run.connect()
        made = []
        for method, path, body in REQUESTS:
            answer = await client.request(
                method, path, body, x_request_id="mine", traceparent=PARENT
            )
            assert (answer.headers["x-request-id"], answer.headers["traceparent"]) == (
                "mine",
                PARENT,
            )
            answer = await client.request(method, path, body, x_request_id="a b", traceparent="x")
            made.append(answer.headers["x-request-id"])
            assert "traceparent" not in answer.headers
            made.append((await client.request(method, path, body)).headers["x-request-id"])
        assert len(set(made)) == len(made)
        prefixes = {one.partition("-")[0] for one in made}
        assert len(prefixes) == 1


async def test_invalid_http_does_not_get_the_ids_of_the_previous_request() -> None:
    async with running() as run:
        for bad in (b"BAD\r\n\r\n", b"GET / HT\0"):
            client = await run.connect()
            assert (await client.request("GET", "/v0/health", x_request_id="mine")).status == 200
            await client.send(bad)
            answer = await client.receive()
            assert answer.status == 400
            assert answer.headers["x-request-id"] != "mine"


async def test_heads_that_differ_only_in_trace_fields_share_a_cache_entry() -> None:
    async with running() as run:
        client = await run.connect()
        for number in range(5):
            fields = {"x_request_id": f"id-{number}", "traceparent": PARENT[:-1] + str(number)}
            for fields_of_one in (fields, {"x_request_id": f"id-{number}"}, {}):
                answer = await client.request("POST", "/v0/topics/a", RECORD, **fields_of_one)
                if fields_of_one:
                    assert answer.headers["x-request-id"] == f"id-{number}"
                assert answer.headers.get("traceparent") == fields_of_one.get("traceparent")
        assert len(run.server.parts.heads.cache) == 1


async def test_pipelined_requests_keep_their_own_ids() -> None:
    async with running() as run:
        client = await run.connect()
        paths = ["/v0/health", "/v0/topics", "/v0/nothing", "/v0/health"]
        wires = [request("GET", path, b"", x_request_id=f"n{n}") for n, path in enumerate(paths)]
        await client.send(b"".join([*wires, request("GET", "/v0/health", b"")]))
        found = [(await client.receive()).headers["x-request-id"] for _ in range(5)]
        assert found[:4] == ["n0", "n1", "n2", "n3"]
        assert found[4] not in found[:4]


def test_ids_of_two_processes_and_of_two_requests_differ() -> None:
    one, two = RequestIds(), RequestIds()
    assert one.line() != two.line()
    first, second = one.line(), one.line()
    assert first.startswith(b"x-request-id: " + one.prefix)
    assert first != second
    assert len(first) < 64


def test_a_peer_is_an_address_and_a_port() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_of(ours) == "unix"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            address = f"127.0.0.1:{client.getsockname()[1]}"
            ours, _ = listener.accept()
        with ours:
            assert peer_of(ours) == address
    with socket.socket() as unconnected:
        assert peer_of(unconnected) == ""


# The outcome of each request


def counted(run: Running) -> dict[tuple[str, str], int]:
    """Return the number of requests by route and status."""
    numbers = iter(run.server.request_counts.values()["topics_http_requests_total"])
    every = [(name, status) for name in ROUTE_NAMES for status in STATUS_NAMES]
    return {names: count for names, count in zip(every, numbers, strict=True) if count}


async def test_each_request_is_counted_and_logged_with_its_bytes_on_the_wire() -> None:
    async with logged() as (run, lines):
        client = await run.connect()
        sent = 0
        for method, path, body in REQUESTS:
            wire = request(method, path, body, x_request_id="mine", traceparent=PARENT)
            sent += len(wire)
            await client.send(wire)
            answer = await client.receive(method=method)
            line = lines[-1]
            assert (line["request_id"], line["trace"], line["method"]) == ("mine", PARENT, method)
            assert (line["status"], line["bytes_in"]) == (answer.status, len(wire))
            assert line["bytes_out"] > 100 + len(answer.body)
            assert 0 <= line["ms"] < 10_000
            host, port = client.stream.socket.getsockname()
            assert line["peer"] == f"{host}:{port}"
        await client.send(b"BAD\r\n\r\n")
        assert (await client.receive()).status == 400
        assert [(line.get("route"), line.get("topic"), line["status"]) for line in lines] == [
            ("append", "a", 201),
            ("diff", "a", 200),
            ("topic.put", "a", 200),
            ("topic.list", None, 200),
            ("health", None, 200),
            (None, None, 404),
            (None, None, 405),
            ("append", "a", 400),
            ("ws", None, 426),
            ("append", "bug", 500),
            (None, None, 400),
        ]
        assert counted(run) == Counter(
            (line.get("route", "other"), str(line["status"])) for line in lines
        )
        received = run.server.request_counts.values()["topics_http_received_bytes_total"]
        assert sum(received) == sent + len(b"BAD\r\n\r\n")


async def test_an_aborted_request_and_a_closed_stream_are_counted() -> None:
    async with running(keys="k") as run:
        client = await run.connect()
        auth = {"authorization": "Bearer k"}
        await client.send(request("POST", "/v0/topics/a", b"x" * 1000, **auth)[:-500])
        await client.stream.aclose()
        client = await run.connect()
        await client.send(request("GET", "/v0/ws", b"", **HANDSHAKE, **auth))
        assert (await client.receive()).status == 101
        await client.stream.aclose()
        client = await run.connect()
        assert (await client.request("GET", "/v0/topics/a")).status == 401
        await run.until(lambda: len(counted(run)) == 3)
        assert counted(run) == {("append", "other"): 1, ("ws", "101"): 1, ("topic.get", "401"): 1}


# The log


async def test_bytes_of_pipelined_and_chunked_requests_are_counted_separately() -> None:
    chunked = (
        b"POST /v0/topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n18\r\n" + RECORD + b"\r\n0\r\n\r\n"
    )
    short = request("GET", "/v0/health", b"")
    async with logged() as (run, lines):
        client = await run.connect()
        await client.send(chunked + short + chunked)
        for _ in range(3):
            assert (await client.receive()).status < 300
        assert [line["bytes_in"] for line in lines] == [len(chunked), len(short), len(chunked)]


async def test_no_line_contains_a_token_a_query_or_a_session_id() -> None:
    async with logged(keys="hunter2", shards=FakeShards(topics={"a": []})) as (run, lines):
        client = await run.connect()
        auth = {"authorization": "Bearer hunter2"}
        await client.request("GET", "/v0/topics?prefix=secret-prefix", b"", **auth)
        await client.request("GET", "/v0/topics?prefix=secret-prefix")
        await client.request("GET", "/v0/topics/a/work?node=n&token=hunter3")
        await client.request("GET", "/v0/watch/wid_secret", b"", **auth)
        await client.request("GET", "/v0/watch/wid_secret?token=hunter3")
        await client.request("GET", "/v0/no?token=hunter2")
        await client.request("PUT", "/v0/topics/a%3Ftoken=hunter2", b"{}", **auth)
        assert len(lines) == 7
        text = repr(lines)
        for secret in ("hunter", "secret", "wid_", "?"):
            assert secret not in text
        assert "key" in lines[0]
        assert "key" not in lines[1]


async def test_the_line_of_a_refusal_contains_a_valid_key() -> None:
    async with logged("audit", keys="k:read:mine") as (run, lines):
        client = await run.connect()
        auth = {"authorization": "Bearer k"}
        assert (await client.request("GET", "/v0/topics/mine", b"", **auth)).status == 404
        assert (await client.request("GET", "/v0/topics/other", b"", **auth)).status == 403
        assert (await client.request("POST", "/v0/topics/mine", RECORD, **auth)).status == 403
        assert (await client.request("GET", "/v0/topics/other")).status == 401
        assert [(line["status"], line["route"], line["topic"]) for line in lines] == [
            (403, "topic.get", "other"),
            (403, "append", "mine"),
            (401, "topic.get", "other"),
        ]
        assert ["key" in line for line in lines] == [True, True, False]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_audit_log_omits_reads_and_appends_that_create_no_topic(
    method: str,
) -> None:
    async with logged("audit") as (run, lines):
        client = await run.connect()
        assert (await client.request("POST", "/v0/topics/a", RECORD)).status == 201
        await client.request(method, "/v0/topics/a", RECORD if method == "POST" else b"")
        await client.request("PUT", "/v0/topics/a", b"{}")
        logged_statuses = [(line["route"], line["status"]) for line in lines]
        assert logged_statuses == [("append", 201), ("topic.put", 200)]


async def wait_for_lines(run: Running, lines: Lines, count: int = 1) -> None:
    await run.until(lambda: len(lines) >= count)


async def test_a_disconnect_within_a_body_is_logged_without_a_status() -> None:
    async with logged() as (run, lines):
        client = await run.connect()
        wire = request("POST", "/v0/topics/a", b"x" * 1000)[:-500]
        await client.send(wire)
        await client.stream.aclose()
        await wait_for_lines(run, lines)
        [line] = lines
        assert line["cut"] is True
        assert (line["route"], line["bytes_in"], line["bytes_out"]) == ("append", len(wire), 0)
        assert "status" not in line
        assert line["request_id"]


async def test_a_client_without_a_complete_head_is_not_logged() -> None:
    async with logged() as (run, lines):
        for first_bytes in (b"", b"GET / HT"):
            client = await run.connect()
            await client.send(first_bytes)
            await client.stream.aclose()
        other = await run.connect()
        assert (await other.request("GET", "/v0/health")).status == 200
        await run.until(lambda: len(run.server.connections) == 1)
        assert [line["route"] for line in lines] == ["health"]


async def test_a_websocket_is_logged_when_it_ends() -> None:
    async with logged() as (run, lines):
        client = await run.connect()
        wire = request("GET", "/v0/ws", b"", **HANDSHAKE)
        await client.send(wire)
        assert (await client.receive(method="HEAD")).status == 101
        await client.send(b"\x89\x80\0\0\0\0")  # a ping
        assert await client.stream.receive_some() == b"\x8a\x00"
        assert lines == []
        await client.stream.aclose()
        await wait_for_lines(run, lines)
        [line] = lines
        assert (line["status"], line["route"], line["bytes_in"]) == (101, "ws", len(wire) + 6)
        assert line["bytes_out"] > 150


async def test_a_preflight_is_logged() -> None:
    lines: Lines = []
    settings = Settings(access_log="all", cors_origins=("https://a",))
    async with running(settings=settings, write_request=lines.append) as run:
        client = await run.connect()
        fields = {"origin": "https://a", "access_control_request_method": "PUT"}
        await client.send(request("OPTIONS", "/v0/topics/a", b"", **fields))
        assert (await client.receive(method="HEAD")).status == 204
        assert [(line["method"], line["status"]) for line in lines] == [("OPTIONS", 204)]


async def test_for_a_trusted_proxy_each_line_has_the_client_of_its_request() -> None:
    async with logged(trusted_proxies=Networks().parse("127.0.0.1")) as (run, lines):
        client = await run.connect()
        seen = []
        for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "nonsense", ""):
            fields = {"x_forwarded_for": address} if address else {}
            await client.request("POST", "/v0/topics/a", RECORD, **fields)
            await client.request("GET", "/v0/nothing", b"", **fields)
            seen += [line["peer"] for line in lines]
            lines.clear()
        own = seen[-1]
        assert own.startswith("127.0.0.1:")
        assert seen[:6] == ["192.0.2.1"] * 2 + ["192.0.2.2"] * 2 + ["192.0.2.1"] * 2
        assert seen[6:] == [own] * 4
        # All clients share one cached decision, because it contains no address.
        assert len(run.server.parts.heads.cache) == 1


@pytest.mark.parametrize("proxies", ["", "10.0.0.0/8"])
async def test_forwarded_addresses_of_untrusted_clients_are_ignored(proxies: str) -> None:
    networks = Networks().parse(proxies) if proxies else ()
    async with logged(trusted_proxies=networks) as (run, lines):
        client = await run.connect()
        await client.request("POST", "/v0/topics/a", RECORD, x_forwarded_for="192.0.2.1")
        assert lines[0]["peer"].startswith("127.0.0.1:")


async def test_the_line_of_a_stream_has_the_forwarded_client_address() -> None:
    async with logged(trusted_proxies=Networks().parse("127.0.0.0/8")) as (run, lines):
        client = await run.connect()
        fields = HANDSHAKE | {"x_forwarded_for": "192.0.2.1"}
        await client.send(request("GET", "/v0/ws", b"", **fields))
        assert (await client.receive(method="HEAD")).status == 101
        await client.stream.aclose()
        await wait_for_lines(run, lines)
        assert [line["peer"] for line in lines] == ["192.0.2.1"]


async def test_without_the_setting_no_line_is_written() -> None:
    async with logged("off") as (run, lines):
        client: RawClient = await run.connect()
        await client.request("PUT", "/v0/topics/a", b"{}")
        await trio.testing.wait_all_tasks_blocked()
        assert lines == []
