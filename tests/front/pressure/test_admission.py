"""An append under pressure: refused late, with its body given back, or let through."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from topics.engine.access import ANYONE
from topics.errors import Throttled
from topics.front.pressure.admission import (
    REFUSABLE_MAX_BYTES,
    REFUSAL_HOLD_S,
    hold_back,
    park_append,
    refusal_of,
)

REQUEST: Any = SimpleNamespace(topic="t", shard=1, principal=ANYONE)
FORCED = b'{"records":[{"data":1}],"disable_backpressure":true}'


class Refusing:
    """Refuses whoever does not opt out."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, str, int]] = []

    def check_write(self, key: bytes, topic: str, shard: int, opts_out: Callable[[], bool]) -> None:
        self.asked.append((key, topic, shard))
        if not opts_out():
            raise Throttled("later", retry_after_ms=1000)


class Block:
    """A body in shared memory."""

    def __init__(self, body: bytes) -> None:
        self.view = memoryview(body)
        self.freed = 0

    def free(self) -> None:
        self.freed += 1


async def check(body: Any) -> Refusing:
    pressure = Refusing()
    refusal = refusal_of(pressure, REQUEST, body)  # type: ignore[arg-type]
    if refusal is not None:
        await hold_back(refusal)
    return pressure


async def test_a_refusal_is_held_back_a_moment(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    with pytest.raises(Throttled):
        await check(b'{"records":[{"data":1}]}')
    assert trio.current_time() - began == pytest.approx(REFUSAL_HOLD_S)


async def test_a_refused_body_is_given_back_once(autojump_clock: MockClock) -> None:
    block = Block(b'{"records":[{"data":1}]}')
    with pytest.raises(Throttled):
        await check(block)
    assert block.freed == 1


@pytest.mark.parametrize(
    "body", [FORCED, b" " * REFUSABLE_MAX_BYTES + b"{"], ids=["opts out", "long"]
)
async def test_who_may_not_be_refused_is_let_through_at_once(
    body: bytes, autojump_clock: MockClock
) -> None:
    began = trio.current_time()
    assert (await check(body)).asked == [(b"", "t", 1)]
    block = Block(body)
    await check(block)
    assert block.freed == 0
    assert trio.current_time() == began


async def test_a_parked_body_is_given_back_when_its_client_goes(autojump_clock: MockClock) -> None:
    async def park(_band: int) -> float:
        await trio.sleep_forever()
        raise AssertionError

    pressure: Any = SimpleNamespace(turns=SimpleNamespace(park=park))
    block: Any = Block(b"{}")
    with trio.move_on_after(1) as scope:
        await park_append(pressure, 1, block)
    assert scope.cancelled_caught
    assert block.freed == 1


async def test_a_parked_append_tells_how_long_it_was() -> None:
    async def park(_band: int) -> float:
        return 3.5

    pressure: Any = SimpleNamespace(turns=SimpleNamespace(park=park))
    assert await park_append(pressure, 1, b"{}") == 3.5
