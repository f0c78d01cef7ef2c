"""A server whose workers are stand-ins that follow orders. `tests.process.family_support` runs it
as a program.

A file ``NAME.do`` (``front-0.do``, ``shard-1.do``) in $ORDERS contains the order for a worker at
its start:

    exit N      exit with code N                  raise    fail with an exception
    stubborn    ignore SIGTERM                    stuck    become ready, then give no heartbeat
    replay      (shard) recover until the         wait     (front) serve only after the file
                file is removed                            is removed

A front responds to every connection with one line of JSON about its state, and closes it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

import structlog

from topics.actors.link.board import FrontState, ShardState
from topics.actors.link.process_id import FRONT, shard_id
from topics.cli import block_sighup
from topics.config import Settings
from topics.process import boot, health, logs
from topics.process.children import wait_for_signal
from topics.process.family import ChildMains, Shared
from topics.process.notify import Notifier
from topics.process.serve import serve

ORDERS = Path(os.environ["ORDERS"])
TICK_INTERVAL_S = 0.02
PR_GET_DUMPABLE = 3
log = structlog.get_logger()


def order(name: str) -> str:
    """Return the current order for this worker."""
    path = ORDERS / f"{name}.do"
    return path.read_text() if path.exists() else ""


def obey(name: str) -> str:
    """Follow an order that ends the process, or return the order."""
    todo = order(name)
    if todo == "raise":
        raise RuntimeError("raised by the test, with a Bearer s3cret")
    if todo.startswith("exit"):
        raise SystemExit(int(todo.split()[1]))
    signals = dict(
        line.split(":\t")
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("Sig")
    )
    log.info(
        "at work",
        blocked=int(signals["SigBlk"], 16),
        ignored=int(signals["SigIgn"], 16),
        caught=int(signals["SigCgt"], 16),
        fds=open_files(),
    )
    # SIGTERM is received by a wait from here on
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    return todo


def open_files() -> list[str]:
    """Return the targets of the open descriptors of this process."""
    return [
        str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()
    ]


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def stop_requested(name: str) -> bool:
    """Wait one tick. Return whether a SIGTERM was received and is not ignored."""
    return (
        wait_for_signal({signal.SIGTERM}, TICK_INTERVAL_S) is not None and order(name) != "stubborn"
    )


def make_mains(_settings: Settings, shared: Shared) -> ChildMains:
    """Return the stand-ins."""
    board, listener = shared.board, shared.listener

    def shard(index: int) -> None:
        name, cells = f"shard-{index}", board.shard(index)
        cells.state = ShardState.STARTING
        todo = obey(name)
        cells.state = ShardState.RECOVERING
        while order(name) == "replay":
            cells.progress_ppm = 250_000
            cells.heartbeat_ms = now_ms()
            time.sleep(TICK_INTERVAL_S)
        cells.state = ShardState.READY
        while not stop_requested(name):
            if todo != "stuck":
                cells.heartbeat_ms = now_ms()

    def front() -> None:
        name, cells = "front-0", board.front
        obey(name)
        while order(name) == "wait":
            time.sleep(TICK_INTERVAL_S)
        cells.state = FrontState.SERVING
        listener.setblocking(False)
        while not stop_requested(name):
            cells.heartbeat_ms = now_ms()
            report_to_all()
        log.info(
            "front stops",
            draining=board.draining,
            shards_alive=[bool(board.shard(i).pid) for i in range(board.shards)],
        )

    def report_to_all() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            with connection:
                connection.sendall(json.dumps(seen()).encode() + b"\n")

    def seen() -> dict[str, object]:
        return {
            "pid": os.getpid(),
            "shards": [
                [board.shard(i).state.name, board.shard(i).pid, board.shard(i).spawns]
                for i in range(board.shards)
            ],
            "sessions": [board.session(FRONT, shard_id(s)) for s in range(board.shards)],
            "keys": len(shared.keys.read()[1].principals),
            "dumpable": ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0),
            "fds": open_files(),
        }

    return ChildMains(front, shard)


if __name__ == "__main__":
    for constant in ("STALLED_S", "FIRST_HEARTBEAT_S", "KILL_AFTER_S"):
        if seconds := os.environ.get(constant):
            assert hasattr(health, constant)
            setattr(health, constant, float(seconds))
    block_sighup()
    start = boot.read(os.environ)
    logs.configure("supervisor", start.settings.log_level)
    notifier = Notifier.from_environment(os.environ, os.getpid())
    sys.exit(serve(start, notifier, make_mains))
