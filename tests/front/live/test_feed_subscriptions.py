"""Feeds: when a front subscribes to a topic, and which readers are shown a page."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.front.live.streams_support import two
from tests.support.live_harness import (
    Client,
    LiveHarness,
    live_harness,
    page,
    press,
    records,
    relax,
)
from topics.errors import NotReady
from topics.front.pressure.governor import COALESCE_S


def reader_is_live(client: Client) -> bool:
    return client.stream.readers["t"].is_live


async def test_a_feed_opens_with_its_first_reader_and_closes_with_its_last(
    front: LiveHarness,
) -> None:
    first, second = await two(front)
    assert front.shards.pending == [], "the second reader opened another feed"
    await front.page(0, 1)
    front.shards.events.clear()
    first.stream.end()
    assert front.shards.events == []
    second.stream.end()
    assert front.shards.events == [("feed.close", {"feed": 1})]
    assert (front.live.feeds.by_number, front.live.feeds.kept.size) == ({}, 0)


async def test_each_live_reader_gets_a_page_and_the_shard_is_notified_once(
    front: LiveHarness,
) -> None:
    clients = await two(front)
    await front.page(0, 2)
    assert front.shards.events == [("feed.taken", {"feed": 1})]
    for client in clients:
        assert client.receive().count(b'{"$seq":1},{"$seq":2}') == 1


@pytest.mark.parametrize(
    ("is_awaited", "head_seq", "is_quiet"),
    [(False, 2, True), (True, 2, False), (False, 3, False)],
    ids=["the shard waits for nothing", "the shard waits", "more is there"],
)
async def test_a_page_without_a_waiting_successor_is_confirmed_later(
    is_awaited: bool, head_seq: int, is_quiet: bool, front: LiveHarness
) -> None:
    await two(front)
    params = {**page(0, 2), "head_seq": head_seq, "is_awaited": is_awaited}
    front.event(0, "feed.page", {"feed": 1, **params}, records(0, 2))
    assert front.shards.events == [("feed.taken", {"feed": 1})]
    assert front.shards.deferred == [is_quiet]


async def test_a_reader_below_the_start_of_a_page_reads_the_missing_records(
    front: LiveHarness,
) -> None:
    client, _ = await two(front)
    front.event(0, "feed.page", {"feed": 1, **page(3, 4)}, records(3, 4))
    assert not reader_is_live(client)
    assert client.receive() == b""
    await wait_all_tasks_blocked()
    feed_params = await front.answer("feed.read", records(0, 4), **page(0, 4), epoch=1)
    assert feed_params["from_seq"] == 0
    assert b'{"$seq":1},{"$seq":2},{"$seq":3},{"$seq":4}' in client.receive()
    assert reader_is_live(client)


async def test_readers_of_a_crashed_shard_subscribe_again(front: LiveHarness) -> None:
    first, second = await two(front)
    front.live.feeds.closed(1)
    assert reader_is_live(first), "a crash of another shard affected the feed"
    front.live.feeds.closed(0)
    assert not reader_is_live(first)
    await wait_all_tasks_blocked()
    feed_params = await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
    assert (feed_params["topic"], feed_params["feed"]) == ("t", 2), (
        "the number of a feed was used again"
    )
    assert reader_is_live(first)
    assert reader_is_live(second)
    await front.page(0, 1, feed=1)
    assert first.receive() == b"", "a page of a dropped feed was sent"


@pytest.mark.parametrize("error", [None, "internal"])
async def test_readers_of_an_ended_feed_get_the_deletion_or_subscribe_again(
    front: LiveHarness, error: str | None
) -> None:
    client, _ = await two(front)
    front.event(0, "feed.ended", {"feed": 1, "head_seq": 0, "error": error}, b"")
    await wait_all_tasks_blocked()
    assert (b"event: topic-deleted" in client.receive()) is (error is None)
    assert ("t" in client.stream.readers) is (error is not None)
    assert [call.method for call in front.shards.pending] == ["feed.open"] * (error is not None)


async def test_a_feed_is_open_as_soon_as_its_reply_arrives(front: LiveHarness) -> None:
    """Its first page may be the next message of the same batch, and no task runs in between."""
    await front.client()
    front.shards.settle("feed.open", head_seq=5, earliest_seq=1, epoch=9)
    feed = front.live.feeds.by_number[1]
    assert (feed.is_open, feed.seq, feed.head_seq, feed.epoch) == (True, 5, 5, 9)


@pytest.mark.parametrize("is_back", [True, False], ids=["the shard is back", "a moment later"])
async def test_a_reader_waits_for_a_shard_that_is_not_ready(
    is_back: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.front.live.streams.time.monotonic", trio.current_time)
    async with live_harness() as front:
        client = await front.client()
        front.shards.refuse("feed.open", NotReady("the shard is recovering"))
        await wait_all_tasks_blocked()
        assert front.shards.pending == []
        if is_back:
            front.live.feeds.opened(1)
            await wait_all_tasks_blocked()
            assert front.shards.pending == [], "the reader waited for shard 1"
            front.live.feeds.opened(0)
            await wait_all_tasks_blocked()
        else:
            await trio.sleep(0.6)
        await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
        assert reader_is_live(client)


# Under pressure

TAKEN = ("feed.taken", {"feed": 1})
NOTICE = b'event: error\ndata: {"code":429,"error":"watch throttled under CPU pressure",'


@pytest.fixture
async def pressed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LiveHarness]:
    monkeypatch.setattr("topics.front.live.streams.time.monotonic", trio.current_time)
    async with live_harness() as front:
        yield front


async def paced_page(front: LiveHarness, from_seq: int, to_seq: int, band: int = 0) -> None:
    params = {"feed": 1, **page(from_seq, to_seq), "band": band}
    front.event(0, "feed.page", params, records(from_seq, to_seq))
    await wait_all_tasks_blocked()


async def test_a_coalesced_page_is_sent_immediately_and_confirmed_late(
    pressed: LiveHarness, autojump_clock: MockClock
) -> None:
    (client, _) = await two(pressed)
    press(pressed.pressure)
    await paced_page(pressed, 0, 1)
    assert client.receive().endswith(b"\n\n")
    assert pressed.shards.events == []
    await trio.sleep(COALESCE_S - 0.001)
    assert pressed.shards.events == []
    await trio.sleep(0.002)
    assert pressed.shards.events == [TAKEN]
    relax(pressed.pressure)
    await paced_page(pressed, 1, 2)
    assert pressed.shards.events == [TAKEN, TAKEN]
    assert pressed.shards.deferred == [False, True], "the shard waits for the late confirmation"


@pytest.mark.parametrize(("band", "pause_s"), [(0, 1.0), (1, 0.75), (3, 0.25), (4, COALESCE_S)])
async def test_a_page_of_a_low_band_is_confirmed_last(
    pressed: LiveHarness, autojump_clock: MockClock, band: int, pause_s: float
) -> None:
    await two(pressed)
    press(pressed.pressure, pace=1.0)
    await paced_page(pressed, 0, 1, band)
    await trio.sleep(pause_s - 0.01)
    assert pressed.shards.events == []
    await trio.sleep(0.02)
    assert pressed.shards.events == [TAKEN]


async def test_a_paced_stream_gets_one_notice_in_ten_seconds(
    pressed: LiveHarness, autojump_clock: MockClock
) -> None:
    clients = await two(pressed)
    press(pressed.pressure, pace=0.5)
    for _ in range(2):
        for seq in range(20):
            await paced_page(pressed, seq, seq + 1)
            await trio.sleep(0.49)
        for client in clients:
            received = client.receive()
            assert received.count(NOTICE + b'"retry_after_ms":500,"topics":["t"]}\n\n') == 1
            assert received.index(b'"$seq":1}') < received.index(NOTICE), (
                "the notice must follow a page"
            )
        pressed.live.feeds.by_number[1].seq = 0
        for client in clients:
            client.stream.readers["t"].seq = 0
    assert clients[0].stream.ended is False


async def test_a_closed_feed_confirms_no_page(
    pressed: LiveHarness, autojump_clock: MockClock
) -> None:
    for client in await two(pressed):
        press(pressed.pressure, pace=1.0)
        await paced_page(pressed, 0, 1)
        client.stream.end()
    await trio.sleep(2.0)
    assert pressed.shards.events == [("feed.close", {"feed": 1})]


async def test_a_reader_that_catches_up_waits_between_pages(
    pressed: LiveHarness, autojump_clock: MockClock
) -> None:
    press(pressed.pressure, pace=1.0)
    client = await pressed.client()
    await pressed.answer("feed.open", head_seq=9, earliest_seq=1, epoch=1)
    await pressed.answer("feed.read", records(0, 3), **page(0, 3, head_seq=9), epoch=1)
    assert pressed.shards.pending == []
    received = client.receive()
    assert received.index(b'"$seq":3}') < received.index(
        NOTICE + b'"retry_after_ms":750,"topics":["t"]}'
    )
    await trio.sleep(0.7)
    assert pressed.shards.pending == []
    await trio.sleep(0.4)
    relax(pressed.pressure)
    await pressed.answer("feed.read", records(3, 6), **page(3, 6, head_seq=9), epoch=1)
    await pressed.answer("feed.read", records(6, 9), **page(6, 9), epoch=1)
    received = client.receive()
    assert b'{"$seq":4},{"$seq":5},{"$seq":6}' in received
    assert b"caught-up" in received
