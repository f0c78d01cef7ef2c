"""Which processes are linked, and what many links cost."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from topics.actors.link.board import Board
from topics.actors.link.link import Link
from topics.actors.link.process_id import ProcessKind, front_id, shard_id
from topics.config import Settings
from topics.formats.wire.message import Message
from topics.process.topology import Links, descriptors_of, fronts_with_shards, shards_with_shards

SHARDS = 16


@pytest.fixture
def closing() -> Iterator[Callable[[Links], Links]]:
    """Close the doorbells of links at the end of the test."""
    with contextlib.ExitStack() as stack:

        def close_later(links: Links) -> Links:
            for memory in links:
                stack.callback(memory.close)
            return links

        yield close_later


def resident_kib() -> int:
    """Memory of this process, shared pages included."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, of the kernel's own list


def test_every_front_is_linked_with_every_shard_and_with_nobody_else(
    closing: Callable[[Links], Links],
) -> None:
    board = Board.create(shards=3, fronts=2)
    links = closing(Links(board, [fronts_with_shards(Settings())]))
    assert [memory.ends for memory in links.of(front_id(1))] == [
        (front_id(1), shard_id(index)) for index in range(3)
    ]
    assert [memory.ends for memory in links.of(shard_id(2))] == [
        (front_id(index), shard_id(2)) for index in range(2)
    ]
    assert len(list(links)) == 6


def test_a_death_ends_the_sessions_of_its_links_only(closing: Callable[[Links], Links]) -> None:
    board = Board.create(shards=2, fronts=1)
    rules = [fronts_with_shards(Settings()), shards_with_shards()]
    links = closing(Links(board, rules))
    links.end_sessions(shard_id(1))
    sessions = {memory.ends: board.session(*memory.ends) for memory in links}
    assert sessions == {
        (front_id(0), shard_id(0)): 1,
        (front_id(0), shard_id(1)): 2,
        (shard_id(0), shard_id(1)): 2,
    }
    assert [os.eventfd_read(bell) for bell in links.of(shard_id(1))[0].bells] == [1, 1]


def test_a_child_keeps_the_doorbells_of_its_own_links_only() -> None:
    before = descriptors()
    board = Board.create(shards=SHARDS, fronts=1)
    rules = [fronts_with_shards(Settings()), shards_with_shards()]
    links = Links(board, rules)
    assert descriptors() - before == 2 * (SHARDS + SHARDS * (SHARDS - 1) // 2)
    assert descriptors() - before == descriptors_of(board, rules)
    links.keep(shard_id(3))
    assert descriptors() - before == 2 * (1 + SHARDS - 1)
    for memory in links.of(shard_id(3)):
        memory.close()
    assert descriptors() == before


def test_links_between_16_shards_cost_next_to_nothing_until_they_are_used(
    closing: Callable[[Links], Links],
) -> None:
    board = Board.create(shards=SHARDS, fronts=1)
    before_kib = resident_kib()
    links = closing(Links(board, [shards_with_shards()]))
    assert len(list(links)) == SHARDS * (SHARDS - 1) // 2
    assert resident_kib() - before_kib < 1024


async def test_any_two_of_16_shards_can_talk_and_their_links_stay_small(
    nursery: trio.Nursery, closing: Callable[[Links], Links]
) -> None:
    """All in one process: 240 ends, each tells its peer who it is, with a body past the ring."""
    board = Board.create(shards=SHARDS, fronts=1)
    links = closing(Links(board, [shards_with_shards()]))
    before_kib, before_threads = resident_kib(), threading.active_count()
    got: set[tuple[str, str]] = set()
    everything = trio.Event()

    def start(link: Link) -> None:
        def opened() -> None:
            link.send("hello", str(link.own).encode(), bytes(100_000))

        def arrived(messages: list[Message]) -> None:
            for message in messages:
                assert len(message.attachment) == 100_000
                got.add((bytes(message.payload).decode(), str(link.own)))
            if len(got) == SHARDS * (SHARDS - 1):
                everything.set()

        nursery.start_soon(link.run, opened, arrived, lambda: None)

    for process in board.processes(ProcessKind.SHARD):
        for memory in links.of(process):
            start(Link(memory, board, process))
    await everything.wait()
    assert got == {
        (str(shard_id(a)), str(shard_id(b))) for a in range(SHARDS) for b in range(SHARDS) if a != b
    }
    per_link_kib = (resident_kib() - before_kib) / len(list(links))
    assert per_link_kib < 1024, "about what was sent, in both directions"
    assert threading.active_count() == before_threads, "no link needs a thread"
