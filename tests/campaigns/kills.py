"""A kill -9 campaign: writers go on while the front, a shard or everything is killed at random
moments.

Runs as a program: ``python -m tests.campaigns.kills --kills 50 --seed 7``. The seed decides who is
killed when; what the kill interrupts is up to the machine, so a seed repeats the schedule and not
the instruction.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaigns.killer import BACK_S, Killer, verdict_of
from tests.campaigns.writers import Writer, finish, verify
from tests.support.api import Api
from tests.support.server import Server

SHARDS = 2
WRITERS = 6
TOPICS = [f"{durability}-{number}" for durability in ("fsync", "disk") for number in range(4)]


@dataclass(slots=True)
class Summary:
    """What a campaign did and what it found."""

    seed: int
    killed: str = "nobody"
    writes: int = 0
    retries: int = 0
    deduped: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.killed}",
            (
                f"{self.writes} writes acknowledged, {self.retries} attempts repeated,"
                f" {self.deduped} recognised as duplicates"
            ),
            f"{len(self.problems)} problems",
            *self.problems[:20],
        ]
        return "\n".join(lines)


class Campaign:
    """One server, a few writers, one killer."""

    def __init__(self, data_dir: Path, *, seed: int, kills: int) -> None:
        self.summary = Summary(seed)
        self._server = Server(data_dir, shards=SHARDS)
        self._kills = kills
        self._random = random.Random(seed)
        self._killer = Killer(self._server, SHARDS, self._random)

    def run(self) -> Summary:
        with self._server as server:
            self._with_writers()
            self._verify("while it runs")
            server.stop()
            server.start()
            self._verify("after a clean restart")
        return self.summary

    def _with_writers(self) -> None:
        writers = [
            Writer(number, lambda: self._server.address, TOPICS, self.summary.seed)
            for number in range(WRITERS)
        ]
        for writer in writers:
            writer.start()
        try:
            for _ in range(self._kills):
                time.sleep(self._random.uniform(0.05, 1.2))  # the moment is the point
                self._killer.kill()
        finally:
            self.summary.killed = str(self._killer)
            self._ledgers = finish(writers)
        self.summary.writes = sum(len(ledger.acked) for ledger in self._ledgers)
        self.summary.retries = sum(ledger.retries for ledger in self._ledgers)
        self.summary.deduped = sum(ledger.deduped for ledger in self._ledgers)

    def _verify(self, when: str) -> None:
        self._server.wait_ready(BACK_S)
        with Api(self._server.address, timeout_s=60) as api:
            self.summary.problems += [
                f"{when}: {problem}" for problem in verify(api, TOPICS, self._ledgers)
            ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    arguments = parser.parse_args()
    return verdict_of(
        arguments.seed,
        lambda data: Campaign(data, seed=arguments.seed, kills=arguments.kills).run(),
    )


if __name__ == "__main__":
    sys.exit(main())
