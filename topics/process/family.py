"""Family: the child processes of a supervisor. Forks them, sends them signals and reaps them.

Each pair of child processes has a link. The board has a session number for each pair. The shared
memory of an unused link takes no physical memory, so a link costs only two descriptors in the
supervisor. If links were created on first use, descriptors would have to be passed to running
processes. A hub process would copy each message into a second ring, and its failure would
disconnect all other processes.

               fork                serves            30 s of service
    WAITING ──────────▶ STARTED ─────────────▶ UP ───────────────────▶ UP, delay reset
       ▲                   │                    │                          │
       └── back-off ◀──────┴──────── death ◀────┴──────────────────────────┘

The first restart is immediate. The delay of the next restart is 0.1 s, and it doubles with each
death up to 5 s. After a child has served for HEALTHY_S, its delay starts from zero again. A shard
with damaged data is never restarted.

A child closes the descriptors that it does not use: only the front keeps the listening socket, and
each child keeps only the doorbells of its own links. After the supervisor has reaped a child, it
clears the fields of the child on the board and ends its link sessions, and only then forks the
successor. So no process confuses the successor with the dead process.
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
from topics.actors.link.board import Board, ShardCells
from topics.actors.link.key_table import KeyTable
from topics.actors.link.link_memory import LinkMemory, LinkSizes
from topics.actors.link.liveness import Liveness
from topics.actors.link.process_id import FRONT, ProcessId
from topics.process.children import fork
from topics.process.notify import Notifier
from topics.storage.folders import Folders

log = structlog.get_logger()


DOORBELLS: Final = 2  # number of doorbells per link
# Links between shards have no arena. Long attachments are sent through the ring in fragments.
SHARD_LINK: Final = LinkSizes(ring_bytes=256 << 10, inline_bytes=64 << 10, arena_bytes=0)

HEALTHY_S = 30.0  # After a child has served for this time, its restart delay is reset.
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0
# The counter of consecutive deaths stops at this value. The delay reaches its maximum much earlier.
FAILURES_MAX = 16
# The board states in which a process serves requests. SERVING is a state of the front, and the
# others are states of shards.
UP_STATES = frozenset({"READY", "READ_ONLY", "NO_ROOM", "DIRECTORY_LOST", "SERVING"})


def descriptors_of(shards: int) -> int:
    """Return the number of descriptors that the links of ``shards`` shards use in the supervisor.

    There is a link for each pair among the shards and the front.
    """
    return DOORBELLS * (shards + 1) * shards // 2


class Links:
    """The shared memory of all links of a server. The supervisor creates it before any fork."""

    def __init__(self, board: Board, sizes: LinkSizes) -> None:
        """Create all links. ``sizes`` applies to the links between the front and the shards."""
        self._board = board
        self._memories = [
            LinkMemory(one, other, sizes if one == FRONT else SHARD_LINK)
            for one, other in combinations(board.processes, 2)
        ]

    def __iter__(self) -> Iterator[LinkMemory]:
        return iter(self._memories)

    def of(self, process: ProcessId) -> list[LinkMemory]:
        """Return the links of ``process``, ordered by the process at the other end."""
        return [memory for memory in self._memories if process in memory.ends]

    def end_sessions(self, process: ProcessId) -> None:
        """End the link sessions of ``process``, which has died, and wake the other ends."""
        for memory in self.of(process):
            self._board.bump_session(*memory.ends)
            memory.ring_doorbells()

    def keep(self, process: ProcessId) -> None:
        """Close the doorbells of all links between other processes. Called in the child
        ``process``.
        """
        for memory in self._memories:
            if process not in memory.ends:
                memory.close()


class Child:
    """The supervisor's record of one child, across all processes that are forked for it.

    Times are seconds of the monotonic clock.
    """

    def __init__(self, id: ProcessId, board: Board, main: Callable[[], None]) -> None:
        self.id = id
        self.name = str(id)
        self.cells = board.process(id)
        self.main = main
        self.pid = 0  # 0 while no process runs
        self.due = 0.0  # time of the next fork; meaningful while no process runs
        self.failures = 0  # number of consecutive deaths
        self.spawned_at = 0.0
        self.up_at = math.inf  # time at which the supervisor first saw the process serve
        self.pulse = Liveness()
        self._heartbeat_ms_before = 0  # the last heartbeat of the previous process
        self.is_stalled = False  # True once the missing signs of life have been logged.
        # SIGKILL was sent because the process had stalled, and the process has not been reaped yet.
        self.is_being_killed = False
        self.is_damaged = False  # True if the data is damaged, so the child is not restarted.

    @property
    def is_up(self) -> bool:
        """Whether the process serves requests. A shard that serves only reads counts as up."""
        return self.cells.state.name in UP_STATES

    @property
    def has_heartbeat(self) -> bool:
        """Whether the process has sent a heartbeat since the fork. It imports its modules before
        its first heartbeat.
        """
        return self.cells.heartbeat_ms != self._heartbeat_ms_before

    def begin(self, now: float) -> None:
        """Record that a new process is forked at ``now``."""
        self.spawned_at, self.up_at = now, math.inf
        self._heartbeat_ms_before = self.cells.heartbeat_ms
        self.is_stalled = self.is_being_killed = False
        self.cells.spawns += 1

    def watch(self, now: float) -> float:
        """Check for a sign of life. Return the number of seconds since the last sign of life.

        Signs of life are a heartbeat, a change of state and progress of a replay.
        """
        cells = self.cells
        if self.is_up:
            self.up_at = min(self.up_at, now)
        sign = [cells.spawns, cells.heartbeat_ms, cells.state]
        if isinstance(cells, ShardCells):
            # `disk_silent_ms` grows while the loop itself is blocked by the disk. It counts as a
            # sign of life, so that the supervisor does not kill a shard that waits for a slow disk.
            sign += cells.progress_ppm, cells.disk_silent_ms
        return self.pulse.observe(tuple(sign), now)

    def schedule(self, now: float) -> float:
        """Schedule the restart after a death or a failed fork. Returns the delay in seconds."""
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
class ChildMains:
    """The main functions of the children. ``shard`` is called with the index of the shard.

    The ``load_*`` functions import modules in the parent before each fork. Only the first call
    takes time (`topics.process.serve`).
    """

    front: Callable[[], None]
    shard: Callable[[int], None]
    load_front: Callable[[], None] = _nothing
    load_shard: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Shared:
    """The resources that the processes of a server share, created before the first fork."""

    board: Board
    links: Links
    listener: socket.socket  # used by the front
    notifier: Notifier  # used by the supervisor only
    keys: KeyTable
    folders: Sequence[Folders] = ()  # one for each shard; the front reads files there for backups

    def keep(self, child: Child) -> None:
        """Close the resources that ``child`` does not use. Called in the child process."""
        self.notifier.close()
        if child.id != FRONT:
            # If a shard kept a copy, the socket would stay open after the supervisor has closed
            # it. Clients would then wait for a connection that no process accepts.
            self.listener.close()
        self.links.keep(child.id)


class Family:
    """The child processes of one server: the front and the shards."""

    def __init__(self, shared: Shared, workers: ChildMains, log_level: str) -> None:
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
        """Return the children that have a running process."""
        return [child for child in self if child.pid]

    def spawn(self, child: Child, now: float) -> None:
        """Fork the child. If the system cannot create a process, schedule another attempt."""
        (self._workers.load_front if child is self.front else self._workers.load_shard)()
        child.begin(now)
        try:
            child.pid = fork(child.name, lambda: self._run(child), log_level=self._log_level)
        except OSError as error:
            delay_s = child.schedule(now)
            log.warning("fork failed", child=child.name, error=error.strerror, retry_in_s=delay_s)
            return
        child.cells.pid = child.pid
        log.info(
            "process started", child=child.name, child_pid=child.pid, spawns=child.cells.spawns
        )

    def _run(self, child: Child) -> None:
        self._shared.keep(child)
        child.main()

    def reap(self) -> Iterator[tuple[Child, int, int]]:
        """Reap the children that have ended. Yield each child with its former pid and its wait
        status.
        """
        by_pid = {child.pid: child for child in self.alive()}
        while by_pid:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            # If the supervisor is process 1 of a container, it also inherits and reaps orphaned
            # processes. Their pids are ignored.
            if child := by_pid.pop(pid, None):
                self._record_exit(child)
                yield child, pid, wait_status

    def _record_exit(self, child: Child) -> None:
        board, child.pid, child.is_stalled = self._shared.board, 0, False
        child.cells.clear()
        counters.reset_gauges(board, child.id)
        self._shared.links.end_sessions(child.id)

    def send(self, number: signal.Signals, children: Iterable[Child]) -> None:
        """Send a signal to each of ``children`` that has a running process."""
        for child in children:
            if child.pid:
                # The kernel does not reuse the pid of a child that is not yet reaped.
                os.kill(child.pid, number)

    def kill_all(self) -> None:
        """Kill and reap all children. This is also called if the supervisor fails."""
        self.send(signal.SIGKILL, self)
        for child in self.alive():
            os.waitpid(child.pid, 0)
            child.pid = 0
