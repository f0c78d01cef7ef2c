"""Body sinks: the memory that a body holds while it arrives, with a real arena; gzip, too."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import pytest
import trio
import trio.testing

from tests.actors.shard_client.test_reservations import Front
from tests.support.fake_shards import FakeShards
from tests.support.front import RECORD, running
from topics.actors.link.arena import ArenaBlock
from topics.config import Settings
from topics.errors import NotReady, PayloadTooLarge, Throttled
from topics.front.http import body_sink
from topics.front.http.body_sink import STEP_BYTES, STEPS_PER_ITERATION, BodySink, GzipSink

INLINE = 1000
FIRST_BYTES = 500
ARENA = 16 * 4096


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    for name in ("FIRST_BYTES", "FIRST_INLINE_BYTES"):
        monkeypatch.setattr(body_sink, name, FIRST_BYTES)
    front = Front()
    yield front
    front.pair.close()


def no_ledger(_sink: BodySink, _length: int) -> None:
    """Count nothing."""


def sink_of(front: Front, max_bytes: int = ARENA) -> BodySink:
    return BodySink(front.shards, 0, inline_bytes=INLINE, max_bytes=max_bytes, on_size=no_ledger)


def used(front: Front) -> int:
    return front.pair.front.link.writer.used_bytes


@pytest.mark.parametrize("length", [0, 1, INLINE - 1, INLINE])
async def test_a_short_body_takes_no_shared_memory(front: Front, length: int) -> None:
    body = random.Random(length).randbytes(length)
    with sink_of(front) as sink:
        for byte in body:
            await sink.write(bytes([byte]))
        assert used(front) == 0
        assert sink.finish() == body


@pytest.mark.parametrize("declared", [INLINE + 1, ARENA])
async def test_a_body_holds_memory_in_proportion_to_its_arrived_bytes(
    front: Front, declared: int
) -> None:
    body = random.Random(declared).randbytes(declared)
    with sink_of(front, declared) as sink:
        while sink.length < declared:
            buffer = await sink.writable(100)
            buffer[:] = body[sink.length : sink.length + len(buffer)]
            sink.advance(len(buffer))
            assert len(sink._view) <= max(2 * sink.length, FIRST_BYTES)
            assert used(front) <= (0 if sink.length <= INLINE else 2 * sink.length + 4096)
        block = sink.finish()
    assert isinstance(block, ArenaBlock)
    assert bytes(block.view) == body
    block.free()


async def test_a_body_of_unknown_length_is_refused_above_its_bound(front: Front) -> None:
    with sink_of(front, 5000) as sink:
        await sink.write(bytes(5000))
        with pytest.raises(PayloadTooLarge):
            await sink.write(b"x")
    assert used(front) == 0


async def test_a_stalled_body_fails_and_frees_memory_for_others(
    front: Front,
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
) -> None:
    stalled = trio.Event()
    failures: list[Exception] = []

    async def stall() -> None:
        try:
            with sink_of(front) as sink:
                await sink.write(bytes(40_000))
                stalled.set()
                await trio.sleep_forever()
        except Throttled as failure:
            failures.append(failure)

    nursery.start_soon(stall)
    await stalled.wait()
    with pytest.raises(Throttled), sink_of(front) as sink:
        await sink.write(bytes(40_000))
    await trio.sleep(20)
    assert failures == []
    with sink_of(front) as sink:
        await sink.write(bytes(40_000))
        assert len(failures) == 1
    assert used(front) == 0


async def test_a_body_waits_briefly_for_memory_that_others_release(
    front: Front, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    other = front.pair.front.link.reserve(ARENA - 16_384)
    assert other is not None
    nursery.start_soon(after, 0.5, other)
    with sink_of(front) as sink:
        await sink.write(bytes(16_000))
        await sink.write(bytes(16_000))
        assert sink.length == 32_000
    blocked = front.pair.front.link.reserve(ARENA - 16_384)
    assert blocked is not None
    with sink_of(front) as sink:
        await sink.write(bytes(16_000))
        with pytest.raises(Throttled):
            await sink.write(bytes(16_000))
    blocked.free()


async def after(seconds: float, block: ArenaBlock) -> None:
    await trio.sleep(seconds)
    block.free()


async def test_a_body_fails_and_frees_its_block_if_its_shard_crashes(front: Front) -> None:
    await fail_when_the_shard_closes(front, trio.sleep_forever)
    assert not front.pair.front.link.writer.is_used(1)


async def test_a_complete_body_is_not_sent_after_its_shard_crashed(front: Front) -> None:
    await fail_when_the_shard_closes(front, None)


async def fail_when_the_shard_closes(
    front: Front,
    rest: Callable[[], Awaitable[None]] | None,
) -> None:
    async def receive_body() -> None:
        with sink_of(front) as sink:
            await sink.write(bytes(5000))
            front.pair.restart_shard()
            front.run_iteration()
            if rest is not None:
                await rest()
            sink.finish()

    with pytest.raises(NotReady):
        await receive_body()


# Gzip: every bound applies before and after decompression, and long bodies yield to other tasks


async def test_a_gzip_bomb_and_a_truncated_gzip_are_refused() -> None:
    settings = Settings(inline_bytes=1024, max_body_bytes=4_000_000)
    async with running(settings=settings) as run:
        for body, code in (
            (gzip.compress(b" " * 4_000_001), "payload_too_large"),
            (gzip.compress(RECORD)[:-3], "invalid_request"),
            (gzip.compress(RECORD) + b"junk", "invalid_request"),
        ):
            client = await run.connect()
            assert (
                await client.request("POST", "/v0/topics/a", body, content_encoding="gzip")
            ).code == code
        assert run.shards.calls == []


async def test_a_highly_compressible_batch_is_accepted() -> None:
    body = json.dumps({"records": [{"data": {"host": "a", "note": "x" * 150}}] * 10_000}).encode()
    packed = gzip.compress(body)
    assert len(body) > 200 * len(packed)
    async with running(settings=Settings(max_body_bytes=len(body))) as run:
        client = await run.connect()
        answer = await client.request("POST", "/v0/topics/a", packed, content_encoding="gzip")
        assert (answer.status, answer.json()["head_seq"]) == (201, 10_000)


BOUND = 100_000


def gunzipped(inline_bytes: int = BOUND) -> BodySink:
    """Return a sink that needs no shared memory for the bodies of these tests."""
    return BodySink(
        cast("Any", FakeShards()), 0, inline_bytes=inline_bytes, max_bytes=BOUND, on_size=no_ledger
    )


@pytest.mark.parametrize("fragment_bytes", [1, 7, 1 << 20])
async def test_a_body_of_several_members_arrives_completely_in_any_fragments(
    fragment_bytes: int,
) -> None:
    body = random.Random(1).randbytes(500)
    wire = zlib.compress(body, wbits=31) + zlib.compress(b"", wbits=31)
    wire += zlib.compress(bytes(BOUND - len(body)), wbits=31)
    with gunzipped() as plain:
        gzip_sink = GzipSink(plain, BOUND)
        for start in range(0, len(wire), fragment_bytes):
            await gzip_sink.write(wire[start : start + fragment_bytes])
        gzip_sink.check_end()
        assert plain.finish() == body + bytes(BOUND - len(body))


async def test_the_bound_applies_to_compressed_bytes_that_inflate_to_nothing() -> None:
    empty = zlib.compress(b"", wbits=31)
    with gunzipped() as plain:
        gzip_sink = GzipSink(plain, 3 * len(empty))
        for _ in range(3):
            await gzip_sink.write(empty)
        with pytest.raises(PayloadTooLarge):
            await gzip_sink.write(empty)


async def test_a_fragment_that_inflates_to_many_bytes_yields_to_other_tasks(
    nursery: trio.Nursery,
) -> None:
    scheduler = 0

    async def others() -> None:
        nonlocal scheduler
        while True:
            await trio.lowlevel.checkpoint()
            scheduler += 1

    nursery.start_soon(others)
    size = 4 * STEPS_PER_ITERATION * STEP_BYTES
    shards = cast("Any", FakeShards())
    with BodySink(shards, 0, inline_bytes=size, max_bytes=size, on_size=no_ledger) as plain:
        await GzipSink(plain, size).write(zlib.compress(bytes(size), wbits=31))
        assert plain.length == size
    assert scheduler >= 2, "the sink did not yield between portions"
    nursery.cancel_scope.cancel()


async def test_inflated_bytes_do_not_count_as_transfer_rate() -> None:
    """The rate is that of the received bytes. Otherwise few bytes could occupy much memory."""
    packed = zlib.compress(bytes(60_000), wbits=31)
    with gunzipped(inline_bytes=1000) as plain:
        gzip_sink = GzipSink(plain, BOUND)
        await gzip_sink.write(packed)
        gzip_sink.check_end()
        assert plain.length == 60_000
        assert plain.turnover_s(trio.current_time()) > 100
