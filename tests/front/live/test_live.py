"""All streams of a front: ticks, deferred calls and the drain end only a stream that fails."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.front.conftest import Logged
from tests.front.live.streams_support import BUG, broken, two
from tests.support.live_harness import LiveHarness, live_harness, make_heartbeat_due, page, records
from topics.actors.link.tick import TICK_INTERVAL_S
from topics.front.live.streams import StreamKind


async def test_streams_are_counted_by_kind(front: LiveHarness) -> None:
    first, second = await two(front)
    assert front.live.stream_counts[StreamKind.WATCH] == 2
    first.stream.end()
    first.stream.end()
    assert front.live.stream_counts == [1, 0, 0]
    second.stream.end()
    assert front.live.stream_counts == [0, 0, 0]


@pytest.mark.parametrize("fails", ["heartbeat", "a deferred call", "page_event"])
async def test_an_unexpected_error_ends_one_stream(
    fails: str,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    logged: Logged,
) -> None:
    async with live_harness() as front:
        first, second = await two(front)
        if fails == "a deferred call":
            done: list[int] = []
            front.live.defer(second.stream, lambda: done.append(1))
            front.live.defer(first.stream, broken)
            front.live.defer(second.stream, lambda: done.append(2))
            await wait_all_tasks_blocked()
            assert done == [1, 2]
        else:
            monkeypatch.setattr(first.stream, fails, broken)
        if fails == "heartbeat":
            for client in (first, second):
                make_heartbeat_due(client.stream)
            await trio.sleep(TICK_INTERVAL_S * 1.5)
            assert second.receive() == b": hb\n\n"
        await front.page(0, 1)
        assert b'"$seq":1' in second.receive()
        assert (first.stream.ended, second.stream.ended) == (True, False)
        assert b'event: error\ndata: {"code":500,"error":"internal error"}' in first.receive()
    assert [(event["event"], event["log_level"]) for event in logged] == [(BUG, "error")]


async def test_a_stream_that_starts_during_the_drain_gets_503(front: LiveHarness) -> None:
    front.live.drain()
    client = await front.client()
    assert b'"code":503' in client.receive()
    assert (client.stream.ended, front.live.streams) == (True, set())


async def test_a_stream_that_fails_while_it_catches_up_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    async with live_harness() as front:
        _, second = await two(front)
        third = await front.client(0, topic="u")
        for name in ("page_event", "failure_event"):
            monkeypatch.setattr(third.stream, name, broken)
        await front.answer("feed.open", head_seq=2, earliest_seq=1, epoch=1)
        await front.answer("feed.read", records(0, 2), **page(0, 2), epoch=1)
        assert third.stream.ended
        await front.page(0, 1)
        assert b'"$seq":1' in second.receive()
    assert {event["event"] for event in logged} == {BUG}
