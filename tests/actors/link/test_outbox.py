"""What an end puts into a ring that is full, or too small."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from tests.actors.link.link_support import SMALL, Pair, Running, exchange
from topics.actors.link import link as link_module
from topics.actors.link.link import QUIET_MAX


def test_a_producer_faster_than_its_consumer_keeps_the_order(pair: Pair) -> None:
    for n in range(3000):
        pair.front.link.send("n", b"%d" % n, b"x" * (n % 40))
        if n % 7 == 0:
            pair.front.link.flush()
    assert pair.front.link.backlog_bytes > SMALL.ring_bytes
    assert [int(bytes(frame.payload)) for frame in exchange(pair.front, pair.shard)] == list(
        range(3000)
    )


def test_a_message_that_fills_the_ring_exactly_goes_in_one_piece(pair: Pair) -> None:
    pair.front.link.send("", b"p" * (SMALL.ring_bytes - 24))
    pair.front.link.flush()
    assert pair.front.link.backlog_bytes == 0
    assert [len(frame.payload) for frame in pair.shard.turn()] == [SMALL.ring_bytes - 24]


def test_a_message_larger_than_the_ring_arrives_whole(pair: Pair) -> None:
    payload = random.Random(2).randbytes(10 * SMALL.ring_bytes + 1)
    pair.front.link.send("big", payload)
    pair.front.link.send("after", b"")
    assert [(frame.subject, frame.payload) for frame in exchange(pair.front, pair.shard)] == [
        ("big", payload),
        ("after", b""),
    ]


def test_more_than_is_joined_arrives_in_order(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "JOIN_BYTES", 2000)
    for n in range(40):
        pair.front.link.send("n", b"%d" % n, bytes(900))
    assert [int(bytes(frame.payload)) for frame in exchange(pair.front, pair.shard)] == list(
        range(40)
    )


def test_a_shard_that_cannot_answer_reads_no_more_but_a_front_goes_on_reading(pair: Pair) -> None:
    for end, other, reads_on in ((pair.shard, pair.front, False), (pair.front, pair.shard, True)):
        end.link.send("s", b"p" * 3 * SMALL.ring_bytes)
        end.link.flush()
        other.link.send("ask", b"")
        other.link.flush()
        assert [frame.subject for frame in end.turn()] == (["ask"] if reads_on else [])
        exchange(end, other)
        assert end.turn() == [] or not reads_on
        assert end.got[-1].subject == "ask"


async def test_a_backlog_goes_out_when_the_other_side_has_read(nursery: trio.Nursery) -> None:
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
        pair.shard.turn()
    assert pair.shard.got[0].payload == payload


def test_a_message_without_room_counts_as_a_stall_once_however_often_it_is_tried(
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


def test_nothing_is_unread_while_the_other_end_is_still_in_the_session_before(pair: Pair) -> None:
    link = pair.front.link
    link.send("a", bytes(100))
    exchange(pair.front, pair.shard)
    pair.bump()
    pair.front.turn()
    assert link.unread_bytes == 0
    pair.shard.turn()
    pair.front.turn()
    link.send("b", bytes(100))
    link.flush()
    assert link.unread_bytes > 100


def test_quiet_messages_wait_for_another_one_and_keep_their_place(pair: Pair) -> None:
    link = pair.front.link
    for subject in ("first", "second"):
        link.send(subject, b"")
        link.quieten()
        link.flush()
        link.check()
        assert pair.shard.turn() == []
    link.send("third", b"", b"attachment")
    link.flush()
    assert [frame.subject for frame in pair.shard.turn()] == ["first", "second", "third"]
    link.send("fourth", b"")
    link.flush()
    assert [frame.subject for frame in pair.shard.turn()] == ["fourth"], "it is not quiet itself"


def test_too_many_quiet_messages_wait_for_no_other_one(pair: Pair) -> None:
    link = pair.front.link
    for _ in range(QUIET_MAX + 1):
        link.flush()
        assert pair.shard.turn() == []
        link.send("quiet", b"")
        link.quieten()
    link.flush()
    assert len(pair.shard.turn()) == QUIET_MAX + 1


def test_quiet_messages_do_not_outlive_their_session(pair: Pair) -> None:
    link = pair.front.link
    link.send("old", b"")
    link.quieten()
    pair.bump()
    for _ in range(3):
        pair.front.turn()
        pair.shard.turn()
    link.send("new", b"")
    link.flush()
    assert [frame.subject for frame in pair.shard.turn()] == ["new"]
