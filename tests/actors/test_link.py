"""A link: two ends in one process step by step, two ends under trio, two ends in two processes."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import cbor2
import pytest
import trio
import trio.testing
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from topics.actors.link import link as link_module
from topics.actors.link.arena import PAGE_BYTES
from topics.actors.link.board import Board
from topics.actors.link.link import Guard, Link, LinkMemory, Side
from topics.actors.link.ring import HEAD, RingDamaged
from topics.config import Settings
from topics.formats.wire.message import ERROR, MessageFrame, PeerGone, encode

SMALL = Settings(ring_bytes=8192, inline_bytes=1000, arena_bytes=16 * PAGE_BYTES)


@dataclass
class End:
    """A link whose turns the test takes, and what they brought."""

    link: Link
    got: list[MessageFrame] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def turn(self) -> list[MessageFrame]:
        before = len(self.got)
        self.link.turn(
            lambda: self.log.append("open"), self.got.extend, lambda: self.log.append("close")
        )
        return self.got[before:]


class Pair:
    """Both ends on one board. ``restart`` is what the supervisor does when one side has died."""

    def __init__(self, settings: Settings = SMALL) -> None:
        self.settings = settings
        self.board = Board.create(shards=1, fronts=1)
        self.memory = LinkMemory.create(0, 0, settings)
        self.front = self.end(Side.FRONT)
        self.shard = self.end(Side.SHARD)

    def end(self, side: Side) -> End:
        return End(Link(self.memory, self.board, side, self.settings))

    def connect(self) -> None:
        for end in (self.front, self.shard, self.front):
            end.turn()
        assert self.front.link.connected
        assert self.shard.link.connected

    def bump(self) -> None:
        self.board.bump_session(0, 0)
        self.memory.ring_doorbells()

    def restart_shard(self) -> None:
        self.bump()
        self.shard = self.end(Side.SHARD)

    def close(self) -> None:
        os.close(self.memory.front_bell)
        os.close(self.memory.shard_bell)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    pair.connect()
    yield pair
    pair.close()


def exchange(sender: End, receiver: End) -> list[MessageFrame]:
    """Turns of both until nothing is left on the way to ``receiver``."""
    got: list[MessageFrame] = []
    sender.link.flush()
    while (frames := receiver.turn()) or sender.link.backlog_bytes:
        got += frames
        sender.turn()
    return got


# --- sessions ---


def test_nothing_can_be_sent_before_both_sides_are_there() -> None:
    pair = Pair()
    assert not pair.front.link.connected
    for attempt in (
        lambda: pair.front.link.send("rpc/a", b""),
        lambda: pair.front.link.send_error(1002, "bad", 7),
    ):
        with pytest.raises(PeerGone, match="front 0 and shard 0"):
            attempt()
    assert pair.front.link.reserve(1) is None
    pair.front.turn()
    assert pair.front.log == []
    pair.shard.turn()
    pair.front.turn()
    assert (pair.front.log, pair.shard.log) == (["open"], ["open"])
    pair.close()


def test_a_message_arrives_as_it_was_sent(pair: Pair) -> None:
    frame_id = pair.front.link.send("rpc/append", b"payload", b"attachment")
    assert pair.front.link.backlog_bytes > 0
    assert pair.shard.turn() == [], "nothing travels before the flush"
    pair.front.link.flush()
    assert pair.front.link.backlog_bytes == 0
    assert pair.shard.turn() == [MessageFrame(frame_id, 0, "rpc/append", b"payload", b"attachment")]


def test_frame_ids_are_fresh_and_may_be_taken_in_advance(pair: Pair) -> None:
    link = pair.front.link
    first = link.send("a", b"")
    taken = link.next_frame_id()
    third = link.send("b", b"")
    assert link.send("c", b"", frame_id=taken) == taken
    assert len({first, taken, third}) == 3
    link.flush()
    assert [frame.frame_id for frame in pair.shard.turn()] == [first, third, taken]


def test_an_error_frame_names_what_it_is_about(pair: Pair) -> None:
    pair.shard.link.send_error(1003, "reserved", 9)
    pair.shard.link.flush()
    [frame] = pair.front.turn()
    assert (frame.flags, frame.subject, cbor2.loads(frame.payload)) == (
        ERROR,
        "",
        {"code": 1003, "message": "reserved", "about": 9},
    )


def test_what_callbacks_send_is_flushed_when_they_return(pair: Pair) -> None:
    pair.front.link.send("ping", b"")
    pair.front.link.flush()

    def answer(frames: list[MessageFrame]) -> None:
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
    assert pair.memory.request.words[HEAD] == 0, "and what was queued is not published"
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
    stale = pair.front.link._queue
    pair.restart_shard()
    pair.shard.turn()
    pair.front.link._producer.write(
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
    pair.front = pair.end(Side.FRONT)
    pair.connect()
    assert (pair.front.got, pair.shard.got) == ([], [])
    pair.close()


def test_bytes_that_are_no_message_stop_the_link(pair: Pair) -> None:
    pair.front.link._producer.write(b"\xff" * 24)
    with pytest.raises(RingDamaged, match="no message"):
        pair.shard.turn()


@pytest.mark.parametrize("flags", [2, 4])
@pytest.mark.parametrize("attachment", [b"short", bytes(15) + b"\xff"])
def test_an_arena_reference_to_nothing_stops_the_link(
    pair: Pair, flags: int, attachment: bytes
) -> None:
    pair.front.link._producer.write(encode(1, "", b"", attachment, flags))
    with pytest.raises(RingDamaged, match="no arena block"):
        pair.shard.turn()


class LinksInAnyOrder(RuleBasedStateMachine):
    """Two ends, bumps and deaths at any moment: each session's messages arrive as a prefix of what
    it sent, and nothing else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        self.got: dict[tuple[str, int], list[bytes]] = {}
        self.held: dict[str, list[tuple[MessageFrame, bytes]]] = {"front": [], "shard": []}
        self.number = 0

    def end(self, name: str) -> End:
        return self.pair.front if name == "front" else self.pair.shard

    @rule(name=st.sampled_from(["front", "shard"]))
    def turn(self, name: str) -> None:
        end, other = self.end(name), "shard" if name == "front" else "front"
        for frame in end.turn():
            got = self.got.setdefault((other, end.link._session), [])
            got.append(bytes(frame.attachment))
            assert self.sent[other, end.link._session][: len(got)] == got
            if isinstance(frame.attachment, memoryview):
                self.held[name].append((frame, bytes(frame.attachment)))

    @rule(
        name=st.sampled_from(["front", "shard"]),
        length=st.sampled_from([0, 1, 900, 3000, 9000, 40_000]),
        flush=st.booleans(),
    )
    def send(self, name: str, length: int, flush: bool) -> None:
        link = self.end(name).link
        self.number += 1
        body = (b"%d," % self.number) * (length // 4 + 1)
        if link.connected:
            link.send("s", b"", body)
            self.sent.setdefault((name, link._session), []).append(body)
        else:
            with pytest.raises(PeerGone):
                link.send("s", b"", body)
        if flush:
            link.flush()

    @rule(name=st.sampled_from(["front", "shard"]))
    def release_one(self, name: str) -> None:
        if self.held[name]:
            self.end(name).link.release(self.held[name].pop(0)[0])

    @rule()
    def what_is_held_does_not_change(self) -> None:
        assert all(
            bytes(frame.attachment) == body for held in self.held.values() for frame, body in held
        )

    @rule()
    def bump(self) -> None:
        self.pair.bump()

    @rule(name=st.sampled_from(["front", "shard"]))
    def die(self, name: str) -> None:
        self.held[name].clear()
        self.pair.bump()
        setattr(self.pair, name, self.pair.end(Side(name)))

    @precondition(lambda self: not self.held["front"] and not self.held["shard"])
    @rule()
    def settle(self) -> None:
        """Left alone, the two sides always get together, and everything arrives."""
        for _ in range(3):
            self.turn("front")
            self.turn("shard")
        assert self.pair.front.link.connected
        assert self.pair.shard.link.connected
        while (
            self.pair.front.link.backlog_bytes
            or self.pair.shard.link.backlog_bytes
            or self.held["front"]
            or self.held["shard"]
        ):
            for name in ("front", "shard"):
                self.turn(name)
                self.release_one(name)
        self.turn("front")
        self.turn("shard")
        session = self.pair.board.session(0, 0)
        for name in ("front", "shard"):
            assert self.got.get((name, session), []) == self.sent.get((name, session), [])

    def teardown(self) -> None:
        self.pair.close()


@pytest.mark.slow
class TestLinks(LinksInAnyOrder.TestCase):  # type: ignore[name-defined, misc]
    settings = hypothesis_settings(max_examples=60, stateful_step_count=40)


# --- long attachments ---


def test_a_long_attachment_is_read_in_place_and_its_block_freed_by_the_release(pair: Pair) -> None:
    body = random.Random(1).randbytes(3 * PAGE_BYTES)
    pair.front.link.send("rpc/append", b"p", bytearray(body))
    [frame] = exchange(pair.front, pair.shard)
    assert isinstance(frame.attachment, memoryview)
    assert frame.attachment.readonly
    assert bytes(frame.attachment) == body
    assert pair.front.link.statistics().arena_used_bytes == 3 * PAGE_BYTES
    assert pair.shard.link.statistics().arena_held == 1
    pair.shard.link.release(frame)
    pair.shard.link.release(frame)
    assert exchange(pair.shard, pair.front) == [], "a RELEASE is the link's own business"
    assert pair.front.link.statistics().arena_used_bytes == 0
    assert pair.shard.link.statistics().arena_held == 0


def test_releasing_an_inline_attachment_sends_nothing(pair: Pair) -> None:
    pair.front.link.send("a", b"", b"x" * 1000)
    [frame] = exchange(pair.front, pair.shard)
    pair.shard.link.release(frame)
    assert pair.shard.link.backlog_bytes == 0


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
    block.free()  # as a `finally` of its holder does
    with pytest.raises(ValueError, match="sent or freed before"):
        pair.front.link.send("a", b"", block)
    [frame] = exchange(pair.front, pair.shard)
    assert bytes(frame.attachment) == b"12345"


def test_when_the_arena_is_full_a_long_attachment_goes_through_the_ring_in_pieces(
    pair: Pair,
) -> None:
    bodies = [random.Random(n).randbytes(10 * PAGE_BYTES) for n in range(3)]
    for body in bodies:
        pair.shard.link.send("r", b"", body)
    assert pair.shard.link.reserve(7 * PAGE_BYTES) is None
    got = exchange(pair.shard, pair.front)
    assert [bytes(frame.attachment) for frame in got] == bodies
    assert [frame.flags for frame in got] == [2, 0, 0]


def test_blocks_that_a_dead_peer_held_are_free_in_the_next_session(pair: Pair) -> None:
    pair.front.link.send("a", b"", bytes(16 * PAGE_BYTES))
    exchange(pair.front, pair.shard)
    assert pair.front.link.reserve(1) is None
    pair.restart_shard()
    pair.connect()
    assert pair.front.link.reserve(16 * PAGE_BYTES) is not None


def test_a_block_of_a_session_that_is_over_cannot_be_sent_but_is_given_back(pair: Pair) -> None:
    block = pair.front.link.reserve(PAGE_BYTES)
    assert block is not None
    pair.restart_shard()
    pair.connect()
    with pytest.raises(PeerGone):
        pair.front.link.send("a", b"", block)
    pair.bump()
    pair.shard.turn()
    pair.connect()


def test_a_session_waits_until_nobody_reads_where_it_will_write(pair: Pair) -> None:
    pair.shard.link.send("r", b"", b"s" * 2000)
    [frame] = exchange(pair.shard, pair.front)
    pair.restart_shard()
    pair.connect()
    assert bytes(frame.attachment) == b"s" * 2000, "the next session goes on beside the slow reader"
    pair.restart_shard()
    for end in (pair.shard, pair.front, pair.shard, pair.front):
        end.turn()
    assert not pair.front.link.connected
    pair.front.link.release(frame)
    pair.connect()


def test_a_session_that_waits_for_a_slow_reader_tells_it_to_let_go(pair: Pair) -> None:
    pair.shard.link.send("r", b"", b"s" * 2000)
    [frame] = exchange(pair.shard, pair.front)
    assert isinstance(frame.attachment, memoryview)
    pair.front.link.on_lost(frame.attachment, lambda: pair.front.link.release(frame))
    pair.restart_shard()
    pair.connect()
    assert pair.front.link.statistics().arena_held == 1, "the first death costs it nothing"
    pair.restart_shard()
    pair.connect()
    assert pair.front.link.statistics().arena_held == 0


# --- full rings ---


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


# --- trio ---


class Running:
    """A link under trio with an inbox to wait on."""

    def __init__(
        self, link: Link, answer: Callable[[Link, MessageFrame], None] | None = None
    ) -> None:
        self.link = link
        self.answer = answer
        self.log: list[str] = []
        self.opened = trio.Event()
        self.send, self.inbox = trio.open_memory_channel[MessageFrame](10_000)

    async def run(self) -> None:
        await self.link.run(self.on_open, self.on_messages, lambda: self.log.append("close"))

    def on_open(self) -> None:
        self.log.append("open")
        self.opened.set()

    def on_messages(self, frames: list[MessageFrame]) -> None:
        for frame in frames:
            if self.answer:
                self.answer(self.link, frame)
            else:
                self.send.send_nowait(frame)


def echo(link: Link, frame: MessageFrame) -> None:
    link.send(frame.subject, bytes(frame.payload), frame.attachment)
    link.release(frame)


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
    assert front.link.statistics().late_bells == shard.link.statistics().late_bells == 0
    assert shard.link.statistics().arena_held == 0


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
    pair.connect()
    shard = Running(pair.shard.link)
    nursery.start_soon(shard.run)
    while not pair.shard.link._asleep:
        await trio.testing.wait_all_tasks_blocked()
    before = pair.front.link.statistics().bells
    for _ in range(10):
        pair.front.link.send("n", b"")
    pair.front.link.flush()
    assert pair.front.link.statistics().bells == before + 1
    for _ in range(10):
        await shard.inbox.receive()
    assert pair.shard.link.statistics().late_bells == 0


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


async def test_the_guard_finds_data_whose_bell_was_lost_and_counts_it(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    pair.connect()
    shard = Running(pair.shard.link)
    nursery.start_soon(shard.run)
    while not pair.shard.link._asleep:
        await trio.testing.wait_all_tasks_blocked()
    with monkeypatch.context() as lost:
        lost.setattr(os, "eventfd_write", lambda fd, value: None)
        pair.front.link.send("n", b"")
        pair.front.link.flush()
    started = trio.current_time()
    await shard.inbox.receive()
    assert trio.current_time() - started <= link_module.GUARD_S
    assert pair.shard.link.statistics().late_bells == 1


async def test_a_release_that_nobody_flushes_goes_out_with_the_guard(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    pair = Pair()
    pair.connect()
    shard = Running(pair.shard.link)
    nursery.start_soon(shard.run)
    pair.front.link.send("a", b"", bytes(5000))
    pair.front.link.flush()
    shard.link.release(await shard.inbox.receive())
    await trio.sleep(2 * link_module.GUARD_S)
    assert shard.link.backlog_bytes == 0
    pair.front.turn()
    assert pair.front.link.statistics().arena_used_bytes == 0


async def test_all_links_of_a_process_share_one_guard(nursery: trio.Nursery) -> None:
    pairs = [Pair() for _ in range(3)]
    for pair in pairs:
        nursery.start_soon(Running(pair.front.link).run)
    await trio.testing.wait_all_tasks_blocked()
    assert Guard.of_this_run().links == {pair.front.link for pair in pairs}
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()
    assert Guard.of_this_run().links == set()


# --- two processes ---

BIG = replace(SMALL, ring_bytes=64 * 1024, inline_bytes=20_000, arena_bytes=64 * PAGE_BYTES)


def sealed(rng: random.Random, length: int, mark: bytes) -> bytes:
    body = rng.randbytes(length)
    return mark + zlib.crc32(body).to_bytes(4, "little") + body


def check(attachment: bytes | memoryview, mark: bytes) -> None:
    body = bytes(attachment)
    assert body[:1] == mark
    assert zlib.crc32(body[5:]) == int.from_bytes(body[1:5], "little")


def fork(body: Callable[[], None]) -> int:
    """A plain child that leaves with status 0 when ``body`` returns, with 1 when it raises."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def serve(pair: Pair, answer: Callable[[Link, MessageFrame], None]) -> None:
    trio.run(Running(Link(pair.memory, pair.board, Side.SHARD, pair.settings), answer).run)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, (
        "it was alive until we killed it"
    )


@pytest.mark.slow
def test_tens_of_thousands_of_messages_of_any_size_between_two_processes() -> None:
    pair = Pair(BIG)

    def checked_echo(link: Link, frame: MessageFrame) -> None:
        check(frame.attachment, b"q")
        echo(link, frame)

    async def drive(total: int = 20_000, window: int = 50) -> None:
        rng = random.Random(5)
        front = Running(pair.front.link)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(front.run)
            await front.opened.wait()
            sent = answered = 0
            while answered < total:
                while sent < total and sent - answered < window:
                    size = (
                        rng.choice([0, 19_995, 19_996, 100_000])
                        if sent % 50 == 0
                        else rng.randrange(400)
                    )
                    front.link.send("n", b"%d" % sent, sealed(rng, size, b"q"))
                    sent += 1
                front.link.flush()
                frame = await front.inbox.receive()
                assert frame.payload == b"%d" % answered
                check(frame.attachment, b"q")
                front.link.release(frame)
                answered += 1
            nursery.cancel_scope.cancel()

    pid = fork(lambda: serve(pair, checked_echo))
    try:
        trio.run(drive)
    finally:
        kill(pid)
        pair.close()
    assert (
        pair.front.link.statistics().late_bells <= 3
    )  # the guard may look between a store and its bell


class MarkedFront:
    """A front that always has requests under way; each carries the number of the session that it
    was sent in.
    """

    def __init__(self, pair: Pair, seed: int, last_session: int) -> None:
        self.link = Link(pair.memory, pair.board, Side.FRONT, pair.settings)
        self.rng = random.Random(seed)
        self.last_session = last_session
        self.answered = 0
        self.finished = trio.Event()

    def ask(self) -> None:
        size = self.rng.choice([10, 500, 500, 15_000, 60_000])
        with contextlib.suppress(PeerGone):  # the bump may come before the link has noticed
            self.link.send("n", b"", sealed(self.rng, size, bytes([self.link._session])))

    def on_open(self) -> None:
        self.answered = 0
        for _ in range(20):
            self.ask()

    def on_messages(self, frames: list[MessageFrame]) -> None:
        for frame in frames:
            check(frame.attachment, bytes([self.link._session]))
            self.link.release(frame)
            self.ask()
        self.answered += len(frames)
        if self.link._session == self.last_session and self.answered > 200:
            self.finished.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.link.run, self.on_open, self.on_messages, lambda: None)
            await self.finished.wait()
            nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_shard_killed_in_the_middle_is_replaced_and_no_byte_of_the_old_session_is_seen(
    seed: int,
) -> None:
    pair, rng, deaths = Pair(BIG), random.Random(seed), 5
    busy = os.eventfd(0)

    def shard() -> None:
        countdown = rng.randrange(1, 200)

        def answer(link: Link, frame: MessageFrame) -> None:
            nonlocal countdown
            check(frame.attachment, bytes([link._session]))
            echo(link, frame)
            countdown -= 1
            if not countdown:
                os.eventfd_write(busy, 1)

        serve(pair, answer)

    front = fork(lambda: trio.run(MarkedFront(pair, seed, last_session=1 + deaths).run))
    child = fork(shard)
    for _ in range(deaths):
        assert select.select([busy], [], [], 30)[0], "the shard of this session answers"
        os.eventfd_read(busy)
        kill(child)
        rng.random()  # the next shard lives another time
        pair.bump()
        child = fork(shard)
    assert os.waitstatus_to_exitcode(os.waitpid(front, 0)[1]) == 0, (
        "the front saw only answers of its own session, unhurt"
    )
    kill(child)
    os.close(busy)
    pair.close()
