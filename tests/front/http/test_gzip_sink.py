"""Gzip bodies: every bound holds on the wire and after inflation, and a long body leaves turns."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from typing import Any, cast

import pytest
import trio
import trio.testing

from tests.support.fake_shards import FakeShards
from tests.support.front import LANES, RECORD, running
from topics.config import Settings
from topics.errors import PayloadTooLarge
from topics.front.http.body_sink import STEP_BYTES, STEPS_PER_TURN, BodySink, GzipSink


@LANES
async def test_a_gzip_bomb_and_a_cut_gzip_are_refused(fast: bool) -> None:
    settings = Settings(inline_bytes=1024, max_body_bytes=4_000_000)
    async with running(fast=fast, settings=settings) as run:
        for body, code in (
            (gzip.compress(b" " * 4_000_001), "payload_too_large"),
            (gzip.compress(RECORD)[:-3], "invalid_request"),
            (gzip.compress(RECORD) + b"junk", "invalid_request"),
        ):
            client = await run.connect()
            assert (
                await client.ask("POST", "/v0/topics/a", body, content_encoding="gzip")
            ).code == code
        assert run.shards.calls == []


@LANES
async def test_ten_thousand_equal_heartbeats_may_come_under_gzip(fast: bool) -> None:
    beat = {
        "data": {
            "host": "machine-0001",
            "service": "checkout",
            "status": "up",
            "load": [0.1, 0.2, 0.3],
            "note": "x" * 60,
        }
    }
    body = json.dumps({"records": [beat] * 10_000}).encode()
    packed = gzip.compress(body)
    assert len(body) > 200 * len(packed)
    async with running(fast=fast, settings=Settings(max_body_bytes=len(body))) as run:
        client = await run.connect()
        answer = await client.ask("POST", "/v0/topics/a", packed, content_encoding="gzip")
        assert (answer.status, answer.json()["head_seq"]) == (201, 10_000)


ROOM = 100_000


def sink(inline_bytes: int = ROOM) -> BodySink:
    """A sink that takes shared memory for longer bodies than these."""
    return BodySink(cast("Any", FakeShards()), 0, inline_bytes=inline_bytes, max_bytes=ROOM)


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
async def test_a_body_of_several_members_arrives_whole_in_any_pieces(piece_bytes: int) -> None:
    body = random.Random(1).randbytes(500)
    wire = zlib.compress(body, wbits=31) + zlib.compress(b"", wbits=31)
    wire += zlib.compress(bytes(ROOM - len(body)), wbits=31)
    with sink() as plain:
        gzip_sink = GzipSink(plain, ROOM)
        for start in range(0, len(wire), piece_bytes):
            await gzip_sink.write(wire[start : start + piece_bytes])
        gzip_sink.check_end()
        assert plain.finish() == body + bytes(ROOM - len(body))


async def test_the_bound_holds_on_the_wire_also_for_what_inflates_to_nothing() -> None:
    empty = zlib.compress(b"", wbits=31)
    with sink() as plain:
        gzip_sink = GzipSink(plain, 3 * len(empty))
        for _ in range(3):
            await gzip_sink.write(empty)
        with pytest.raises(PayloadTooLarge):
            await gzip_sink.write(empty)


async def test_a_piece_that_inflates_to_much_leaves_turns_to_others(
    nursery: trio.Nursery,
) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    nursery.start_soon(others)
    size = 4 * STEPS_PER_TURN * STEP_BYTES
    shards = cast("Any", FakeShards())
    with BodySink(shards, 0, inline_bytes=size, max_bytes=size) as plain:
        await GzipSink(plain, size).write(zlib.compress(bytes(size), wbits=31))
        assert plain.length == size
    assert turns >= 2, "one between two portions, but for the first and the last"
    nursery.cancel_scope.cancel()


async def test_inflated_bytes_do_not_count_as_transfer_rate() -> None:
    """A body is as fast as its bytes come over the wire, or a few of them would hold much."""
    packed = zlib.compress(bytes(60_000), wbits=31)
    with sink(inline_bytes=1000) as plain:
        gzip_sink = GzipSink(plain, ROOM)
        await gzip_sink.write(packed)
        gzip_sink.check_end()
        assert plain.length == 60_000
        assert plain.turnover_s(trio.current_time()) > 100
