"""Request bodies: sizes, codings, limits, 100-continue, clients that disconnect."""

from __future__ import annotations

import gzip
import json
import random
import socket

import pytest

from tests.support.fake_shards import FakeShards
from tests.support.front import APPEND, RECORD, running
from tests.support.raw_client import request
from topics.config import Settings
from topics.errors import Throttled


@pytest.mark.slow
async def test_an_expected_100_continue_is_sent() -> None:
    async with running() as run:
        client = await run.connect()
        head, _, body = request("POST", "/v0/topics/a", RECORD, expect="100-continue").partition(
            b"\r\n\r\n"
        )
        for status in (201, 200):
            await client.send(head + b"\r\n\r\n")
            await run.until(lambda: not any(c.idle for c in run.server.connections))
            interim = await client.stream.receive_some(4096)
            assert interim.startswith(b"HTTP/1.1 100")
            await client.send(body)
            assert (await client.receive()).status == status


@pytest.mark.slow
async def test_a_refused_request_gets_no_100_continue() -> None:
    async with running(keys="k") as run:
        client = await run.connect()
        await client.send(
            request("POST", "/v0/topics/a", RECORD, expect="100-continue").partition(b"{")[0]
        )
        answer = await client.receive()
        assert (answer.status, client.continued) == (401, 0)
        assert answer.headers["connection"] == "close"
        assert await client.is_closed()


@pytest.mark.slow
async def test_a_client_that_continues_to_send_can_read_the_refusal() -> None:
    settings = Settings(inline_bytes=4096, max_body_bytes=100_000)
    async with running(settings=settings) as run:
        client = await run.connect()
        await client.send(
            b"POST /v0/topics/a HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 9999999\r\n\r\n"
        )
        for _ in range(20):
            await client.send(b" " * 50_000)
        answer = await client.receive()
        assert (answer.status, answer.code) == (413, "payload_too_large")
        assert await client.is_closed()


@pytest.mark.slow
async def test_a_block_is_freed_if_the_client_disconnects_within_a_body() -> None:
    async with running() as run:
        for ending in ("fin", "reset"):
            client = await run.connect()
            await client.send(request("POST", "/v0/topics/a", RECORD * 1000)[:9000])
            await run.until(lambda: run.shards.blocks_out == 1)
            if ending == "reset":
                client.stream.socket.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
                )
            client.stream.socket.close()
            await run.until(lambda: run.shards.blocks_out == 0)
        assert run.shards.calls == []


@pytest.mark.slow
async def test_a_body_whose_block_is_needed_gets_429() -> None:
    async with running() as run:
        client = await run.connect()
        await client.send(request("POST", "/v0/topics/a", RECORD * 1000)[:9000])
        await run.until(lambda: run.shards.blocks_out == 1)
        run.shards.fillers[0].abort(Throttled("no room", retry_after_ms=1000))
        answer = await client.receive()
        assert (answer.status, answer.code) == (429, "throttled")
        assert answer.headers["connection"] == "close"
        assert run.shards.blocks_out == 0
        assert await client.is_closed()


@pytest.mark.slow
@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 70_000, 120_000])
async def test_bytes_after_a_body_of_any_length_are_the_next_request(
    length: int,
) -> None:
    async with running() as run:
        client = await run.connect()
        body = b'{"records":[{"data":1}]}'
        body = b"" if length < len(body) else body + b" " * (length - len(body))
        put = request("PUT", "/v0/topics/a", body)
        post = request("POST", "/v0/topics/a", body or RECORD)
        await client.send(put + APPEND + post + APPEND)
        assert [(await client.receive()).status for _ in range(4)] == [201, 200, 200, 200]
        lengths = [len(raw) for _, _, raw in run.shards.calls]
        assert lengths == [len(body), len(RECORD), len(body or RECORD), len(RECORD)]


@pytest.mark.parametrize("size", [100, 4096, 4097, 300_000])
@pytest.mark.parametrize("how", ["plain", "chunked", "gzip", "gzip members", "chunked gzip"])
async def test_bodies_of_any_size_and_coding_arrive_completely(size: int, how: str) -> None:
    noise = random.Random(size).randbytes(size).hex()[:size]
    wire = body = json.dumps({"records": [{"data": noise}]}).encode()
    fields = {"content_encoding": "gzip"} if "gzip" in how else {}
    if "gzip" in how:
        half = len(body) // 2 if "members" in how else 0
        wire = gzip.compress(body[:half]) + gzip.compress(body[half:])
    if "chunked" in how:
        fields |= {"transfer_encoding": "chunked", "content_length": ""}
        chunks = [wire[at : at + 7001] for at in range(0, len(wire), 7001)]
        wire = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        wire += b"0\r\ntrailer: yes\r\n\r\n"
    async with running() as run:
        client = await run.connect()
        assert (await client.request("POST", "/v0/topics/a", wire, **fields)).status == 201
        assert run.shards.topics["a"] == [{"data": noise}]
        assert (await client.request("GET", "/v0/health")).status == 200


async def test_the_limit_applies_before_and_after_decompression() -> None:
    settings = Settings(inline_bytes=1024, max_body_bytes=100_000)
    async with running(settings=settings) as run:
        exact = b'{"records":[{"data":"' + b"x" * (100_000 - 25) + b'"}]}'
        assert len(exact) == 100_000
        client = await run.connect()
        assert (await client.request("POST", "/v0/topics/a", exact)).status == 201
        for body, headers in (
            (exact + b" ", {}),
            (gzip.compress(exact + b" "), {"content_encoding": "gzip"}),
            (
                b"186a1\r\n" + exact + b" \r\n0\r\n\r\n",
                {"content_length": "", "transfer_encoding": "chunked"},
            ),
        ):
            client = await run.connect()
            answer = await client.request("POST", "/v0/topics/a", body, **headers)
            assert (answer.status, answer.code) == (413, "payload_too_large")
            assert answer.headers["connection"] == "close"
            assert await client.is_closed()
        assert len(run.shards.calls) == 1


async def test_without_shared_memory_a_large_body_is_throttled() -> None:
    async with running(shards=FakeShards(full=True)) as run:
        client = await run.connect()
        answer = await client.request("POST", "/v0/topics/a", b'{"records":[]}' + b" " * 5000)
        assert (answer.status, answer.code) == (429, "throttled")
        assert answer.headers["retry-after"] == "1"
