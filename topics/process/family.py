"""The family: all children of a supervisor, their births, signals and ends.

A child keeps only what it uses: its own listening socket and the doorbells of its own links. When a
child is reaped, the supervisor clears its words on the board and ends its link sessions before it
forks the next one, so no process mistakes a successor for the dead.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from topics.actors.link import counters, ledger
from topics.actors.link.board import Board
from topics.actors.link.key_table import KeyTable
from topics.actors.link.process_id import ProcessKind, front_id
from topics.process.child import Child
from topics.process.children import fork
from topics.process.notify import Notifier
from topics.process.topology import Links

log = structlog.get_logger()


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class Workers:
    """What the children run; each takes its index. ``load_*`` run in the parent before each fork,
    and take time at the first one only (`topics.process.preload`).
    """

    front: Callable[[int], None]
    shard: Callable[[int], None]
    load_front: Callable[[], None] = _nothing
    load_shard: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Shared:
    """What all processes of a server share, made before the first fork."""

    board: Board
    links: Links
    listeners: Sequence[socket.socket]  # one for each front
    notifier: Notifier  # of the supervisor alone
    keys: KeyTable

    def keep(self, child: Child) -> None:
        """In the child: close what only others use."""
        self.notifier.close()
        for index, listener in enumerate(self.listeners):
            # Clients would go on waiting at a copy from which no process accepts.
            if child.id != front_id(index):
                listener.close()
        self.links.keep(child.id)


class Family:
    """The children of one server."""

    def __init__(self, shared: Shared, workers: Workers, log_level: str) -> None:
        board = shared.board
        self._shared = shared
        self._log_level = log_level
        self._load = {
            ProcessKind.SHARD: workers.load_shard,
            ProcessKind.FRONT: workers.load_front,
        }
        self.shards = [Child(id, board, workers.shard) for id in board.processes(ProcessKind.SHARD)]
        self.fronts = [Child(id, board, workers.front) for id in board.processes(ProcessKind.FRONT)]

    def __iter__(self) -> Iterator[Child]:
        yield from self.shards
        yield from self.fronts

    def alive(self) -> list[Child]:
        """The children that run."""
        return [child for child in self if child.pid]

    def spawn(self, child: Child, now: float) -> None:
        """Fork the child; when there is no room for a process, plan another attempt."""
        self._load[child.id.kind]()
        child.begin(now)
        try:
            child.pid = fork(child.name, lambda: self._run(child), log_level=self._log_level)
        except OSError as error:
            delay_s = child.schedule(now)
            log.warning("fork failed", child=child.name, reason=error.strerror, again_in_s=delay_s)
            return
        child.words.pid = child.pid
        log.info(
            "process started", child=child.name, child_pid=child.pid, spawns=child.words.spawns
        )

    def _run(self, child: Child) -> None:
        self._shared.keep(child)
        child.main(child.id.index)

    def reap(self) -> Iterator[tuple[Child, int, int]]:
        """Each child that has ended, with the pid that it had and its wait status."""
        by_pid = {child.pid: child for child in self.alive()}
        while by_pid:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            # Other pids are orphans, which process 1 of a container inherits.
            if child := by_pid.pop(pid, None):
                self._bury(child)
                yield child, pid, wait_status

    def _bury(self, child: Child) -> None:
        board, child.pid, child.is_stalled = self._shared.board, 0, False
        child.words.clear()
        counters.forget_gauges(board, child.id)
        ledger.forget_counts(board, child.id)
        self._shared.links.end_sessions(child.id)

    def send(self, number: signal.Signals, children: Iterable[Child]) -> None:
        """Send a signal to those of ``children`` that run."""
        for child in children:
            if child.pid:
                os.kill(child.pid, number)  # ours and not yet reaped, so the pid is still its own

    def kill_all(self) -> None:
        """Kill and reap every child, whatever has failed."""
        self.send(signal.SIGKILL, self)
        for child in self.alive():
            os.waitpid(child.pid, 0)
            child.pid = 0
