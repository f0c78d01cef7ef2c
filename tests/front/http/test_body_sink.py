"""Body sinks: the memory that a body holds while it arrives, with a real arena."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio
import trio.testing

from tests.actors.shard_client.test_reservations import Front
from topics.actors.link.arena import ArenaBlock
from topics.errors import NotReady, PayloadTooLarge, Throttled
from topics.front.http import body_sink
from topics.front.http.body_sink import BodySink

INLINE = 1000
FIRST_BYTES = 500
ARENA = 16 * 4096


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    monkeypatch.setattr(body_sink, "FIRST_BYTES", FIRST_BYTES)
    front = Front()
    yield front
    front.pair.close()


def sink_of(front: Front, max_bytes: int = ARENA) -> BodySink:
    return BodySink(front.shards, 0, inline_bytes=INLINE, max_bytes=max_bytes)


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
            room = await sink.room(100)
            room[:] = body[sink.length : sink.length + len(room)]
            sink.took(len(room))
            assert len(sink._view) <= max(2 * sink.length, FIRST_BYTES)
            assert used(front) <= (0 if sink.length <= INLINE else 2 * sink.length + 4096)
        block = sink.finish()
    assert isinstance(block, ArenaBlock)
    assert bytes(block.view) == body
    block.free()


async def test_a_body_of_unknown_length_ends_at_its_bound(front: Front) -> None:
    with sink_of(front, 5000) as sink:
        await sink.write(bytes(5000))
        with pytest.raises(PayloadTooLarge):
            await sink.write(b"x")
    assert used(front) == 0


async def test_a_stalled_body_makes_room_and_is_told_why(
    front: Front,
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
) -> None:
    stalled = trio.Event()
    heard: list[Exception] = []

    async def stall() -> None:
        try:
            with sink_of(front) as sink:
                await sink.write(bytes(40_000))
                stalled.set()
                await trio.sleep_forever()
        except Throttled as failure:
            heard.append(failure)

    nursery.start_soon(stall)
    await stalled.wait()
    with pytest.raises(Throttled), sink_of(front) as sink:
        await sink.write(bytes(40_000))
    await trio.sleep(20)
    assert heard == []
    with sink_of(front) as sink:
        await sink.write(bytes(40_000))
        assert len(heard) == 1
    assert used(front) == 0


async def test_a_body_waits_a_moment_for_memory_that_others_release(
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


async def test_a_body_whose_shard_goes_fails_and_frees_its_block(front: Front) -> None:
    await fail_when_the_shard_goes(front, trio.sleep_forever)
    assert not front.pair.front.link.writer.is_used(1)


async def test_a_whole_body_that_was_told_to_give_up_is_not_sent(front: Front) -> None:
    await fail_when_the_shard_goes(front, None)


async def fail_when_the_shard_goes(
    front: Front,
    rest: Callable[[], Awaitable[None]] | None,
) -> None:
    async def bring() -> None:
        with sink_of(front) as sink:
            await sink.write(bytes(5000))
            front.pair.restart_shard()
            front.turn()
            if rest is not None:
                await rest()
            sink.finish()

    with pytest.raises(NotReady):
        await bring()
