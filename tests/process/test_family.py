"""The births and ends of children, without a process: what the board and the links hear of them."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.actors.link.link_support import SMALL
from topics.actors.link.board import Board, ShardState
from topics.actors.link.key_table import KeyTable
from topics.actors.link.process_id import ProcessId, ProcessKind, front_id, shard_id
from topics.process import family as module
from topics.process.family import Family, Shared, Workers
from topics.process.notify import Notifier
from topics.process.topology import LinkRule, Links

KINDS = frozenset({ProcessKind.FRONT, ProcessKind.SHARD})


@pytest.fixture
def shared() -> Iterator[Shared]:
    board = Board.create(2, 2)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    links = Links(board, [LinkRule(KINDS, SMALL)])
    yield Shared(board, links, listeners, Notifier(), KeyTable())
    for listener in listeners:
        listener.close()
    for memory in links:
        memory.close()


@pytest.fixture
def family(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> Family:
    """Its forks give pids from 101 on, and no process."""
    pids = iter(range(101, 200))

    def no_fork(name: str, main: Callable[[], None], *, log_level: str) -> int:
        return next(pids)

    monkeypatch.setattr(module, "fork", no_fork)
    return Family(shared, Workers(lambda _: None, lambda _: None), "info")


def test_shards_come_before_the_fronts_that_ask_them(family: Family) -> None:
    assert [child.name for child in family] == ["shard 0", "shard 1", "front 0", "front 1"]
    assert family.alive() == []


def test_what_a_child_shares_is_loaded_before_its_fork(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def no_fork(name: str, main: Callable[[], None], *, log_level: str) -> int:
        done.append(name)
        return 101

    def load(kind: str) -> Callable[[], None]:
        return lambda: done.append(f"load {kind}")

    monkeypatch.setattr(module, "fork", no_fork)
    workers = Workers(lambda _: None, lambda _: None, load("front"), load("shard"))
    family = Family(shared, workers, "info")
    family.spawn(family.fronts[0], 5.0)
    family.spawn(family.shards[1], 5.0)
    assert done == ["load front", "front 0", "load shard", "shard 1"]


def test_a_forked_child_stands_on_the_board_with_its_pid_and_spawns(
    family: Family, shared: Shared
) -> None:
    family.spawn(family.shards[1], 5.0)
    words = shared.board.shard(1)
    assert (words.pid, words.spawns) == (101, 1)
    assert family.alive() == [family.shards[1]]


def test_a_fork_that_fails_is_planned_again(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> int:
        raise BlockingIOError(11, "no room for a process")

    monkeypatch.setattr(module, "fork", no_room)
    child = family.fronts[0]
    for _ in range(3):
        family.spawn(child, 10.0)
    assert (child.pid, child.due) == (0, 10.2)
    assert family.alive() == []


def test_the_end_of_a_child_clears_its_words_and_ends_its_sessions_only(
    family: Family, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    for child in family:
        family.spawn(child, 0.0)
    board = shared.board
    board.shard(0).state = board.shard(1).state = ShardState.READY
    waited = iter([(999, 0), (102, signal.SIGKILL), (0, 0)])  # 999 is an orphan of somebody else
    monkeypatch.setattr(os, "waitpid", lambda _pid, _options: next(waited))
    assert list(family.reap()) == [(family.shards[1], 102, signal.SIGKILL)]
    assert (board.shard(1).pid, board.shard(0).pid) == (0, 101)
    assert board.shard(1).state is not ShardState.READY
    assert board.shard(0).state is ShardState.READY
    sessions = [[board.session(front_id(f), shard_id(s)) for s in range(2)] for f in range(2)]
    assert sessions == [[1, 2], [1, 2]]


def test_a_signal_goes_to_those_that_run(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    family.spawn(family.fronts[1], 0.0)
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    family.send(signal.SIGTERM, family)
    assert sent == [(101, signal.SIGTERM)]


@pytest.mark.parametrize(
    ("own", "open_listeners"),
    [(front_id(1), [False, True]), (shard_id(0), [False, False])],
)
def test_a_child_keeps_no_listener_but_its_own(
    family: Family, shared: Shared, own: ProcessId, open_listeners: list[bool]
) -> None:
    (child,) = [child for child in family if child.id == own]
    replace(shared, links=Links(shared.board, [])).keep(child)
    assert [listener.fileno() >= 0 for listener in shared.listeners] == open_listeners
