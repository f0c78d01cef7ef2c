"""Some workers in a process of their own, so that they can be killed: ``python -m
tests.campaigns.crew FOLDER NAME FIRST COUNT SEED QUEUES``.

FOLDER holds a file ``address``, which says where the server is now, and gets the journal
``NAME.jsonl``. The process works until its stdin ends.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.campaigns.clients import Address, end
from tests.campaigns.worker import Worker
from tests.campaigns.worker_history import History, Journal, notes_of
from tests.support.server import ROOT

END_S = 30.0


def tell_address(folder: Path, address: tuple[str, int]) -> None:
    """Let the crews know."""
    aside = folder / "address.new"
    aside.write_text(f"{address[0]} {address[1]}")
    aside.replace(folder / "address")


def address_in(folder: Path) -> Address:
    """What `tell_address` told last."""

    def address() -> tuple[str, int]:
        host, port = (folder / "address").read_text().split()
        return host, int(port)

    return address


class Crew:
    """A process with workers; after a kill `start` makes another one, with new names."""

    def __init__(
        self, folder: Path, number: int, count: int, seed: int, queues: Sequence[str]
    ) -> None:
        self._folder, self._number, self._count = folder, number, count
        self._seed, self._queues = seed, queues
        self._process: subprocess.Popen[bytes] | None = None
        self._life = 0
        self._killed: dict[Path, int | None] = {}  # by journal: when
        self.kills = 0

    def start(self) -> None:
        self._life += 1
        name = f"crew{self._number}.{self._life}"
        self._journal = self._folder / f"{name}.jsonl"
        self._killed[self._journal] = None
        command = [sys.executable, "-m", "tests.campaigns.crew", str(self._folder), name]
        numbers = self._number * self._count, self._count, self._seed
        command += [*map(str, numbers), ",".join(self._queues)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)

    def kill(self) -> None:
        """SIGKILL, and another life."""
        assert self._process is not None
        assert self._process.poll() is None, f"{self._journal.stem} has ended by itself"
        self._end()
        self.kills += 1
        self.start()

    def stop(self) -> None:
        """Let them finish what they are at."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._end()
            raise AssertionError(f"{self._journal.stem} does not end") from None
        self._process = None

    def _end(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._killed[self._journal] = time.monotonic_ns()
        self._process.kill()
        self._process.stdin.close()
        self._process.wait()

    def tell(self, history: History) -> None:
        """Add what all lives noted."""
        for journal, killed in self._killed.items():
            if journal.exists():
                history.take(notes_of(journal), killed)


def main() -> None:
    folder, name, first, count, seed, queues = sys.argv[1:]
    journal = Journal(Path(folder) / f"{name}.jsonl")
    address, names = address_in(Path(folder)), queues.split(",")
    workers = []
    for number in range(int(first), int(first) + int(count)):
        node, dice = f"{name}-{number}", random.Random(f"{seed}/{name}/{number}")
        workers.append(Worker(number, node, address, names, journal, dice))
    for worker in workers:
        worker.start()
    sys.stdin.buffer.read()
    end(workers)
    journal.close()


if __name__ == "__main__":
    main()
