"""Heartbeats are never sent late, although streams are checked only at ticks."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.support.live_harness import Client, LiveHarness, live_harness
from topics.actors.link.tick import TICK_INTERVAL_S

STEP_S = 0.05


async def next_heartbeat(client: Client) -> float:
    """Wait for a heartbeat and return its time."""
    for _ in range(int(2 / STEP_S)):
        if received := client.receive():
            assert received == b": hb\n\n"
            return trio.current_time()
        await trio.sleep(STEP_S)
    raise AssertionError("no heartbeat")


@pytest.mark.parametrize("heartbeat_s", [1.0, 1.2])
@pytest.mark.parametrize("offset_s", [0.0, 0.1, 0.25, 0.49])
async def test_a_heartbeat_is_sent_at_most_an_interval_after_the_last_byte(
    heartbeat_s: float,
    offset_s: float,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("topics.front.live.streams.time.monotonic", trio.current_time)
    async with live_harness() as front:
        await heartbeats_are_in_time(front, heartbeat_s, offset_s)


async def heartbeats_are_in_time(front: LiveHarness, heartbeat_s: float, offset_s: float) -> None:
    client = await front.client()
    await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
    stream = client.stream
    stream.heartbeat_s = heartbeat_s
    await trio.sleep(2 * TICK_INTERVAL_S - trio.current_time() % TICK_INTERVAL_S + offset_s)
    client.receive()
    stream.outbox.write(b": x\n\n")
    client.receive()
    front.live.schedule_check(stream, stream.until_check_s())
    last = trio.current_time()
    for _ in range(3):
        before, last = last, await next_heartbeat(client)
        assert (
            heartbeat_s - TICK_INTERVAL_S - 2 * STEP_S <= last - before <= heartbeat_s + 2 * STEP_S
        )
