"""Some workers in a process of their own, so that they can be killed: ``python -m
tests.campaigns.crew FOLDER NAME --first N --count N --seed N --queues a,b``.

FOLDER holds a file ``address``, which says where the server is now, and gets the journal
``NAME.jsonl``. The process works until its stdin ends.
"""

from __future__ import annotations

import argparse
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
        command += ["--first", str(self._number * self._count), "--count", str(self._count)]
        command += ["--seed", str(self._seed), "--queues", ",".join(self._queues)]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--queues", required=True)
    arguments = parser.parse_args()
    journal = Journal(arguments.folder / f"{arguments.name}.jsonl")
    workers = [
        Worker(
            number,
            f"{arguments.name}-{number}",
            address_in(arguments.folder),
            arguments.queues.split(","),
            journal,
            random.Random(f"{arguments.seed}/{arguments.name}/{number}"),
        )
        for number in range(arguments.first, arguments.first + arguments.count)
    ]
    for worker in workers:
        worker.start()
    sys.stdin.buffer.read()
    end(workers)
    journal.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
