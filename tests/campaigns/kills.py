"""A kill -9 campaign: writers go on while the front, a shard or everything is killed at random
moments.

Runs as a program: ``python -m tests.campaigns.kills --kills 50 --seed 7``. The seed decides who is
killed when; what the kill interrupts is up to the machine, so a seed repeats the schedule and not
the instruction.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path

from tests.campaigns.killer import BACK_S, Killer, Summary, program
from tests.campaigns.writers import Writer, finish, verify
from tests.support.api import Api
from tests.support.server import Server

SHARDS = 2
WRITERS = 6
TOPICS = [f"{durability}-{number}" for durability in ("fsync", "disk") for number in range(4)]


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
            server.restart("stop")
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
        counts = self.summary.counts
        for ledger in self._ledgers:
            counts += Counter(writes=len(ledger.acked), repeated=ledger.retries)
            counts["duplicates"] += ledger.deduped

    def _verify(self, when: str) -> None:
        self._server.wait_ready(BACK_S)
        with Api(self._server.address, timeout_s=60) as api:
            self.summary.problems += [
                f"{when}: {problem}" for problem in verify(api, TOPICS, self._ledgers)
            ]


if __name__ == "__main__":
    sys.exit(program(__doc__, lambda data, **asked: Campaign(data, **asked).run(), kills=50))
