"""A link between two processes, of which one is killed during the traffic."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import traceback
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from tests.actors.link.link_support import SMALL, Pair, Running, echo
from tests.support.polling import is_readable
from topics.actors.link.arena import PAGE_BYTES
from topics.actors.link.link import Link
from topics.actors.link.process_id import FRONT, shard_id
from topics.formats.wire.message import Message, PeerClosed

BIG = replace(SMALL, ring_bytes=64 * 1024, inline_bytes=20_000, arena_bytes=64 * PAGE_BYTES)


def sealed(rng: random.Random, length: int, mark: bytes) -> bytes:
    body = rng.randbytes(length)
    return mark + zlib.crc32(body).to_bytes(4, "little") + body


def check(attachment: bytes | memoryview, mark: bytes) -> None:
    body = bytes(attachment)
    assert body[:1] == mark
    assert zlib.crc32(body[5:]) == int.from_bytes(body[1:5], "little")


def fork(body: Callable[[], None]) -> int:
    """Fork a child that exits with status 0 when ``body`` returns, and with 1 when it raises."""
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


def serve(pair: Pair, answer: Callable[[Link, Message], None]) -> None:
    trio.run(Running(Link(pair.memory, pair.board, shard_id(0)), answer).run)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, (
        "the process was alive until the kill"
    )


@pytest.mark.slow
def test_two_processes_exchange_tens_of_thousands_of_messages_of_any_size() -> None:
    pair = Pair(BIG)

    def checked_echo(link: Link, frame: Message) -> None:
        check(frame.attachment, b"q")
        echo(link, frame)

    async def drive(total: int = 20_000, window: int = 50) -> None:
        rng = random.Random(5)
        front = Running(pair.front.link)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(front.run)
            await front.opened.wait()
            sent = received = 0
            while received < total:
                while sent < total and sent - received < window:
                    size = (
                        rng.choice([0, 19_995, 19_996, 100_000])
                        if sent % 50 == 0
                        else rng.randrange(400)
                    )
                    front.link.send("n", b"%d" % sent, sealed(rng, size, b"q"))
                    sent += 1
                front.link.flush()
                frame = await front.inbox.receive()
                assert frame.payload == b"%d" % received
                check(frame.attachment, b"q")
                front.link.release(frame)
                received += 1
            nursery.cancel_scope.cancel()

    pid = fork(lambda: serve(pair, checked_echo))
    try:
        trio.run(drive)
    finally:
        kill(pid)
        pair.close()
    assert pair.front.link.late_bells <= 3  # The guard may check between a store and its doorbell


class MarkedFront:
    """A front that always has requests in flight. Each contains the number of its session."""

    def __init__(self, pair: Pair, seed: int, last_session: int) -> None:
        self.link = Link(pair.memory, pair.board, FRONT)
        self.rng = random.Random(seed)
        self.last_session = last_session
        self.received = 0
        self.finished = trio.Event()

    def send_request(self) -> None:
        size = self.rng.choice([10, 500, 500, 15_000, 60_000])
        # A new session may begin before the link notices it
        with contextlib.suppress(PeerClosed):
            self.link.send("n", b"", sealed(self.rng, size, bytes([self.link._session])))

    def on_open(self) -> None:
        self.received = 0
        for _ in range(20):
            self.send_request()

    def on_messages(self, frames: list[Message]) -> None:
        for frame in frames:
            check(frame.attachment, bytes([self.link._session]))
            self.link.release(frame)
            self.send_request()
        self.received += len(frames)
        if self.link._session == self.last_session and self.received > 200:
            self.finished.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.link.run, self.on_open, self.on_messages, lambda: None)
            await self.finished.wait()
            nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_shard_is_replaced_and_no_byte_of_the_old_session_is_received(
    seed: int,
) -> None:
    pair, rng, deaths = Pair(BIG), random.Random(seed), 5
    busy = os.eventfd(0)

    def shard() -> None:
        countdown = rng.randrange(1, 200)

        def answer(link: Link, frame: Message) -> None:
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
        assert is_readable(busy, 30), "the shard of this session replies"
        os.eventfd_read(busy)
        kill(child)
        rng.random()  # The next shard runs for a different time
        pair.bump()
        child = fork(shard)
    assert os.waitstatus_to_exitcode(os.waitpid(front, 0)[1]) == 0, (
        "the front received only intact replies of its own session"
    )
    kill(child)
    os.close(busy)
    pair.close()
