"""Starts and ends of children without real processes: the effects on the board and on the links."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tests.actors.link.link_support import SMALL
from topics.actors.link.board import Board, ShardCells, ShardState
from topics.actors.link.key_table import KeyTable
from topics.actors.link.link import Link
from topics.actors.link.link_memory import LinkSizes
from topics.actors.link.process_id import FRONT, ProcessId, shard_id
from topics.config import Settings
from topics.formats.wire.message import Message
from topics.process import family as module
from topics.process.family import Child, ChildMains, Family, Links, Shared, descriptors_of
from topics.process.notify import Notifier

SHARDS = 16


@pytest.fixture
def shared() -> Iterator[Shared]:
    board = Board(2)
    links = Links(board, SMALL)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Shared(board, links, listener, Notifier(), KeyTable())
    for memory in links:
        memory.close()


@pytest.fixture
def family(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> Family:
    """A family whose forks return pids from 101 on and create no process."""
    pids = iter(range(101, 200))

    def no_fork(name: str, main: Callable[[], None], *, log_level: str) -> int:
        return next(pids)

    monkeypatch.setattr(module, "fork", no_fork)
    return Family(shared, ChildMains(lambda: None, lambda _: None), "info")


def test_modules_that_children_share_are_loaded_before_the_fork(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def no_fork(name: str, main: Callable[[], None], *, log_level: str) -> int:
        done.append(name)
        return 101

    def load(kind: str) -> Callable[[], None]:
        return lambda: done.append(f"load {kind}")

    monkeypatch.setattr(module, "fork", no_fork)
    workers = ChildMains(lambda: None, lambda _: None, load("front"), load("shard"))
    family = Family(shared, workers, "info")
    family.spawn(family.front, 5.0)
    family.spawn(family.shards[1], 5.0)
    assert done == ["load front", "front 0", "load shard", "shard 1"]


def test_a_forked_child_is_on_the_board_with_its_pid_and_spawn_count(
    family: Family, shared: Shared
) -> None:
    family.spawn(family.shards[1], 5.0)
    cells = shared.board.shard(1)
    assert (cells.pid, cells.spawns) == (101, 1)
    assert family.alive() == [family.shards[1]]


def test_a_failed_fork_is_scheduled_again(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_fork(*_: object, **__: object) -> int:
        raise BlockingIOError(11, "no resources for a process")

    monkeypatch.setattr(module, "fork", failing_fork)
    child = family.front
    for _ in range(3):
        family.spawn(child, 10.0)
    assert (child.pid, child.due) == (0, 10.2)
    assert family.alive() == []


def test_the_end_of_a_child_clears_its_fields_and_ends_only_its_own_sessions(
    family: Family, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    for child in family:
        family.spawn(child, 0.0)
    board = shared.board
    board.shard(0).state = board.shard(1).state = ShardState.READY
    waited = iter([(999, 0), (102, signal.SIGKILL), (0, 0)])  # 999 is an orphan of another process
    monkeypatch.setattr(os, "waitpid", lambda _pid, _options: next(waited))
    assert list(family.reap()) == [(family.shards[1], 102, signal.SIGKILL)]
    assert (board.shard(1).pid, board.shard(0).pid) == (0, 101)
    assert board.shard(1).state is not ShardState.READY
    assert board.shard(0).state is ShardState.READY
    assert {memory.ends: board.session(*memory.ends) for memory in shared.links} == {
        (FRONT, shard_id(0)): 1,
        (FRONT, shard_id(1)): 2,
        (shard_id(0), shard_id(1)): 2,
    }
    (_, between) = shared.links.of(shard_id(0))
    assert [os.eventfd_read(bell) for bell in between.bells] == [1, 1]


@pytest.mark.parametrize(("own", "keeps"), [(FRONT, True), (shard_id(0), False)])
def test_only_the_front_keeps_the_listener(
    family: Family, shared: Shared, own: ProcessId, keeps: bool
) -> None:
    (child,) = [child for child in family if child.id == own]
    with shared.listener.dup() as listener:
        replace(shared, links=Links(Board(0), SMALL), listener=listener).keep(child)
        assert (listener.fileno() >= 0) == keeps


# Links


@pytest.fixture
def many() -> Iterator[tuple[Board, Links]]:
    board = Board(SHARDS)
    links = Links(board, LinkSizes.of(Settings()))
    yield board, links
    for memory in links:
        memory.close()


def resident_kib() -> int:
    """Return the resident memory of this process, including shared pages."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, of the kernel's own list


def test_a_child_keeps_only_the_doorbells_of_its_own_links() -> None:
    before, before_kib = descriptors(), resident_kib()
    links = Links(Board(SHARDS), SMALL)
    assert descriptors() - before == 2 * (SHARDS + SHARDS * (SHARDS - 1) // 2)
    assert descriptors() - before == descriptors_of(SHARDS)
    assert resident_kib() - before_kib < 1024, "unused links must need hardly any memory"
    links.keep(shard_id(3))
    assert descriptors() - before == 2 * (1 + SHARDS - 1)
    for memory in links.of(shard_id(3)):
        memory.close()
    assert descriptors() == before


async def test_any_two_of_16_shards_can_exchange_messages_and_their_links_stay_small(
    nursery: trio.Nursery, many: tuple[Board, Links]
) -> None:
    """All 240 ends are in one process. Each sends its name to its peer, with a body larger than
    the ring.
    """
    board, links = many
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

    for process in board.processes[1:]:
        for memory in links.of(process)[1:]:
            start(Link(memory, board, process))
    await everything.wait()
    assert got == {
        (str(shard_id(a)), str(shard_id(b))) for a in range(SHARDS) for b in range(SHARDS) if a != b
    }
    per_link_kib = (resident_kib() - before_kib) / len(list(links))
    assert per_link_kib < 1024, "more memory than the sent data in both directions"
    assert threading.active_count() == before_threads, "a link has started a thread"


# Restart delays


@pytest.mark.parametrize("lived_s", [0.0, 1.5, 29.0])
def test_restart_delays_double_up_to_five_seconds_for_runs_shorter_than_half_a_minute(
    lived_s: float,
) -> None:
    child = a_child()
    delays, now = [], 100.0
    for _ in range(10):
        now = live(child, now, lived_s)
        delays.append(child.schedule(now))
        assert child.due == now + delays[-1]
    assert delays == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_half_a_minute_of_service_resets_the_restart_delay_but_recovery_does_not() -> None:
    child = a_child()
    delays, now = [], 100.0
    for lived_s, state in [
        (0.0, "READY"),
        (0.0, "READY"),
        (60.0, "RECOVERING"),
        (30.0, "READY"),
        (0.0, "READY"),
    ]:
        now = live(child, now, lived_s, ShardState[state])
        delays.append(child.schedule(now))
    assert delays == [0.0, 0.1, 0.2, 0.0, 0.1]


def test_a_shard_whose_loop_hangs_in_the_disk_is_alive_while_its_silence_grows() -> None:
    child = a_child()
    live(child, 100.0, 0.0)
    cells = child.cells
    assert isinstance(cells, ShardCells)
    for second in range(1, 61):
        cells.disk_silent_ms = second * 1000
        assert child.watch(100.0 + second) == 0.0
    assert child.watch(161.0) == 1.0


def test_a_heartbeat_counts_only_for_the_process_that_gave_it() -> None:
    child = a_child()
    for heartbeat_ms in (100, 200):
        child.begin(0.0)
        assert not child.has_heartbeat
        child.cells.heartbeat_ms = heartbeat_ms
        assert child.has_heartbeat


def a_child() -> Child:
    return Child(shard_id(0), Board(1), lambda: None)


def live(child: Child, now: float, lived_s: float, state: ShardState = ShardState.READY) -> float:
    """Simulate one run of a child and return the time of its end."""
    child.spawned_at, child.up_at = now, math.inf
    assert isinstance(child.cells, ShardCells)
    child.cells.state = state
    child.watch(now)
    return now + lived_s
