"""Time stamps at the borders of a request's path, in a server that runs unchanged.

    PYTHONPATH=tests/bench/preload HOP_STAMPS=FOLDER python -m hop_stamps serve

The command ``topics`` with functions wrapped from outside before its processes are forked. Every
process writes its stamps into a file of its own in FOLDER, by its pid. The module needs nothing of
the checkout that it measures but the names in `BORDERS`; a border has the first of its targets that
exists, and is left out when there is none.

    word    meaning
    0       how many stamps were taken
    1 ...   CLOCK_MONOTONIC in ns << 8 | 128 if not by the main thread | number of the border
"""

from __future__ import annotations

import importlib
import itertools
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

STAMPS_MAX = 1 << 20  # of a process; later ones are dropped
BORDER_BITS = 8
BY_A_THREAD = 128  # and not by the loop
FOLDER = "HOP_STAMPS"


class At(Enum):
    """When a call is stamped."""

    ENTER = "enter"
    LEAVE = "leave"
    LEAVE_WITH = "leave with"  # only if the result is true: bytes, messages


class Border(NamedTuple):
    """A border: the functions that may stand for it, ``MODULE:NAME[.NAME]``."""

    at: At
    targets: tuple[str, ...]


BORDERS: Mapping[str, Border] = {
    "recv": Border(At.LEAVE_WITH, ("socket:socket.recv",)),
    "send": Border(At.ENTER, ("socket:socket.send",)),
    "ring write": Border(At.ENTER, ("topics.actors.link.ring:RingProducer.write",)),
    "ring read": Border(At.LEAVE_WITH, ("topics.actors.link.ring:RingConsumer.read",)),
    "hand over": Border(At.ENTER, ("topics.storage.wal.writer:WalWriter.hand_over",)),
    "write": Border(At.ENTER, ("os:pwritev",)),
    "written": Border(At.LEAVE, ("os:pwritev",)),
    "synced": Border(At.LEAVE, ("os:fdatasync",)),
    "settle": Border(
        At.ENTER,
        (
            "topics.actors.shard.group_commit:GroupCommit._settle_up_to",
            "topics.actors.shard.group_commit:GroupCommit.advance",
        ),
    ),
    "page": Border(At.LEAVE_WITH, ("topics.actors.shard.feeds:Feeds._next_page",)),
    "reply": Border(
        At.ENTER,
        (
            "topics.actors.rpc.session:LinkSession.take_answer",
            "topics.front.routes.records:shard_answer",
        ),
    ),
    "shown": Border(At.ENTER, ("topics.front.live.feeds:Feeds.page",)),
    "event": Border(At.ENTER, ("topics.front.live.outbox:Outbox.write",)),
    # Of the bare path alone.
    "bell": Border(At.ENTER, ("os:eventfd_write",)),
    "awake": Border(At.LEAVE, ("os:eventfd_read",)),
    "bare write": Border(At.ENTER, ("os:pwrite",)),
    "bare written": Border(At.LEAVE, ("os:pwrite",)),
}
NUMBERS = {name: number for number, name in enumerate(BORDERS, 1)}
SERVER = tuple(BORDERS)[: tuple(BORDERS).index("bell")]


class Stamps:
    """The stamps of this process. Threads may take them side by side."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.begin()

    def begin(self) -> None:
        """Write into a file of this process from now on."""
        size = 8 * (STAMPS_MAX + 1)
        fd = os.open(self._folder / str(os.getpid()), os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(fd, size)
        self._words = memoryview(mmap.mmap(fd, size)).cast("Q")
        os.close(fd)
        self._main = threading.get_ident()
        self._next = itertools.count(1).__next__  # one step of the interpreter: threads share it

    def take(self, number: int) -> None:
        """Stamp border ``number``."""
        now, at = time.monotonic_ns(), self._next()
        if threading.get_ident() != self._main:
            number |= BY_A_THREAD
        if at <= STAMPS_MAX:
            self._words[at] = now << BORDER_BITS | number
            self._words[0] = at

    def wrap(self, function: Callable[..., Any], at: At, number: int) -> Callable[..., Any]:
        """The function, stamped."""
        take = self.take

        def enter(*args: Any, **options: Any) -> Any:
            take(number)
            return function(*args, **options)

        def leave(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            if result or at is At.LEAVE:
                take(number)
            return result

        return enter if at is At.ENTER else leave


def install(stamps: Stamps, names: Sequence[str]) -> list[str]:
    """Wrap the functions of these borders; the borders that are not to be had."""
    missing = []
    for name in names:
        at, targets = BORDERS[name]
        if not any(_wrap_target(stamps, target, at, NUMBERS[name]) for target in targets):
            missing.append(name)
    os.register_at_fork(after_in_child=stamps.begin)
    return missing


def _wrap_target(stamps: Stamps, target: str, at: At, number: int) -> bool:
    """False when there is no such function, or when a compiled class refuses to be changed."""
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    try:
        holder: Any = importlib.import_module(module)
        for owner in owners:
            holder = getattr(holder, owner)
        setattr(holder, name, stamps.wrap(getattr(holder, name), at, number))
    except (ImportError, AttributeError, TypeError):
        return False
    return True


def main() -> int:
    """Run the command ``topics``."""
    # Before the checkout is imported from: the folder of this module must not shadow anything.
    sys.path.insert(0, str(Path.cwd()))
    cli = importlib.import_module("topics.cli")
    missing = install(Stamps(Path(os.environ[FOLDER])), SERVER)
    if missing:
        print(f"borders without a function: {', '.join(missing)}", file=sys.stderr)
    return int(cli.main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
