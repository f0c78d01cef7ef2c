"""All streams of a front: ticks, deferred calls and the drain end only a stream that fails."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from tests.front.live.streams_support import BUG, broken, goes_on, two
from tests.support.live_desk import Desk, desk
from topics.front.live.streams import TICK_S, StreamKind


async def test_streams_are_counted_by_kind(front: Desk) -> None:
    first, second = await two(front)
    assert front.live.stream_counts[StreamKind.WATCH] == 2
    first.stream.end()
    first.stream.end()
    assert front.live.stream_counts == [1, 0, 0]
    second.stream.end()
    assert front.live.stream_counts == [0, 0, 0]


async def test_a_tick_that_fails_ends_its_stream_only(
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with desk() as front:
        first, second = await two(front)
        monkeypatch.setattr(first.stream, "heartbeat", broken)
        for client in (first, second):
            client.stream.outbox.last_sent -= client.stream.heartbeat_s
        await trio.sleep(TICK_S * 1.5)
        assert second.hear() == b": hb\n\n"
        await goes_on(front, first, second)
    assert [(record.message, record.levelno) for record in caplog.records] == [(BUG, logging.ERROR)]


async def test_a_deferred_call_that_fails_ends_its_stream_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[int] = []
    async with desk() as front:
        first, second = await two(front)
        front.live.defer(second.stream, lambda: done.append(1))
        front.live.defer(first.stream, broken)
        front.live.defer(second.stream, lambda: done.append(2))
        await wait_all_tasks_blocked()
        assert done == [1, 2]
        await goes_on(front, first, second)
    assert [record.message for record in caplog.records] == [BUG]


async def test_a_stream_that_begins_during_the_drain_is_told_so(front: Desk) -> None:
    front.live.drain()
    client = await front.client()
    assert b'"code":503' in client.hear()
    assert (client.stream.ended, front.live.streams) == (True, set())
