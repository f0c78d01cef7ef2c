"""Children of the supervisor that receive a SIGTERM at a certain point of their run.

``python -m tests.process.sigterm FOLDER "KIND GAP"...`` prints how each child ended: its exit
code, or the negative number of a signal. FOLDER contains the log of each child under the number of
its case. tests/process/test_sigterm.py runs this program.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.polling import is_readable
from topics.actors.link.board import Board
from topics.actors.link.event_loop import EventLoop
from topics.actors.link.key_table import KeyTable
from topics.actors.link.link_memory import LinkMemory, LinkSizes
from topics.actors.link.process_id import FRONT, shard_id
from topics.actors.shard.loop import ShardLoop
from topics.actors.shard.sealing.sealing import Sealing
from topics.config import Settings
from topics.front.server import Server
from topics.process import children as process
from topics.process import front, logs, shard_writer
from topics.storage.folders import Folders

WITHIN_S = 20.0

# The point of the signal: before or after this function.
BEFORE: dict[str, tuple[Any, str]] = {
    "fork": (process, "exit_with_parent"),
    "reset of signals": (process, "_reset_signals"),
    "recovery": (shard_writer, "recover"),
    "shard serves": (ShardLoop, "run"),
    "front serves": (Server, "run"),
    "last checkpoint": (Sealing, "write_last"),
}
AFTER: dict[str, tuple[Any, str]] = {
    "reset of signals": (process, "_reset_signals"),
    "recovery": (shard_writer, "recover"),
    "start of the loop": (EventLoop, "__init__"),
    "shard receives": (shard_writer, "on_sigterm"),
    "front receives": (front, "on_sigterm"),
}


def interrupt(gap: str) -> None:
    """Make the process send itself the signal when it reaches this point."""
    side, _, name = gap.partition(" ")
    owner, attribute = {"before": BEFORE, "after": AFTER}[side][name]
    function = getattr(owner, attribute)

    def called(*args: Any, **named: Any) -> Any:
        if side == "before":
            os.kill(os.getpid(), signal.SIGTERM)
        result = function(*args, **named)
        if side == "after":
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    setattr(owner, attribute, called)


def end_of(pid: int, state: Callable[[], str], *, interrupted: bool) -> int:
    """Wait for the end of the child.

    A child that does not send itself the signal receives it when it serves.
    """
    deadline = time.monotonic() + WITHIN_S
    while not interrupted and state() not in ("READY", "SERVING"):
        assert time.monotonic() < deadline, "the child did not start to serve"
        time.sleep(0.01)
    if not interrupted:
        os.kill(pid, signal.SIGTERM)
    handle = os.pidfd_open(pid)
    if not is_readable(handle, WITHIN_S):
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def end_of_case(kind: str, gap: str, data_dir: Path) -> int:
    """Run one child with one signal and return its exit status."""
    logs.configure("supervisor")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    settings = Settings(shards=1, data_dir=data_dir, arena_bytes=1 << 20, max_body_bytes=1 << 18)
    board = Board(1)
    links = [LinkMemory(FRONT, shard_id(0), LinkSizes.of(settings))]
    listener = socket.create_server(("127.0.0.1", 0))
    if gap != "at work":
        interrupt(gap)

    def run() -> None:
        if kind == "shard":
            shard_writer.main(settings, Folders.under(data_dir, 0), board, links, 0)
        else:
            front.main(settings, KeyTable(), board, links, listener)

    cells = board.shard(0) if kind == "shard" else board.front
    pid = process.fork(f"{kind} 0", run)
    waits = gap in ("at work", "before last checkpoint")
    return end_of(pid, lambda: cells.state.name, interrupted=not waits)


def main(folder: Path, cases: list[str]) -> None:
    """Run each case in a separate fork, which shares all imports."""
    for number, case in enumerate(cases):
        supervisor = os.fork()
        if not supervisor:
            os.dup2(os.open(folder / f"{number}.log", os.O_CREAT | os.O_WRONLY), 2)
            kind, _, gap = case.partition(" ")
            print(end_of_case(kind, gap, folder / str(number)), flush=True)
            os._exit(0)
        assert os.waitpid(supervisor, 0)[1] == 0, (folder / f"{number}.log").read_text()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
