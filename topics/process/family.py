"""The family: all children of a supervisor, their births, signals and ends.

Any two of them are linked. The board has a session number for any pair, and memory that nobody
touches costs nothing; what a link does cost is two descriptors in the supervisor. Links that are
made when they are first used would pass descriptors to running processes; a hub would put every
message into a ring twice, and be one more process to die.

               fork                serves            30 s of service
    WAITING ──────────▶ STARTED ─────────────▶ UP ───────────────────▶ UP, clean record
       ▲                   │                    │                          │
       └── back-off ◀──────┴──────── death ◀────┴──────────────────────────┘

The first restart comes at once, the next after 0.1 s, doubling up to 5 s, until a child has served
for HEALTHY_S. A child that is damaged is never due again.

A child keeps only what it uses: the front the listening socket, each the doorbells of its own
links. When a child is reaped, the supervisor clears its words on the board and ends its link
sessions before it forks the next one, so no process mistakes a successor for the dead.
"""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Final

import structlog

from topics.actors.link import counters
from topics.actors.link.board import Board, ShardWords
from topics.actors.link.key_table import KeyTable
from topics.actors.link.link_memory import LinkMemory, LinkSizes
from topics.actors.link.process_id import FRONT, ProcessId
from topics.actors.link.pulse import Pulse
from topics.process.children import fork
from topics.process.notify import Notifier
from topics.storage.folders import Folders

log = structlog.get_logger()


DOORBELLS: Final = 2  # of each link
# Without an arena: long attachments go through the ring in pieces.
SHARD_LINK: Final = LinkSizes(ring_bytes=256 << 10, inline_bytes=64 << 10, arena_bytes=0)

HEALTHY_S = 30.0  # a child that has served so long starts again with a clean record
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0
FAILURES_MAX = 16  # counted in a row; the back-off is at its maximum long before
UP_STATES = frozenset({"READY", "READ_ONLY", "NO_ROOM", "DIRECTORY_LOST", "SERVING"})


def descriptors_of(shards: int) -> int:
    """How many descriptors the links of so many shards take in the supervisor."""
    return DOORBELLS * (shards + 1) * shards // 2


class Links:
    """The memory of every link of a server. Made by the supervisor before any fork."""

    def __init__(self, board: Board, sizes: LinkSizes) -> None:
        """``sizes``: of the links over which the front asks shards."""
        self._board = board
        self._memories = [
            LinkMemory(one, other, sizes if one == FRONT else SHARD_LINK)
            for one, other in combinations(board.processes, 2)
        ]

    def __iter__(self) -> Iterator[LinkMemory]:
        return iter(self._memories)

    def of(self, process: ProcessId) -> list[LinkMemory]:
        """The links that end in ``process``, in the order of their other ends."""
        return [memory for memory in self._memories if process in memory.ends]

    def end_sessions(self, process: ProcessId) -> None:
        """``process`` has died: end the sessions of its links and wake the other ends."""
        for memory in self.of(process):
            self._board.bump_session(*memory.ends)
            memory.ring_doorbells()

    def keep(self, process: ProcessId) -> None:
        """In the child that is ``process``: close the doorbells of all links but its own."""
        for memory in self._memories:
            if process not in memory.ends:
                memory.close()


class Child:
    """One process id; processes come and go under it. Times are seconds of the monotonic clock."""

    def __init__(self, id: ProcessId, board: Board, main: Callable[[], None]) -> None:
        self.id = id
        self.name = str(id)
        self.words = board.process(id)
        self.main = main
        self.pid = 0
        self.due = 0.0  # when to fork it, if it is not there
        self.failures = 0  # deaths in a row
        self.spawned_at = 0.0
        self.up_at = math.inf  # when it was first seen to serve
        self.pulse = Pulse()
        self._heartbeat_ms_before = 0  # of its predecessor
        self.is_stalled = False  # and that has been logged
        self.is_condemned = False  # it was killed for it and is still there
        self.is_damaged = False  # it found data that cannot be trusted, and is not started again

    @property
    def is_up(self) -> bool:
        """A shard that answers, if only reads, or the front, when it serves."""
        return self.words.state.name in UP_STATES

    @property
    def has_beaten(self) -> bool:
        """Its heart has beaten since the fork; before, it imports."""
        return self.words.heartbeat_ms != self._heartbeat_ms_before

    def begin(self, now: float) -> None:
        """It is forked now."""
        self.spawned_at, self.up_at = now, math.inf
        self._heartbeat_ms_before = self.words.heartbeat_ms
        self.is_stalled = self.is_condemned = False
        self.words.spawns += 1

    def watch(self, now: float) -> float:
        """Look for a heartbeat or progress of the replay; for how many seconds there was none."""
        words = self.words
        if self.is_up:
            self.up_at = min(self.up_at, now)
        sign = [words.spawns, words.heartbeat_ms, words.state]
        if isinstance(words, ShardWords):
            # The second, because it grows while the loop itself hangs in the disk.
            sign += words.progress_ppm, words.disk_silent_ms
        return self.pulse.look(tuple(sign), now)

    def schedule(self, now: float) -> float:
        """Plan the restart after a death; the delay in seconds."""
        if now - self.up_at >= HEALTHY_S:
            self.failures = 0
        delay = 0.0
        if self.failures:
            delay = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** (self.failures - 1))
        self.failures = min(self.failures + 1, FAILURES_MAX)
        self.due = now + delay
        return delay


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class Workers:
    """What the children run; a shard takes its index. ``load_*`` run in the parent before each
    fork, and take time at the first one only (`topics.process.serve`).
    """

    front: Callable[[], None]
    shard: Callable[[int], None]
    load_front: Callable[[], None] = _nothing
    load_shard: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Shared:
    """What all processes of a server share, made before the first fork."""

    board: Board
    links: Links
    listener: socket.socket  # of the front
    notifier: Notifier  # of the supervisor alone
    keys: KeyTable
    folders: Sequence[Folders] = ()  # of each shard; the front reads files there for backups

    def keep(self, child: Child) -> None:
        """In the child: close what only others use."""
        self.notifier.close()
        if child.id != FRONT:
            # Clients would go on waiting at a copy from which no process accepts.
            self.listener.close()
        self.links.keep(child.id)


class Family:
    """The children of one server."""

    def __init__(self, shared: Shared, workers: Workers, log_level: str) -> None:
        board = shared.board
        self._shared = shared
        self._log_level = log_level
        self._workers = workers
        self.front = Child(FRONT, board, workers.front)
        self.shards = [
            Child(id, board, partial(workers.shard, id.index)) for id in board.processes[1:]
        ]

    def __iter__(self) -> Iterator[Child]:
        yield from self.shards
        yield self.front

    def alive(self) -> list[Child]:
        """The children that run."""
        return [child for child in self if child.pid]

    def spawn(self, child: Child, now: float) -> None:
        """Fork the child; when there is no room for a process, plan another attempt."""
        (self._workers.load_front if child is self.front else self._workers.load_shard)()
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
        child.main()

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
