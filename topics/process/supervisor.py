"""The supervisor: the parent of all processes of a server. It forks the processes, restarts
processes that die, and stops all of them in order.

The supervisor is synchronous: it has no event loop and no threads, so it can fork at any time. It
waits only for signals, with a timeout.

                    a child dies: DOWN, new session,                SIGTERM, SIGINT, or no shard
                    back-off, fork again                            with intact data remains
                       ┌──────┐                                              │
                       ▼      │                                              ▼
    start ─ fork ─▶  RUNNING ─┘  ─────────────────────────────▶  drain

SIGHUP does not stop the server. It reloads the keys (`topics.process.keys`).

The phases of a drain (the shutdown of the server) only move forward:

    FRONT    draining is set, SIGTERM to the front
      │      the front has ended, or 8/10 of drain_ms have passed
      ▼
    SHARDS   SIGTERM to the shards
      │      drain_ms have passed (if all shards end earlier ─▶ over)
      ▼
    KILL     SIGKILL to the remaining processes ─▶ over

The shards stop after the front, because the front needs them to complete the requests in flight.

A shard that finds damage in its data exits with `ExitCode.DAMAGED`. It is not restarted, and its
state on the board is DAMAGED, while the other shards continue to serve. When the server stops, its
own exit code is DAMAGED, too.
"""

from __future__ import annotations

import math
import os
import signal
import time
from enum import IntEnum

import structlog

from topics.actors.link.board import ShardCells, ShardState
from topics.config import Settings
from topics.errors import ExitCode
from topics.process.children import describe_exit, wait_for_signal
from topics.process.family import Child, ChildMains, Family, Shared
from topics.process.health import TICK_S, Health
from topics.process.keys import KeyReload

SIGNALS = frozenset({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

FRONT_SHARE = 0.8  # the fraction of drain_ms for the front; the rest is for the shards
# The time that a shutdown may take beyond drain_ms, because the kernel must free killed processes.
STOP_EXTENSION_MS = 5_000

log = structlog.get_logger()


class Supervisor:
    """The main loop of the parent process of one server."""

    def __init__(
        self, settings: Settings, shared: Shared, workers: ChildMains, keys: KeyReload
    ) -> None:
        self._keys = keys
        self._family = Family(shared, workers, settings.log_level)
        self._shutdown = Shutdown(self._family, shared, settings.drain_ms)
        self._health = Health(self._family, shared)
        # The exit code of the server. If several events determine it, the highest code is used.
        self._exit_code = ExitCode.DONE
        self._interrupts = 0

    def run(self) -> ExitCode:
        """Run the children until a signal stops the server. Returns the exit code.

        When this method returns or raises, no child process exists.
        """
        # If SIGCHLD was ignored, which is a state that a process can inherit, the kernel would reap
        # the children.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Signals are blocked and fetched by `wait_for_signal`. No handler interrupts a fork or a
        # write.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            # One pass: start the children that are due, wait for a signal or a timeout, then
            # handle the signal and all deaths.
            while not self._shutdown.is_over:
                if self._shutdown.phase is Phase.RUNNING:
                    self._spawn_due()
                    self._health.tick()
                    self._keys.advance(time.monotonic())
                received = wait_for_signal(SIGNALS, self._timeout_s())
                if received is not None:
                    self._on_signal(received)
                # Reap after each wake-up, because several deaths may be reported by one SIGCHLD.
                for child, pid, wait_status in self._family.reap():
                    self._on_death(child, pid, wait_status)
                self._shutdown.advance()
            log.info("stopped", exit_code=int(self._exit_code))
            return self._exit_code
        finally:
            # This also runs after an exception. No child may survive its supervisor, because the
            # child would keep the lock.
            self._family.kill_all()

    def _spawn_due(self) -> None:
        """Fork all children that are due.

        The front is forked first, so that it imports its modules while the parent imports the
        modules of the shards.
        """
        for child in [self._family.front, *self._family.shards]:
            if not child.pid and child.due <= time.monotonic():
                self._family.spawn(child, time.monotonic())

    def _on_death(self, child: Child, pid: int, wait_status: int) -> None:
        now = time.monotonic()
        details = {"child": child.name, "child_pid": pid, **describe_exit(wait_status)}
        # Damage is permanent. A restart would fail in the same way.
        is_damaged = os.waitstatus_to_exitcode(wait_status) == ExitCode.DAMAGED
        if is_damaged and isinstance(child.cells, ShardCells):
            # The shard itself has logged the file and the offset of the damage.
            log.critical("damaged shard not restarted", **details)
            self._mark_damaged(child, child.cells)
        elif self._shutdown.phase is not Phase.RUNNING:
            log.info("process ended", **details)
        else:
            uptime_s, retry_in_s = round(now - child.spawned_at, 3), child.schedule(now)
            log.error("process died", **details, uptime_s=uptime_s, retry_in_s=retry_in_s)

    def _mark_damaged(self, shard: Child, cells: ShardCells) -> None:
        """Mark a shard as damaged, so that it is not restarted. If all are damaged, stop."""
        shard.is_damaged, shard.due = True, math.inf
        cells.state = ShardState.DAMAGED
        self._exit_code = max(self._exit_code, ExitCode.DAMAGED)
        # If no shard can serve, the server stops and reports the damage with its exit code.
        if all(other.is_damaged for other in self._family.shards):
            self._shutdown.begin()

    def _on_signal(self, received: signal.Signals) -> None:
        if received is signal.SIGCHLD:
            return
        log.info("signal received", signal=received.name)
        if received is signal.SIGHUP:
            self._on_sighup()
            return
        # The second Ctrl-C kills all processes without a drain.
        self._interrupts += received is signal.SIGINT
        if self._interrupts > 1:
            self._exit_code = ExitCode.INTERRUPTED
            self._shutdown.kill()
        else:
            self._shutdown.begin()

    def _on_sighup(self) -> None:
        if self._shutdown.phase is Phase.RUNNING:
            self._keys.start_reload(time.monotonic())
        else:
            log.info("signal ignored", signal="SIGHUP", reason="the server is stopping")

    def _timeout_s(self) -> float:
        """Return the number of seconds until the next timed action, at most TICK_S."""
        next_at = self._shutdown.next_at
        if self._shutdown.phase is Phase.RUNNING:
            due = [child.due for child in self._family if not child.pid]
            next_at = min([self._health.next_at, self._keys.next_at, *due])
        return max(0.0, min(TICK_S, next_at - time.monotonic()))


class Phase(IntEnum):
    """The phases of a drain, see the diagram in the module docstring."""

    RUNNING = 0
    FRONT = 1
    SHARDS = 2
    KILL = 3


class Shutdown:
    """The shutdown of a server: its current phase and the transitions to the next one."""

    def __init__(self, family: Family, shared: Shared, drain_ms: int) -> None:
        self.phase = Phase.RUNNING
        self._family = family
        self._shared = shared
        self._drain_ms = drain_ms
        self._began_at = math.inf

    @property
    def is_over(self) -> bool:
        """Whether the shutdown is complete and no child process exists."""
        return self.phase >= Phase.SHARDS and not self._family.alive()

    @property
    def next_at(self) -> float:
        """The time at which the phase times out, in seconds of the monotonic clock.

        Infinite if the phase has no timeout.
        """
        if self.phase in (Phase.RUNNING, Phase.KILL):
            return math.inf
        share = FRONT_SHARE if self.phase is Phase.FRONT else 1.0
        return self._began_at + share * self._drain_ms / 1000

    def begin(self) -> None:
        """Start the drain. If it has already started, this has no effect."""
        if self.phase is not Phase.RUNNING:
            return
        self.phase = Phase.FRONT
        self._began_at = time.monotonic()
        self._shared.board.draining = True
        notifier = self._shared.notifier
        notifier.stopping()
        notifier.extend_timeout(self._drain_ms + STOP_EXTENSION_MS)
        notifier.status("draining")
        # No new front is started. When this one has ended, the kernel refuses connections. Close
        # the listener in this process too, or the kernel would accept connections that no process
        # serves.
        self._shared.listener.close()
        self._family.send(signal.SIGTERM, [self._family.front])

    def kill(self) -> None:
        """Kill all children immediately."""
        self.phase = Phase.KILL
        self._family.kill_all()

    def advance(self) -> None:
        """Enter the next phase if the current one is complete or has timed out."""
        # The front has ended or used up its share. The shards get the rest of the time.
        if self.phase is Phase.FRONT and (not self._family.front.pid or self._is_due()):
            self.phase = Phase.SHARDS
            self._family.send(signal.SIGTERM, self._family.shards)
        # Both transitions occur in one call if the total time has already passed.
        if self.phase is Phase.SHARDS and self._is_due():
            self.phase = Phase.KILL
            if left := [child.name for child in self._family.alive()]:
                log.error("drain timed out", killed=left, drain_ms=self._drain_ms)
            self._family.send(signal.SIGKILL, self._family)

    def _is_due(self) -> bool:
        return time.monotonic() >= self.next_at
