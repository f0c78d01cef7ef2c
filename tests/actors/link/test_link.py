"""A link between two ends, run iteration by iteration, and under trio."""

from __future__ import annotations

import os
import random

import pytest
import trio
import trio.testing

from tests.actors.link.link_support import SMALL, Pair, Running, echo, exchange, start_sleeping
from tests.support.wire import encode
from topics.actors.link import arena
from topics.actors.link import link as link_module
from topics.actors.link.arena import PAGE_BYTES
from topics.actors.link.link import DEFERRED_MAX, RELEASE_DELAY_S, LinkTimer
from topics.actors.link.link_memory import LinkMemory, LinkSizes
from topics.actors.link.process_id import FRONT, shard_id
from topics.actors.link.ring import HEAD, RingDamaged
from topics.actors.link.tick import TICK_INTERVAL_S, next_tick
from topics.formats.wire.message import Message, PeerClosed


def test_nothing_can_be_sent_before_both_ends_are_connected() -> None:
    pair = Pair()
    assert not pair.front.link.connected
    for attempt in (
        lambda: pair.front.link.send("rpc/a", b""),
        lambda: pair.front.link.send_refusal(1002, "bad", 7),
    ):
        with pytest.raises(PeerClosed, match="front 0 to shard 0"):
            attempt()
    assert pair.front.link.reserve(1) is None
    pair.front.run_once()
    assert pair.front.log == []
    pair.shard.run_once()
    pair.front.run_once()
    assert (pair.front.log, pair.shard.log) == (["open"], ["open"])
    pair.close()


def test_a_message_arrives_as_it_was_sent(pair: Pair) -> None:
    message_id = pair.front.link.send("rpc/append", b"payload", b"attachment")
    assert pair.front.link.backlog_bytes > 0
    assert pair.shard.run_once() == [], "no message is sent before the flush"
    pair.front.link.flush()
    assert pair.front.link.backlog_bytes == 0
    assert pair.shard.run_once() == [
        Message(message_id, 0, "rpc/append", b"payload", b"attachment")
    ]


def test_message_ids_are_unique_and_may_be_taken_in_advance(pair: Pair) -> None:
    link = pair.front.link
    first = link.send("a", b"")
    taken = link.message_id = link.message_id + 1
    third = link.send("b", b"")
    assert link.send("c", b"", message_id=taken) == taken
    assert len({first, taken, third}) == 3
    link.flush()
    assert [frame.message_id for frame in pair.shard.run_once()] == [first, third, taken]


def test_messages_sent_by_callbacks_are_flushed_when_they_return(pair: Pair) -> None:
    pair.front.link.send("ping", b"")
    pair.front.link.flush()

    def answer(frames: list[Message]) -> None:
        for _ in frames:
            pair.shard.link.send("pong", b"")

    pair.shard.link.run_once(lambda: None, answer, lambda: None)
    assert [frame.subject for frame in pair.front.run_once()] == ["pong"]


def test_a_send_is_refused_after_a_new_session_even_before_the_link_has_noticed_it(
    pair: Pair,
) -> None:
    pair.front.link.send("old", b"queued")
    pair.bump()
    assert not pair.front.link.connected
    with pytest.raises(PeerClosed):
        pair.front.link.send("new", b"")
    pair.front.link.flush()
    assert pair.memory.rings[0].cells[HEAD] == 0, "the queued message is not published"
    assert pair.front.log == ["open"]
    pair.front.run_once()
    assert pair.front.log == ["open", "close"]
    assert pair.front.link.backlog_bytes == 0


def test_a_new_session_sees_no_data_of_the_old_one(pair: Pair) -> None:
    for subject in ("read", "unread"):
        pair.front.link.send(subject, b"old")
        pair.front.link.flush()
        if subject == "read":
            pair.shard.run_once()
    pair.front.link.send("unflushed", b"old")
    pair.restart_shard()
    pair.connect()
    assert pair.front.log == ["open", "close", "open"]
    assert pair.shard.got == []
    pair.front.link.send("new", b"")
    assert [frame.subject for frame in exchange(pair.front, pair.shard)] == ["new"]


def test_a_partial_message_is_discarded_with_its_session(pair: Pair) -> None:
    pair.front.link.send("big", b"p" * 20_000)
    pair.front.link.flush()
    assert pair.shard.run_once() == []
    pair.bump()
    pair.shard.run_once()
    pair.connect()
    pair.front.link.send("small", b"")
    assert [frame.subject for frame in exchange(pair.front, pair.shard)] == ["small"]


def test_a_front_that_has_not_noticed_the_restart_cannot_reach_the_new_shard(pair: Pair) -> None:
    pair.front.link.send("a", b"x" * 500)
    stale = pair.front.link.queue
    pair.restart_shard()
    pair.shard.run_once()
    # As if the new session began between the front's check of the board and its store
    pair.front.link.producer.write(b"".join(stale))
    assert pair.shard.run_once() == []
    assert not pair.shard.link.connected
    pair.connect()
    assert pair.shard.run_once() == []


# --- trio ---


async def test_requests_and_replies_are_exchanged_in_both_directions(nursery: trio.Nursery) -> None:
    pair = Pair()
    front, shard = Running(pair.front.link), Running(pair.shard.link, echo)
    nursery.start_soon(front.run)
    nursery.start_soon(shard.run)
    await front.opened.wait()
    rng = random.Random(3)
    for n in range(300):
        body = rng.randbytes(rng.choice([0, 10, 999, 1001, 5000, 70_000]))
        front.link.send("n", b"%d" % n, body)
        front.link.flush()
        frame = await front.inbox.receive()
        assert (frame.payload, bytes(frame.attachment)) == (b"%d" % n, body)
        front.link.release(frame)
    assert front.link.late_bells == shard.link.late_bells == 0
    assert shard.link.reader.held == 0


async def test_all_waiting_messages_are_delivered_in_one_call(nursery: trio.Nursery) -> None:
    pair = Pair()
    pair.connect()
    calls: list[int] = []
    for n in range(5):
        pair.front.link.send("n", b"%d" % n)
        pair.front.link.flush()
    nursery.start_soon(
        pair.shard.link.run, lambda: None, lambda frames: calls.append(len(frames)), lambda: None
    )
    await trio.testing.wait_all_tasks_blocked()
    assert calls == [5]


async def test_a_sleeping_link_is_woken_once_for_messages_flushed_together(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    pair = Pair()
    shard = await start_sleeping(nursery, pair)
    before = pair.front.link.producer.bells
    for _ in range(10):
        pair.front.link.send("n", b"")
    pair.front.link.flush()
    assert pair.front.link.producer.bells == before + 1
    for _ in range(10):
        await shard.inbox.receive()
    assert pair.shard.link.late_bells == 0


async def test_a_new_session_wakes_both_ends_and_they_reconnect(nursery: trio.Nursery) -> None:
    pair = Pair()
    front, shard = Running(pair.front.link), Running(pair.shard.link)
    nursery.start_soon(front.run)
    nursery.start_soon(shard.run)
    await front.opened.wait()
    await shard.opened.wait()
    await trio.testing.wait_all_tasks_blocked()
    front.opened, shard.opened = trio.Event(), trio.Event()
    pair.bump()
    await front.opened.wait()
    await shard.opened.wait()
    assert front.log == shard.log == ["open", "close", "open"]


# --- sending into a ring that is full or too small ---


def test_a_producer_faster_than_its_consumer_keeps_the_order(pair: Pair) -> None:
    for n in range(3000):
        pair.front.link.send("n", b"%d" % n, b"x" * (n % 40))
        if n % 7 == 0:
            pair.front.link.flush()
    assert pair.front.link.backlog_bytes > SMALL.ring_bytes
    assert [int(bytes(frame.payload)) for frame in exchange(pair.front, pair.shard)] == list(
        range(3000)
    )


def test_a_message_that_fills_the_ring_exactly_is_sent_in_one_write(pair: Pair) -> None:
    pair.front.link.send("", b"p" * (SMALL.ring_bytes - 24))
    pair.front.link.flush()
    assert pair.front.link.backlog_bytes == 0
    assert [len(frame.payload) for frame in pair.shard.run_once()] == [SMALL.ring_bytes - 24]


def test_a_message_larger_than_the_ring_arrives_completely(pair: Pair) -> None:
    payload = random.Random(2).randbytes(10 * SMALL.ring_bytes + 1)
    pair.front.link.send("big", payload)
    pair.front.link.send("after", b"")
    assert [(frame.subject, frame.payload) for frame in exchange(pair.front, pair.shard)] == [
        ("big", payload),
        ("after", b""),
    ]


def test_a_backlog_above_the_join_limit_arrives_in_order(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "JOIN_BYTES", 2000)
    for n in range(40):
        pair.front.link.send("n", b"%d" % n, bytes(900))
    assert [int(bytes(frame.payload)) for frame in exchange(pair.front, pair.shard)] == list(
        range(40)
    )


def test_a_shard_that_cannot_reply_stops_reading_but_a_front_continues_to_read(pair: Pair) -> None:
    for end, other, reads_on in ((pair.shard, pair.front, False), (pair.front, pair.shard, True)):
        end.link.send("s", b"p" * 3 * SMALL.ring_bytes)
        end.link.flush()
        other.link.send("request", b"")
        other.link.flush()
        assert [frame.subject for frame in end.run_once()] == (["request"] if reads_on else [])
        exchange(end, other)
        assert end.run_once() == [] or not reads_on
        assert end.got[-1].subject == "request"


async def test_a_backlog_is_sent_when_the_other_end_has_read(nursery: trio.Nursery) -> None:
    pair = Pair()
    pair.connect()
    front = Running(pair.front.link)
    nursery.start_soon(front.run)
    await trio.testing.wait_all_tasks_blocked()
    payload = random.Random(4).randbytes(5 * SMALL.ring_bytes)
    front.link.send("big", payload)
    front.link.flush()
    assert front.link.backlog_bytes > 0
    while not pair.shard.got:
        await trio.testing.wait_all_tasks_blocked()
        pair.shard.run_once()
    assert pair.shard.got[0].payload == payload


def test_a_message_without_space_counts_as_one_stall_for_any_number_of_attempts(
    pair: Pair,
) -> None:
    link = pair.front.link
    link.send("small", b"")
    link.flush()
    assert link.stalls == 0
    assert link.unread_bytes > 0
    link.send("big", bytes(3 * SMALL.ring_bytes))
    for _ in range(3):
        link.flush()
        link.send("more", b"")
    assert link.stalls == 1
    assert link.unread_bytes == SMALL.ring_bytes
    exchange(pair.front, pair.shard)
    assert link.unread_bytes == 0
    link.send("big", bytes(3 * SMALL.ring_bytes))
    link.flush()
    assert link.stalls == 2


def test_no_data_is_unread_while_the_other_end_is_still_in_the_previous_session(pair: Pair) -> None:
    link = pair.front.link
    link.send("a", bytes(100))
    exchange(pair.front, pair.shard)
    pair.bump()
    pair.front.run_once()
    assert link.unread_bytes == 0
    pair.shard.run_once()
    pair.front.run_once()
    link.send("b", bytes(100))
    link.flush()
    assert link.unread_bytes > 100


def test_quiet_messages_wait_for_another_message_and_keep_their_order(pair: Pair) -> None:
    link = pair.front.link
    for subject in ("first", "second"):
        link.send(subject, b"")
        link.defer_flush()
        link.flush()
        link.check()
        assert pair.shard.run_once() == []
    link.send("third", b"", b"attachment")
    link.flush()
    assert [frame.subject for frame in pair.shard.run_once()] == ["first", "second", "third"]
    link.send("fourth", b"")
    link.flush()
    assert [frame.subject for frame in pair.shard.run_once()] == ["fourth"], (
        "the fourth message is not quiet"
    )


def test_too_many_quiet_messages_are_sent_without_another_message(pair: Pair) -> None:
    link = pair.front.link
    for _ in range(DEFERRED_MAX + 1):
        link.flush()
        assert pair.shard.run_once() == []
        link.send("quiet", b"")
        link.defer_flush()
    link.flush()
    assert len(pair.shard.run_once()) == DEFERRED_MAX + 1


def test_quiet_messages_are_discarded_with_their_session(pair: Pair) -> None:
    link = pair.front.link
    link.send("old", b"")
    link.defer_flush()
    pair.bump()
    for _ in range(3):
        pair.front.run_once()
        pair.shard.run_once()
    link.send("new", b"")
    link.flush()
    assert [frame.subject for frame in pair.shard.run_once()] == ["new"]


# --- receiving: arena attachments, releases, and damaged bytes ---


def test_bytes_that_are_not_a_message_stop_the_link(pair: Pair) -> None:
    pair.front.link.producer.write(b"\xff" * 24)
    with pytest.raises(RingDamaged, match="not a message"):
        pair.shard.run_once()


@pytest.mark.parametrize("flags", [2, 4])
@pytest.mark.parametrize("attachment", [b"short", bytes(15) + b"\xff"])
def test_an_invalid_arena_reference_stops_the_link(
    pair: Pair, flags: int, attachment: bytes
) -> None:
    pair.front.link.producer.write(encode(1, "", b"", attachment, flags))
    with pytest.raises(RingDamaged, match="no arena block"):
        pair.shard.run_once()


def test_a_long_attachment_is_read_in_place_and_its_block_freed_by_the_release(pair: Pair) -> None:
    body = random.Random(1).randbytes(3 * PAGE_BYTES)
    pair.front.link.send("rpc/append", b"p", bytearray(body))
    [frame] = exchange(pair.front, pair.shard)
    assert isinstance(frame.attachment, memoryview)
    assert frame.attachment.readonly
    assert bytes(frame.attachment) == body
    assert pair.front.link.writer.used_bytes == 3 * PAGE_BYTES
    assert pair.shard.link.reader.held == 1
    pair.shard.link.release(frame)
    pair.shard.link.release(frame)
    assert exchange(pair.shard, pair.front) == [], "the link handles a RELEASE itself"
    assert pair.front.link.writer.used_bytes == 0
    assert pair.shard.link.reader.held == 0


def test_a_short_view_is_copied_when_it_is_sent(pair: Pair) -> None:
    body = bytearray(b"before")
    pair.front.link.send("a", b"", memoryview(body))
    body[:] = b"after!"
    assert [frame.attachment for frame in exchange(pair.front, pair.shard)] == [b"before"]


def test_a_reserved_block_is_filled_shrunk_and_sent(pair: Pair) -> None:
    block = pair.front.link.reserve(2 * PAGE_BYTES)
    assert block is not None
    block.view[:5] = b"12345"
    block.shrink(5)
    pair.front.link.send("a", b"", block)
    block.free()  # As a `finally` of its holder does
    with pytest.raises(ValueError, match="already sent or freed"):
        pair.front.link.send("a", b"", block)
    [frame] = exchange(pair.front, pair.shard)
    assert bytes(frame.attachment) == b"12345"


def test_a_long_attachment_is_sent_through_the_ring_if_the_arena_is_full(
    pair: Pair,
) -> None:
    bodies = [random.Random(n).randbytes(10 * PAGE_BYTES) for n in range(3)]
    for body in bodies:
        pair.shard.link.send("r", b"", body)
    assert pair.shard.link.reserve(7 * PAGE_BYTES) is None
    got = exchange(pair.shard, pair.front)
    assert [bytes(frame.attachment) for frame in got] == bodies
    assert [frame.flags for frame in got] == [2, 0, 0]


# --- the timer that finds data without a doorbell ---


async def test_the_guard_finds_and_counts_data_whose_doorbell_was_lost(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    shard = await start_sleeping(nursery, pair)
    with monkeypatch.context() as lost:
        lost.setattr(os, "eventfd_write", lambda fd, value: None)
        pair.front.link.send("n", b"")
        pair.front.link.flush()
    started = trio.current_time()
    await shard.inbox.receive()
    assert trio.current_time() - started <= TICK_INTERVAL_S
    assert pair.shard.link.late_bells == 1


async def test_a_release_that_is_not_flushed_is_sent_by_the_guard(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    pair = Pair()
    pair.connect()
    shard = Running(pair.shard.link)
    nursery.start_soon(shard.run)
    pair.front.link.send("a", b"", bytes(5000))
    pair.front.link.flush()
    shard.link.release(await shard.inbox.receive())
    await trio.sleep(2 * RELEASE_DELAY_S)
    assert shard.link.backlog_bytes == 0
    pair.front.run_once()
    assert pair.front.link.writer.used_bytes == 0


async def test_the_pages_of_a_large_block_are_returned_soon_after_its_release(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "LARGE_PAGES", 1)
    pair = Pair()
    front, shard = Running(pair.front.link), Running(pair.shard.link)
    nursery.start_soon(front.run)
    nursery.start_soon(shard.run)
    await trio.testing.wait_all_tasks_blocked()
    await trio.sleep_until(next_tick(trio.current_time()) + 0.01)
    front.link.send("a", b"", bytes(20_000))
    front.link.flush()
    shard.link.release(await shard.inbox.receive())
    shard.link.flush()
    await trio.testing.wait_all_tasks_blocked()
    assert front.link.writer.has_unused
    await trio.sleep(2 * RELEASE_DELAY_S)
    assert not front.link.writer.has_unused


async def test_all_links_of_a_process_share_one_guard(nursery: trio.Nursery) -> None:
    pairs = [Pair() for _ in range(3)]
    for pair in pairs:
        nursery.start_soon(Running(pair.front.link).run)
    await trio.testing.wait_all_tasks_blocked()
    assert LinkTimer.of_this_run().links == {pair.front.link for pair in pairs}
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()
    assert LinkTimer.of_this_run().links == set()


# --- the memory of a link ---


def test_a_process_that_closes_a_link_keeps_no_doorbell() -> None:
    memory = LinkMemory(FRONT, shard_id(0), SMALL)
    memory.close()
    for bell in memory.bells:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(bell)


def test_a_link_needs_two_processes_and_a_valid_ring_size() -> None:
    with pytest.raises(AssertionError, match="two ends"):
        LinkMemory(FRONT, FRONT, SMALL)
    with pytest.raises(ValueError, match="ring"):
        LinkMemory(FRONT, shard_id(0), LinkSizes(5000, 1000, 0))
