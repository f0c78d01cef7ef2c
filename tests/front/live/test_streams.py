"""An unexpected error in one stream ends that stream and nothing else of the front."""

from __future__ import annotations

import logging
import socket
from typing import Any, NoReturn

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from tests.support.live_desk import Client, Desk, desk, page, records
from topics.config import Settings
from topics.engine.access import ANYONE
from topics.errors import Internal
from topics.formats.api.limits import limits_of
from topics.front.http.connection import Connection, Timings
from topics.front.http.connections import Connections
from topics.front.live.live import TICK_S
from topics.front.live.web_socket import WebSocket

BUG = "unexpected stream error"


def broken(*_: Any) -> NoReturn:
    raise RuntimeError("a bug")


async def two(front: Desk) -> tuple[Client, Client]:
    """Two clients that are live in one feed."""
    first = await front.client()
    await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
    second = await front.client()
    assert first.hear()
    assert second.hear()
    return first, second


async def goes_on(front: Desk, broken: Client, whole: Client) -> None:
    """The one has been told and has ended; the other is shown what comes."""
    assert broken.stream.ended
    assert b'event: error\ndata: {"code":500,"error":"internal error"}' in broken.hear()
    assert not whole.stream.ended
    await front.page(0, 1)
    assert b'"$seq":1' in whole.hear()


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


async def test_a_page_that_cannot_be_shown_ends_one_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk() as front:
        first, second = await two(front)
        monkeypatch.setattr(first.stream, "page_event", broken)
        await front.page(0, 1)
        assert b'"$seq":1' in second.hear()
        assert first.stream.ended
        assert b'"code":500' in first.hear()
    assert [record.message for record in caplog.records] == [BUG]


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


async def test_a_deletion_that_cannot_be_shown_ends_one_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk() as front:
        first, second = await two(front)
        for name in ("deleted_event", "failure_event"):
            monkeypatch.setattr(first.stream, name, broken)
        front.event(0, "feed.ended", {"feed": 1, "head_seq": 0}, b"")
        assert b"topic-deleted" in second.hear()
        assert (first.stream.ended, first.hear()) == (True, b"")
        assert not second.stream.ended
    assert {record.message for record in caplog.records} == {BUG}


async def test_a_stream_that_fails_while_it_catches_up_ends_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk() as front:
        _, second = await two(front)
        third = await front.client(0, topic="u")
        for name in ("page_event", "failure_event"):
            monkeypatch.setattr(third.stream, name, broken)
        await front.answer("feed.open", head_seq=2, earliest_seq=1, epoch=1)
        await front.answer("feed.read", records(0, 2), **page(0, 2), epoch=1)
        assert third.stream.ended
        await front.page(0, 1)
        assert b'"$seq":1' in second.hear()
    assert {record.message for record in caplog.records} == {BUG}


async def test_a_stream_that_fails_during_the_drain_does_not_keep_others_from_being_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk() as front:
        first, second = await two(front)
        monkeypatch.setattr(first.stream, "failure_event", broken)
        front.live.drain()
        assert b'"code":503' in second.hear()
        assert first.stream.ended


@pytest.mark.parametrize(
    ("code", "name", "close_code"),
    [(408, "throttled", 1008), (500, "internal", 1011), (503, "shutting_down", 1001)],
)
async def test_a_websocket_is_told_what_went_wrong(code: int, name: str, close_code: int) -> None:
    ours, theirs = socket.socketpair()
    async with desk() as front:
        with ours, theirs:
            connection = Connection(ours, Connections(Timings(), 0.0))
            stream = WebSocket(front.live, connection, ANYONE, Settings(), limits_of(Settings()))
            stream.begin()
            stream.fail(code, "why")
            told = theirs.recv(1000)
            assert b'"code":"%b"' % name.encode() in told
            assert told.endswith(close_code.to_bytes(2, "big") + b"why")
            assert (stream.ended, len(front.live.streams)) == (True, 0)


async def test_a_failed_read_of_a_former_reader_does_not_end_the_new_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with desk() as front:
        client = await front.client()
        await front.answer("feed.open", head_seq=1, earliest_seq=1, epoch=1)
        await client.follow("t")
        front.shards.refuse("feed.read", Internal("of the first one"))
        await wait_all_tasks_blocked()
        assert b"event: error" not in client.hear()
        assert client.stream.readers.keys() == {"t"}
    assert not caplog.records
