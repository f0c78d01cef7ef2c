"""Both ends of a link in one process, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio
import trio.testing

from topics.actors.link.arena import PAGE_BYTES, ArenaMemory, ArenaReader, ArenaWriter
from topics.actors.link.board import Board
from topics.actors.link.link import Link
from topics.actors.link.link_memory import LinkMemory, LinkSizes
from topics.actors.link.process_id import FRONT, ProcessId, shard_id
from topics.formats.wire.message import Message

SMALL = LinkSizes(ring_bytes=8192, inline_bytes=1000, arena_bytes=16 * PAGE_BYTES)


@dataclass
class End:
    """A link whose iterations the test runs, and the received messages."""

    link: Link
    got: list[Message] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def run_once(self) -> list[Message]:
        before = len(self.got)
        self.link.run_once(
            lambda: self.log.append("open"), self.got.extend, lambda: self.log.append("close")
        )
        return self.got[before:]


class Pair:
    """Both ends on one board. `restart_shard` acts as the supervisor does when a shard has died."""

    def __init__(self, sizes: LinkSizes = SMALL) -> None:
        self.board = Board(1)
        self.memory = LinkMemory(FRONT, shard_id(0), sizes)
        self.front = self.end(FRONT)
        self.shard = self.end(shard_id(0))

    def end(self, process: ProcessId) -> End:
        return End(Link(self.memory, self.board, process))

    def connect(self) -> None:
        for end in (self.front, self.shard, self.front):
            end.run_once()
        assert self.front.link.connected
        assert self.shard.link.connected

    def bump(self) -> None:
        self.board.bump_session(*self.memory.ends)
        self.memory.ring_doorbells()

    def restart_shard(self) -> None:
        self.bump()
        self.shard = self.end(shard_id(0))

    def close(self) -> None:
        self.memory.close()


def exchange(sender: End, receiver: End) -> list[Message]:
    """Run iterations of both ends until no message to ``receiver`` is in flight."""
    got: list[Message] = []
    sender.link.flush()
    while (frames := receiver.run_once()) or sender.link.backlog_bytes:
        got += frames
        sender.run_once()
    return got


class Fence:
    """A fence that calls a function."""

    def __init__(self, fence: Callable[[], None]) -> None:
        self._fence = fence

    def __enter__(self) -> None:
        self._fence()

    def __exit__(self, *_: object) -> None:
        """Do nothing, because the function was called at the beginning of the fence."""


class Running:
    """A link under trio with an inbox to wait on."""

    def __init__(self, link: Link, answer: Callable[[Link, Message], None] | None = None) -> None:
        self.link = link
        self.answer = answer
        self.log: list[str] = []
        self.opened = trio.Event()
        self.send, self.inbox = trio.open_memory_channel[Message](10_000)

    async def run(self) -> None:
        await self.link.run(self.on_open, self.on_messages, lambda: self.log.append("close"))

    def on_open(self) -> None:
        self.log.append("open")
        self.opened.set()

    def on_messages(self, frames: list[Message]) -> None:
        for frame in frames:
            if self.answer:
                self.answer(self.link, frame)
            else:
                self.send.send_nowait(frame)


def echo(link: Link, frame: Message) -> None:
    link.send(frame.subject, bytes(frame.payload), frame.attachment)
    link.release(frame)


async def start_sleeping(nursery: trio.Nursery, pair: Pair) -> Running:
    """Return the running and sleeping shard end of a connected pair."""
    pair.connect()
    shard = Running(pair.shard.link)
    nursery.start_soon(shard.run)
    while not pair.shard.link._is_asleep:
        await trio.testing.wait_all_tasks_blocked()
    return shard


def arena_ends(pages: int = 16) -> tuple[ArenaMemory, ArenaWriter, ArenaReader]:
    """Return an arena and both of its ends in session 1."""
    memory = ArenaMemory(pages * PAGE_BYTES)
    writer, reader = ArenaWriter(memory), ArenaReader(memory)
    writer.begin(1)
    reader.begin(1)
    return memory, writer, reader
