"""Feeds of a shard on a real disk, and over a real link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.support.feeds import VIEW, OnDisk, seqs
from tests.support.shard import LIMITS
from topics.actors.link.board import Board
from topics.actors.link.link import Link
from topics.actors.link.link_memory import LinkMemory, LinkSizes
from topics.actors.link.process_id import FRONT, shard_id
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import InboundMessage, LinkSession, Reply
from topics.actors.shard.context import clock
from topics.actors.shard.loop import ShardLoop
from topics.config import Settings
from topics.engine.locators import is_extent
from topics.formats.json_text import json_bytes
from topics.formats.wire.calls import (
    APPEND,
    FEED_OPEN,
    FEED_PAGE,
    FEED_TAKEN,
    AppendParams,
    FeedOpenParams,
    FeedPageParams,
    FeedParams,
)
from topics.formats.wire.contract import Call, R
from topics.formats.wire.message import Message
from topics.storage.recovery.steps import recover


async def test_a_sealed_topic_is_read_on_and_followed(disk: OnDisk) -> None:
    disk.put("a")
    await disk.settled()
    for number in range(60):
        records = [
            {
                "data": "x" * 40,
                "tag": "t",
                "meta": {"m": number},
                "node": "me" if number % 2 else "you",
            },
            {"data": 0},
        ]
        disk.append("a", records=records)
        await disk.settled()
    topic = disk.engine.topic("a")
    disk.wire.take()
    disk.feed_read("a", 3, 101, limit=1000, nodes=["me"])
    before = disk.answer()
    disk.feed_read("a", 3, 101, limit=1000, data=False, tags=True)
    bare = disk.answer()
    with trio.fail_after(20):
        while topic.sealed_seq < 101:
            await disk.loop.services.sealing._round()
    assert any(is_extent(locator) for locator in topic.index.locators())
    disk.feed_read("a", 3, 101, limit=1000, nodes=["me"])
    assert disk.answer() == before | {"answer": disk._cid}
    disk.feed_read("a", 3, 101, limit=1000, data=False, tags=True)
    assert disk.answer() == bare | {"answer": disk._cid}
    assert (before["to_seq"], len(before["records"]), len(bare["records"])) == (101, 74, 98)
    assert bare["records"][0].keys() - {"$node", "$tag"} == {"$seq", "$ts"}
    disk.open("a")
    disk.append("a", "new")
    await disk.settled()
    assert disk.pages() == [[121]]


async def test_a_strong_reader_waits_for_the_regular_sync_and_no_longer(disk: OnDisk) -> None:
    disk.put("a")
    await disk.settled()
    disk.open("a", strong=True)
    seqs_seen: list[int] = []
    with trio.fail_after(20):
        for number in range(20):
            disk.append("a", number)
            disk.turn()
            await trio.lowlevel.checkpoint()
        while len(seqs_seen) < 20:
            disk.turn()
            await trio.lowlevel.checkpoint()
            for event in disk.events():
                assert event["to_seq"] <= event["head_seq"]
                seqs_seen += seqs(event)
                disk.taken()
    assert seqs_seen == [*range(1, 21)]


async def test_what_a_restart_took_is_a_gap_to_the_seq(
    tmp_path: Path, disk: OnDisk, nursery: trio.Nursery
) -> None:
    for durability in ("disk", "ephemeral", "disk"):
        disk.put("a", durability=durability)
        await disk.settled()
        disk.append("a", 1, 2)
        await disk.settled()
    await disk.end()
    front = OnDisk(tmp_path, nursery, "second")
    head = front.engine.topic("a").head_seq
    front.feed_read("a")
    answer = front.answer()
    assert (seqs(answer), answer["to_seq"], answer["tombstone"]) == ([1, 2], 2, None)
    front.feed_read("a", 2, 3)
    answer = front.answer()
    assert (seqs(answer), answer["to_seq"]) == ([5, 6], 6)
    assert (
        answer["tombstone"]["gap_from"],
        answer["tombstone"]["gap_to"],
        answer["tombstone"]["reason"],
    ) == (3, 4, "mixed")
    front.feed_read("a", 3)
    answer = front.answer()
    assert (seqs(answer), answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (
        [5, 6],
        4,
        4,
    )
    front.open("a", strong=True)
    assert front.answer()["head_seq"] == head
    front.append("a", 7)
    with trio.fail_after(20):
        while not (events := front.events()):
            front.turn()
            await trio.lowlevel.checkpoint()
    assert (events[0]["from_seq"], events[0]["tombstone"], len(seqs(events[0]))) == (head, None, 1)
    await front.end()


@pytest.mark.parametrize("size", [10, 300_000])
async def test_pages_go_over_a_real_link_short_or_long(
    tmp_path: Path, nursery: trio.Nursery, size: int
) -> None:
    """Three writes: two pages, and the third only when one of them was taken."""
    board = Board(1)
    memory = LinkMemory(FRONT, shard_id(0), LinkSizes.of(Settings()))
    shard = recover(tmp_path, 0, 1, clock(), wal_file_bytes=1 << 20, wal_sync_ms=20)
    stop = trio.Event()
    nursery.start_soon(
        ShardLoop(shard, 0, board, LIMITS).run, [Link(memory, board, shard_id(0))], stop
    )
    router, link = MessageRouter(), Link(memory, board, FRONT)
    sessions: list[LinkSession] = []
    got, pages = trio.open_memory_channel[tuple[Any, bytes]](10)

    def page(event: InboundMessage[FeedPageParams, Any]) -> None:
        got.send_nowait((event.params, bytes(event.attachment)))

    def arrived(frames: list[Message]) -> None:
        for frame in frames:
            assert router.dispatch(sessions[0], frame) is None

    async def asked(call: Call[Any, R], params: Any, body: bytes = b"") -> Reply[R]:
        send, receive = trio.open_memory_channel[Any](1)
        sessions[0].call(call, params, body, send.send_nowait)
        link.flush()
        reply: Reply[R] = await receive.receive()
        return reply

    async def write() -> None:
        body = json_bytes({"records": [{"data": "x" * size}]})
        params = AppendParams("a", None, True, None, 0)
        await asked(APPEND, params, body)

    router.subscribe(FEED_PAGE, page)
    nursery.start_soon(
        link.run,
        lambda: sessions.append(router.open_session("shard-0", link)),
        arrived,
        lambda: None,
    )
    with trio.fail_after(20):
        while not sessions:
            await trio.lowlevel.checkpoint()
        await write()
        opened = await asked(FEED_OPEN, FeedOpenParams(3, "a", VIEW))
        assert opened.result.head_seq == 1
        for _ in range(3):
            await write()
        found = [await pages.receive(), await pages.receive()]
        with pytest.raises(trio.WouldBlock):
            pages.receive_nowait()
        sessions[0].notify(FEED_TAKEN, FeedParams(3))
        link.flush()
        found.append(await pages.receive())
    assert [(params.from_seq, params.to_seq, params.record_count) for params, _ in found] == [
        (1, 2, 1),
        (2, 3, 1),
        (3, 4, 1),
    ]
    assert [msgspec.json.decode(records)["data"] for _, records in found] == ["x" * size] * 3
    stop.set()
    shard.wal.stop()
    nursery.cancel_scope.cancel()
