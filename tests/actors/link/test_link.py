"""A link between two ends, turn by turn, and under trio."""

from __future__ import annotations

import random

import msgspec
import pytest
import trio
import trio.testing

from tests.actors.link.link_support import Pair, Running, asleep, echo, exchange
from topics.actors.link.process_id import FRONT
from topics.actors.link.ring import HEAD
from topics.formats.wire.message import ERROR, Message, PeerGone


def test_nothing_can_be_sent_before_both_sides_are_there() -> None:
    pair = Pair()
    assert not pair.front.link.connected
    for attempt in (
        lambda: pair.front.link.send("rpc/a", b""),
        lambda: pair.front.link.send_refusal(1002, "bad", 7),
    ):
        with pytest.raises(PeerGone, match="front 0 to shard 0"):
            attempt()
    assert pair.front.link.reserve(1) is None
    pair.front.turn()
    assert pair.front.log == []
    pair.shard.turn()
    pair.front.turn()
    assert (pair.front.log, pair.shard.log) == (["open"], ["open"])
    pair.close()


def test_a_message_arrives_as_it_was_sent(pair: Pair) -> None:
    message_id = pair.front.link.send("rpc/append", b"payload", b"attachment")
    assert pair.front.link.backlog_bytes > 0
    assert pair.shard.turn() == [], "nothing travels before the flush"
    pair.front.link.flush()
    assert pair.front.link.backlog_bytes == 0
    assert pair.shard.turn() == [Message(message_id, 0, "rpc/append", b"payload", b"attachment")]


def test_message_ids_are_fresh_and_may_be_taken_in_advance(pair: Pair) -> None:
    link = pair.front.link
    first = link.send("a", b"")
    taken = link.message_id = link.message_id + 1
    third = link.send("b", b"")
    assert link.send("c", b"", message_id=taken) == taken
    assert len({first, taken, third}) == 3
    link.flush()
    assert [frame.message_id for frame in pair.shard.turn()] == [first, third, taken]


def test_an_error_frame_names_what_it_is_about(pair: Pair) -> None:
    pair.shard.link.send_refusal(1003, "reserved", 9)
    pair.shard.link.flush()
    [frame] = pair.front.turn()
    assert (frame.flags, frame.subject, msgspec.msgpack.decode(frame.payload)) == (
        ERROR,
        "",
        {"code": 1003, "message": "reserved", "about": 9},
    )


def test_what_callbacks_send_is_flushed_when_they_return(pair: Pair) -> None:
    pair.front.link.send("ping", b"")
    pair.front.link.flush()

    def answer(frames: list[Message]) -> None:
        for _ in frames:
            pair.shard.link.send("pong", b"")

    pair.shard.link.turn(lambda: None, answer, lambda: None)
    assert [frame.subject for frame in pair.front.turn()] == ["pong"]


def test_sending_after_the_bump_is_refused_before_the_link_has_noticed(pair: Pair) -> None:
    pair.front.link.send("old", b"queued")
    pair.bump()
    assert not pair.front.link.connected
    with pytest.raises(PeerGone):
        pair.front.link.send("new", b"")
    pair.front.link.flush()
    assert pair.memory.rings[0].words[HEAD] == 0, "and what was queued is not published"
    assert pair.front.log == ["open"]
    pair.front.turn()
    assert pair.front.log == ["open", "close"]
    assert pair.front.link.backlog_bytes == 0


def test_a_new_session_sees_nothing_of_the_old_one(pair: Pair) -> None:
    for subject in ("read", "unread"):
        pair.front.link.send(subject, b"old")
        pair.front.link.flush()
        if subject == "read":
            pair.shard.turn()
    pair.front.link.send("unflushed", b"old")
    pair.restart_shard()
    pair.connect()
    assert pair.front.log == ["open", "close", "open"]
    assert pair.shard.got == []
    pair.front.link.send("new", b"")
    assert [frame.subject for frame in exchange(pair.front, pair.shard)] == ["new"]


def test_half_a_message_is_forgotten_with_its_session(pair: Pair) -> None:
    pair.front.link.send("big", b"p" * 20_000)
    pair.front.link.flush()
    assert pair.shard.turn() == []
    pair.bump()
    pair.shard.turn()
    pair.connect()
    pair.front.link.send("small", b"")
    assert [frame.subject for frame in exchange(pair.front, pair.shard)] == ["small"]


def test_a_front_that_has_not_noticed_cannot_reach_the_new_shard(pair: Pair) -> None:
    pair.front.link.send("a", b"x" * 500)
    stale = pair.front.link.queue
    pair.restart_shard()
    pair.shard.turn()
    pair.front.link.producer.write(
        b"".join(stale)
    )  # as if the bump came between its look at the board and its store
    assert pair.shard.turn() == []
    assert not pair.shard.link.connected
    pair.connect()
    assert pair.shard.turn() == []


def test_both_sides_may_die() -> None:
    pair = Pair()
    pair.connect()
    pair.front.link.send("old", b"")
    pair.front.link.flush()
    pair.shard.link.send("old", b"")
    pair.shard.link.flush()
    pair.bump()
    pair.restart_shard()
    pair.front = pair.end(FRONT)
    pair.connect()
    assert (pair.front.got, pair.shard.got) == ([], [])
    pair.close()


# --- trio ---


async def test_requests_and_answers_go_back_and_forth(nursery: trio.Nursery) -> None:
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


async def test_everything_that_waits_comes_in_one_call(nursery: trio.Nursery) -> None:
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


async def test_a_sleeping_link_is_woken_once_for_what_was_flushed_together(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    pair = Pair()
    shard = await asleep(nursery, pair)
    before = pair.front.link.producer.bells
    for _ in range(10):
        pair.front.link.send("n", b"")
    pair.front.link.flush()
    assert pair.front.link.producer.bells == before + 1
    for _ in range(10):
        await shard.inbox.receive()
    assert pair.shard.link.late_bells == 0


async def test_a_bump_wakes_both_sides_and_they_meet_again(nursery: trio.Nursery) -> None:
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
