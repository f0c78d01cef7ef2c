"""The parent of every process: makes what they share, forks them, restarts what dies, stops them in
order.

It is plain and synchronous: no event loop and no thread, so that it can fork at any time. All it
waits for is a signal.

                    death: DOWN, new session,                       SIGTERM, SIGINT, SIGHUP,
                    back-off, fork again                            or no shard is left whose data can be trusted
                       ┌──────┐                                              │
                       ▼      │                                              ▼
    start ─ fork ─▶  RUNNING ─┘  ──────────────────────────────▶  FRONTS  draining is set, SIGTERM
    to the fronts
                                                                     │    all gone, or 8/10 of drain_ms have passed
                                                                     ▼
                                                                  SHARDS  SIGTERM to the shards
                                                                     │    all gone ─▶ end; drain_ms have passed:
                                                                     ▼
                                                                  KILL    SIGKILL to what is left ─▶ end

A shard that finds its data damaged (exit status 3) stays down, DAMAGED on the board, while the
others serve; the status of the whole server is 3 in the end. A child without a sign of life is told
of after STALLED_S and killed after KILL_AFTER_S: the supervisor is the watchdog of its children,
and systemd the supervisor's (decisions/0017).
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import structlog
from setproctitle import setproctitle

from topics.actors.link import counters, ledger, pulse
from topics.actors.link.board import KEY_SLOTS, Board, ShardWords
from topics.actors.link.process_id import ProcessId, ProcessKind, front_id, shard_id
from topics.config import Settings
from topics.engine.access import Access
from topics.process import logs
from topics.process.children import (
    DAMAGED,
    FAILED,
    OK,
    describe_exit,
    fork,
    raise_file_limit,
    wait_for_signal,
)
from topics.process.listeners import listen, url_of
from topics.process.notify import Notifier
from topics.process.topology import Links, fronts_with_shards

KILLED = 130  # exit status after a second Ctrl-C
HEALTHY_S = 30.0  # a child that has served so long starts again with a clean record
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0
FRONTS_SHARE = 0.8  # of drain_ms; the rest belongs to the shards
STALLED_S = pulse.STALLED_S
KILL_AFTER_S = 30.0  # without a sign of life; also while it recovers, where every step gives one
TICK_S = 1.0
STARTING_TICK_S = 0.05
REPLAY_EXTENSION_MS = 30_000
STOP_EXTENSION_MS = (
    5_000  # what a stop may take beyond drain_ms, for the kernel to clear away what was killed
)

log = structlog.get_logger()


class Phase(IntEnum):
    """See the picture above; a phase never goes back."""

    RUNNING = 0
    FRONTS = 1
    SHARDS = 2
    KILL = 3


@dataclass(frozen=True, slots=True)
class Workers:
    """What the children run; each takes its index."""

    front: Callable[[int], None]
    shard: Callable[[int], None]


class Child:
    """One place in the family; processes come and go in it. Times are seconds of the monotonic
    clock.
    """

    def __init__(self, id: ProcessId, board: Board, main: Callable[[int], None]) -> None:
        self.id = id
        self.index = id.index
        self.name = str(id)
        self.words = board.process(id)
        self.main = main
        self.pid = 0
        self.due = 0.0  # when to fork it, if it is not there
        self.failures = 0  # deaths in a row
        self.spawned_at = 0.0
        self.up_at = math.inf  # when it was first seen to serve
        self.pulse = pulse.Pulse()
        self.is_stalled = False  # and that has been told
        self.is_condemned = False  # it was killed for it and is still there
        self.is_damaged = False  # it found data that cannot be trusted, and is not started again

    def watch(self, now: float) -> float:
        """Look for a heartbeat or progress of the replay; for how many seconds there was none."""
        words = self.words
        if _is_up(self):
            self.up_at = min(self.up_at, now)
        return self.pulse.look(
            (words.spawns, words.heartbeat_ms, words.state, getattr(words, "progress_ppm", 0)), now
        )

    def schedule(self, now: float) -> float:
        """Plan the restart after a death; the delay in seconds. At once the first time, then 0.1 s,
        doubling up to 5 s.
        """
        if now - self.up_at >= HEALTHY_S:
            self.failures = 0
        delay = (
            min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** (self.failures - 1))
            if self.failures
            else 0.0
        )
        self.failures = min(self.failures + 1, 16)
        self.due = now + delay
        return delay


class Supervisor:
    """The family of one server, from the first fork to the last wait."""

    def __init__(
        self,
        settings: Settings,
        board: Board,
        links: Links,
        listeners: Sequence[socket.socket],
        workers: Workers,
        notifier: Notifier,
    ) -> None:
        """One listener for each front."""
        self._settings = settings
        self._board = board
        self._links = links
        self._listeners = listeners
        self._notifier = notifier
        self._shards = [
            Child(process, board, workers.shard) for process in board.processes(ProcessKind.SHARD)
        ]
        self._fronts = [
            Child(process, board, workers.front) for process in board.processes(ProcessKind.FRONT)
        ]
        self._signals = _signals_to_wait_for()
        self._phase = Phase.RUNNING
        self._announced = False
        self._status = OK
        self._interrupts = 0
        self._stop_at = math.inf  # when the stop began
        self._tick_at = 0.0
        self._extend_at = 0.0

    def run(self) -> int:
        """Keep the family alive until it is told to stop; the exit status."""
        signal.signal(
            signal.SIGCHLD, signal.SIG_DFL
        )  # an inherited "ignore" would reap children behind our back
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        try:
            while not self._finished():
                self._spawn_due()
                self._tick()
                received = wait_for_signal(self._signals, self._patience())
                if received is not None:
                    self._on_signal(received)
                self._reap()
                self._advance()
            return self._status
        finally:
            self._kill_all()

    # Births and deaths

    def _spawn_due(self) -> None:
        now = time.monotonic()
        for child in self._children():
            if self._phase is Phase.RUNNING and not child.pid and child.due <= now:
                self._spawn(child, now)

    def _spawn(self, child: Child, now: float) -> None:
        child.spawned_at, child.up_at = now, math.inf
        child.is_stalled = child.is_condemned = False
        child.words.spawns += 1
        try:
            child.pid = fork(
                child.name, lambda: self._in_child(child), log_level=self._settings.log_level
            )
        except OSError as error:
            log.warning(
                "cannot fork",
                child=child.name,
                reason=error.strerror,
                again_in_s=child.schedule(now),
            )
            return
        child.words.pid = child.pid
        log.info(
            "process started", child=child.name, child_pid=child.pid, spawns=child.words.spawns
        )

    def _in_child(self, child: Child) -> None:
        self._notifier.close()
        for index, listener in enumerate(self._listeners):
            # A copy that nobody accepts from would keep clients waiting after the others have
            # closed theirs.
            if child.id != front_id(index):
                listener.close()
        self._links.keep(child.id)
        child.main(child.index)

    def _reap(self) -> None:
        by_pid = {child.pid: child for child in self._children() if child.pid}
        while by_pid:
            pid, wait_status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            if child := by_pid.pop(
                pid, None
            ):  # others are orphans that came to us, as they do to process 1 of a container
                self._on_death(child, wait_status)

    def _on_death(self, child: Child, wait_status: int) -> None:
        now = time.monotonic()
        details = {"child": child.name, "child_pid": child.pid, **describe_exit(wait_status)}
        child.pid, child.is_stalled = 0, False
        child.words.clear()
        counters.forget_gauges(self._board, child.id)
        ledger.forget_counts(self._board, child.id)
        self._links.end_sessions(child.id)
        is_shard = child.id.kind is ProcessKind.SHARD
        if is_shard and os.waitstatus_to_exitcode(wait_status) == DAMAGED:
            self._give_up(child, details)
        elif self._phase is not Phase.RUNNING:
            log.info("process ended", **details)
        else:
            lived_s = round(now - child.spawned_at, 3)
            log.error("process died", **details, lived_s=lived_s, again_in_s=child.schedule(now))

    def _give_up(self, shard: Child, details: dict[str, int | str]) -> None:
        """Its own last words name the file and the offset."""
        assert isinstance(shard.words, ShardWords), "only shards have data"
        shard.is_damaged, shard.due = True, math.inf
        shard.words.state = type(shard.words.state).DAMAGED
        self._status = max(self._status, DAMAGED)
        log.critical("damaged shard stays down", **details)
        if all(other.is_damaged for other in self._shards):
            self._stop(DAMAGED)

    # Signals and the stop

    def _on_signal(self, received: signal.Signals) -> None:
        if received is signal.SIGCHLD:
            return
        log.info("signal received", signal=received.name)
        self._interrupts += received is signal.SIGINT
        if self._interrupts > 1:
            self._status, self._phase = KILLED, Phase.KILL
            self._kill_all()
        else:
            self._stop(OK)

    def _stop(self, status: int) -> None:
        """Begin the stop; one that has begun goes on, at most with a worse exit status."""
        self._status = max(self._status, status)
        if self._phase is not Phase.RUNNING:
            return
        self._phase = Phase.FRONTS
        self._stop_at = time.monotonic()
        self._board.draining = True
        self._notifier.stopping()
        self._notifier.extend_timeout(self._settings.drain_ms + STOP_EXTENSION_MS)
        self._notifier.status("draining")
        # No front starts any more: when the last one has gone, connections are refused.
        for listener in self._listeners:
            listener.close()
        self._send(signal.SIGTERM, self._fronts)

    def _advance(self) -> None:
        """Go on to the next phase of a stop when this one is done, or its time is up."""
        if self._phase is Phase.FRONTS and (
            not any(front.pid for front in self._fronts) or self._waited(FRONTS_SHARE)
        ):
            self._phase = Phase.SHARDS
            self._send(signal.SIGTERM, self._shards)
        if self._phase is Phase.SHARDS and self._waited(1.0):
            self._phase = Phase.KILL
            left = [child.name for child in self._children() if child.pid]
            if left:
                log.error(
                    "processes killed at the end of the drain",
                    children=left,
                    drain_ms=self._settings.drain_ms,
                )
            self._send(signal.SIGKILL, self._children())

    def _waited(self, share: float) -> bool:
        return time.monotonic() >= self._stop_at + share * self._settings.drain_ms / 1000

    def _finished(self) -> bool:
        return self._phase >= Phase.SHARDS and not any(child.pid for child in self._children())

    def _send(self, number: signal.Signals, children: Sequence[Child]) -> None:
        for child in children:
            if child.pid:
                os.kill(
                    child.pid, number
                )  # it is ours and not yet reaped, so the pid is still its own

    def _kill_all(self) -> None:
        """Leave nobody behind, whatever has gone wrong."""
        self._send(signal.SIGKILL, self._children())
        for child in self._children():
            if child.pid:
                os.waitpid(child.pid, 0)
                child.pid = 0

    # What systemd and the log hear

    def _tick(self) -> None:
        """Once in a while: look at the board and tell systemd. Never twice within one tick, however
        many signals come.
        """
        now = time.monotonic()
        if now < self._tick_at or self._phase is not Phase.RUNNING:
            return
        logs.tell_dropped()
        for child in self._children():
            if child.pid:
                self._check_pulse(child, child.watch(now))
        waiting = [shard for shard in self._shards if not (_is_up(shard) or shard.is_damaged)]
        if not self._announced and not waiting and any(_is_up(front) for front in self._fronts):
            self._announced = True
            self._notifier.ready()
            damaged = [shard.index for shard in self._shards if shard.is_damaged]
            log.info(
                "ready",
                topics=sum(self._board.shard(shard.index).topics for shard in self._shards),
                damaged=damaged,
            )
        if self._announced and self._notifier.watchdog_ms:
            self._notifier.watchdog()
        if (
            waiting
            and not self._announced
            and now >= self._extend_at
            and not any(child.is_stalled for child in self._children())
        ):
            self._notifier.extend_timeout(REPLAY_EXTENSION_MS)
            self._extend_at = now + TICK_S
        self._notifier.status(self._status_line(waiting))
        self._tick_at = now + self._tick_s()

    def _check_pulse(self, child: Child, silent_s: float) -> None:
        """Tell of a child that shows no sign of life, and kill it in the end.

        One that waits in the kernel cannot be killed; that is told once.
        """
        if silent_s >= KILL_AFTER_S and not child.is_condemned:
            child.is_condemned = True
            log.error(
                "stalled process killed",
                child=child.name,
                child_pid=child.pid,
                silent_s=round(silent_s, 1),
            )
            self._send(signal.SIGKILL, [child])
        elif child.is_stalled != (silent_s >= STALLED_S):
            child.is_stalled = not child.is_stalled
            if child.is_stalled:
                log.error(
                    "process stalled",
                    child=child.name,
                    child_pid=child.pid,
                    killed_after_s=KILL_AFTER_S,
                )
            else:
                log.info("process answers again", child=child.name, child_pid=child.pid)

    def _status_line(self, waiting: Sequence[Child]) -> str:
        total, damaged = len(self._shards), [shard for shard in self._shards if shard.is_damaged]
        troubles = "".join(f"; {shard.name} is damaged, see the log" for shard in damaged)
        troubles += "".join(
            f"; {child.name} is stalled" for child in self._children() if child.is_stalled
        )
        if not waiting:
            serving = f"{total - len(damaged)} of {total} shards" if damaged else f"{total} shards"
            return (f"serving, {serving}" if self._announced else "starting") + troubles
        done = sum(
            self._board.shard(shard.index).progress_ppm if shard in waiting else 1_000_000
            for shard in self._shards
        )
        ready = total - len(waiting) - len(damaged)
        return f"replaying, {done // (10_000 * total)} %, {ready} of {total} shards ready{troubles}"

    def _tick_s(self) -> float:
        if not self._announced:
            return STARTING_TICK_S
        return (
            min(TICK_S, self._notifier.watchdog_ms / 3000) if self._notifier.watchdog_ms else TICK_S
        )

    def _patience(self) -> float:
        """How long nothing but a signal can be of interest, in seconds."""
        next_at = math.inf
        if self._phase is Phase.RUNNING:
            next_at = min(
                [self._tick_at, *(child.due for child in self._children() if not child.pid)]
            )
        elif self._phase is not Phase.KILL:
            share = FRONTS_SHARE if self._phase is Phase.FRONTS else 1.0
            next_at = self._stop_at + share * self._settings.drain_ms / 1000
        return max(0.0, min(TICK_S, next_at - time.monotonic()))

    def _children(self) -> list[Child]:
        return [*self._shards, *self._fronts]


def _is_up(child: Child) -> bool:
    """A shard that answers, if only reads, or a front that serves."""
    return child.words.state.name in ("READY", "READ_ONLY", "NO_ROOM", "SERVING")


def _signals_to_wait_for() -> set[signal.Signals]:
    """A hang-up stops the server, unless it was started with nohup."""
    wanted = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    return (
        wanted
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        else wanted - {signal.SIGHUP}
    )


MakeWorkers = Callable[[Settings, Access, Board, Links, Sequence[socket.socket]], Workers]


def _real_workers(
    settings: Settings,
    access: Access,
    board: Board,
    links: Links,
    listeners: Sequence[socket.socket],
) -> Workers:
    """Each imports its program in the child, so that the parent never loads a server."""

    def front(index: int) -> None:
        from topics.process import front

        own = links.of(front_id(index))
        front.main(settings, access, board, own, index, listeners[index])

    def shard(index: int) -> None:
        from topics.process import shard_writer

        shard_writer.main(settings, board, links.of(shard_id(index)), index)

    return Workers(front, shard)


def serve(
    settings: Settings,
    access: Access,
    notifier: Notifier,
    make_workers: MakeWorkers = _real_workers,
) -> int:
    """Run a whole server; the exit status."""
    from topics.storage.data_dir import DataDirectory, DataDirectoryDamaged, DataDirectoryInUse

    setproctitle("topics: supervisor")
    try:
        directory = DataDirectory(settings.data_dir, shards=settings.shards)
        listeners = listen(settings.host, settings.port, settings.fronts)
    except DataDirectoryDamaged as error:
        log.critical("data directory damaged", reason=str(error))
        return DAMAGED
    except DataDirectoryInUse as error:
        log.critical("cannot start", reason=str(error))
        return FAILED
    except OSError as error:
        log.critical(
            "cannot start",
            reason=f"{error} (host {settings.host}, port {settings.port}, data {settings.data_dir})",
        )
        return FAILED
    settings = _with_stored_shards(settings, directory.shards)
    soft_limit, file_limit = raise_file_limit()
    log.info("file limit", soft_limit=file_limit, was=soft_limit)
    _announce(settings, access, listeners)
    return _run_family(settings, access, notifier, listeners, make_workers)


def _with_stored_shards(settings: Settings, stored: int) -> Settings:
    if stored == settings.shards:
        return settings
    log.warning(
        "the data directory keeps its shard count", shards=stored, asked_for=settings.shards
    )
    return replace(settings, shards=stored)


def _announce(settings: Settings, access: Access, listeners: Sequence[socket.socket]) -> None:
    """The first lines of the log; programs read ``url`` from the event ``listening``."""
    if not access.enabled:
        log.warning(
            "NO API KEYS ARE CONFIGURED: everyone who reaches this port may read, write and delete everything"
        )
        if not settings.loopback:
            log.warning(
                "THE PORT IS OPEN TO THE NETWORK WITHOUT KEYS, because TOPICS_ALLOW_INSECURE_NO_AUTH is set"
            )
    log.info(
        "listening",
        url=url_of(listeners[0]),
        data_dir=str(settings.data_dir.absolute()),
        auth="keys" if access.enabled else "none",
        keys=len(access.principals),
        shards=settings.shards,
        fronts=settings.fronts,
    )


def _run_family(
    settings: Settings,
    access: Access,
    notifier: Notifier,
    listeners: Sequence[socket.socket],
    make_workers: MakeWorkers,
) -> int:
    """Make what the processes share, then be their parent."""
    digests = [principal.digest for principal in access.principals]
    board = Board.create(settings.shards, settings.fronts, max(KEY_SLOTS, len(digests)))
    board.started_ms = time.time_ns() // 1_000_000
    ledger.assign_key_slots(board, digests)
    links = Links(board, [fronts_with_shards(settings)])
    workers = make_workers(settings, access, board, links, listeners)
    return Supervisor(settings, board, links, listeners, workers, notifier).run()
