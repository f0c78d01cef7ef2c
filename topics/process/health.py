"""Health checks: the supervisor is the watchdog of its children and reports to systemd and the log.

Each tick checks the signs of life of every child on the board (`decisions/0017`):

    no sign of life for    action
    STALLED_S              the stall is logged and shown in the service status
    FIRST_HEARTBEAT_S      the same, for a process that has not sent its first heartbeat
    KILL_AFTER_S           SIGKILL is sent; the child is restarted as after any death

systemd receives READY=1 once, when the front serves and every shard is either up or damaged. After
that, it receives watchdog datagrams. systemd monitors only the supervisor; the supervisor monitors
its children.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

import structlog

from topics.actors.link import liveness
from topics.process import logs
from topics.process.family import Child, Family, Shared

STALLED_S = liveness.STALLED_S
# Imports usually take 0.1 s, but they take several seconds if many processes compete for the cores.
FIRST_HEARTBEAT_S = 15.0
# This limit also applies during a recovery, because each step of a recovery is a sign of life.
KILL_AFTER_S = 30.0
TICK_S = 1.0
STARTING_TICK_S = 0.05
REPLAY_EXTENSION_MS = 30_000

log = structlog.get_logger()


class Health:
    """The periodic checks of the supervisor while the server runs."""

    def __init__(self, family: Family, shared: Shared) -> None:
        self._family = family
        self._board = shared.board
        self._notifier = shared.notifier
        self._is_announced = False
        self._extend_at = 0.0
        self.next_at = 0.0  # time of the next tick

    def tick(self) -> None:
        """Run the checks if the next tick is due.

        The supervisor calls this after every signal. The checks run once per tick, regardless of
        the number of signals.
        """
        now = time.monotonic()
        if now < self.next_at:
            return
        logs.report_dropped()
        for child in self._family.alive():
            self._check(child, child.watch(now))
        waiting = [child for child in self._family.shards if not (child.is_up or child.is_damaged)]
        if not self._is_announced:
            self._announce_when_ready(waiting)
        if self._is_announced and self._notifier.watchdog_ms:
            self._notifier.watchdog()
        if waiting and not self._is_announced:
            self._extend_start(now)
        self._notifier.status(self._status_line(waiting))
        self.next_at = now + self._tick_s()

    def _check(self, child: Child, silent_s: float) -> None:
        """Log that a child shows no sign of life, and kill it after KILL_AFTER_S.

        A child that waits in the kernel does not end immediately. So SIGKILL is sent and logged
        only once.
        """
        if silent_s >= KILL_AFTER_S and not child.is_being_killed:
            child.is_being_killed = True
            log.error(
                "stalled process killed",
                child=child.name,
                child_pid=child.pid,
                silent_s=round(silent_s, 1),
            )
            self._family.send(signal.SIGKILL, [child])
        elif child.is_stalled != (silent_s >= _stall_limit_s(child)):
            child.is_stalled = not child.is_stalled
            fields = {"child": child.name, "child_pid": child.pid}
            if child.is_stalled:
                log.error("process stalled", **fields, killed_after_s=KILL_AFTER_S)
            else:
                log.info("process resumed", **fields)

    def _announce_when_ready(self, waiting: Sequence[Child]) -> None:
        if waiting or not self._family.front.is_up:
            return
        self._is_announced = True
        self._notifier.ready()
        shards = [shard.id.index for shard in self._family.shards]
        damaged = [shard.id.index for shard in self._family.shards if shard.is_damaged]
        topics = sum(self._board.shard(index).topics for index in shards)
        if damaged:
            log.error("ready with damaged shards", topics=topics, damaged=damaged)
        else:
            log.info("ready", topics=topics)

    def _extend_start(self, now: float) -> None:
        """Extend systemd's start timeout while the replays make progress."""
        if now >= self._extend_at and not any(child.is_stalled for child in self._family):
            self._notifier.extend_timeout(REPLAY_EXTENSION_MS)
            self._extend_at = now + TICK_S

    def _status_line(self, waiting: Sequence[Child]) -> str:
        shards = self._family.shards
        total, damaged = len(shards), [shard for shard in shards if shard.is_damaged]
        stalled = [child for child in self._family if child.is_stalled]
        troubles = "".join(f"; {shard.name} is damaged, see the log" for shard in damaged)
        troubles += "".join(f"; {child.name} is stalled" for child in stalled)
        failed = [one for one in waiting if self._board.shard(one.id.index).start_failure]
        troubles += "".join(f"; {shard.name} cannot start, see the log" for shard in failed)
        if not waiting:
            serving = f"{total - len(damaged)} of {total} shards" if damaged else f"{total} shards"
            return (f"serving, {serving}" if self._is_announced else "starting") + troubles
        done_ppm = sum(
            self._board.shard(shard.id.index).progress_ppm if shard in waiting else 1_000_000
            for shard in shards
        )
        percent, ready = done_ppm // (10_000 * total), total - len(waiting) - len(damaged)
        return f"replaying, {percent} %, {ready} of {total} shards ready{troubles}"

    def _tick_s(self) -> float:
        if not self._is_announced:
            return STARTING_TICK_S
        watchdog_ms = self._notifier.watchdog_ms
        return min(TICK_S, watchdog_ms / 3000) if watchdog_ms else TICK_S


def _stall_limit_s(child: Child) -> float:
    """Return the number of seconds without a sign of life after which a child counts as stalled."""
    return STALLED_S if child.has_heartbeat else max(FIRST_HEARTBEAT_S, STALLED_S)
