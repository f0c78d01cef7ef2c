"""Watchers while the front, a shard or everything is killed and networks are cut: each sees every
record once, or is told of the gap.

Each watcher (`watcher`) follows a few topics over SSE. At the end all must stand at the heads, and
what they saw must be what was acknowledged to the writers. Runs as a program: ``python -m
tests.campaigns.watchers --seconds 300 --seed 1``.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.campaigns.killer import BACK_S, Killer, Summary, program
from tests.campaigns.watcher import CAPS, Seen, Watcher
from tests.campaigns.writers import Ledger, Writer, finish
from tests.support.api import Api, ok
from tests.support.server import Server

SHARDS = 2
WRITERS = 4
WAL_FILE_BYTES = 1 << 20  # some of what a resume reads stands in segments
# The capped ones more often: a reader falls behind sooner.
WRITTEN = [*CAPS, "disk-capped", "disk-capped", "fsync-capped"]
PADDINGS = (0, 200, 2000, 16_000)
KILL_SHARE = 0.25  # of what happens; the rest are cuts
ARRIVE_S = 60.0  # for everything that is still under way at the end
CUTS = ("end", "reset", "vanish")


class PacedWriter(Writer):
    """Few and small enough for many watchers."""

    def records(self, topic: str) -> list[dict[str, Any]]:
        self.ending.wait(self.dice.uniform(0.0, 0.04))
        return self.made(self.dice.randint(1, 4), "x" * self.dice.choice(PADDINGS))


def campaign(data_dir: Path, *, seed: int, seconds: float, watchers: int) -> Summary:
    """Writers write and watchers watch while processes are killed and networks cut; then everything
    must arrive.
    """
    summary, dice, seen = Summary(seed), random.Random(seed), Seen()
    with Server(data_dir, shards=SHARDS, wal_file_bytes=WAL_FILE_BYTES) as server:
        with Api(server.address) as api:
            for topic, cap in CAPS.items():
                ok(api.put(topic, {"durability": topic.partition("-")[0], "cap_records": cap}), 201)
        killer = Killer(server, SHARDS, dice)
        writers = [
            PacedWriter(number, lambda: server.address, WRITTEN, seed) for number in range(WRITERS)
        ]
        readers = [
            Watcher(number, lambda: server.address, seed, seen) for number in range(watchers)
        ]
        for thread in (*writers, *readers):
            thread.start()
        try:
            _harm(dice, killer, readers, seconds)
        finally:
            ledgers = finish(writers)
            summary.killed = str(killer)
        server.wait_ready(BACK_S)
        heads = _compare(summary, ledgers, seen)
        for reader in readers:
            reader.end_at(heads)
        deadline = time.monotonic() + ARRIVE_S
        for reader in readers:
            reader.join(max(deadline - time.monotonic(), 0.0))
            summary.counts += reader.report.counts
            if reader.report.problem is not None:
                summary.problems.append(reader.report.problem)
            elif reader.is_alive():
                summary.problems.append(f"{reader}: stands and must come to: {reader.missing}")
        _compare(summary, ledgers, seen)
    summary.problems = list(dict.fromkeys(summary.problems))
    return summary


def _harm(dice: random.Random, killer: Killer, readers: list[Watcher], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(dice.uniform(0.05, 0.8))  # the moment is the point
        if dice.random() < KILL_SHARE:
            killer.kill()
        else:
            for reader in dice.sample(readers, min(dice.randint(1, 3), len(readers))):
                reader.cut(dice.choice(CUTS))


def _compare(summary: Summary, ledgers: list[Ledger], seen: Seen) -> dict[str, int]:
    """The heads, as the acknowledged records tell; and whether what was seen is what was
    acknowledged.
    """
    summary.problems += [problem for ledger in ledgers for problem in ledger.problems]
    stored: Seen = {}
    for ledger in ledgers:
        for number, write in ledger.acked.items():
            stored |= {
                (write.topic, seq): (ledger.writer, number, position)
                for position, seq in enumerate(write.seqs)
            }
    summary.counts["acknowledged"] = len(stored)
    heads = dict.fromkeys(CAPS, 0)
    counts = Counter(topic for topic, _ in stored)
    for topic, seq in stored:
        heads[topic] = max(heads[topic], seq)
    summary.problems += [
        f"{topic}: {counts[topic]} records are acknowledged up to seq {head}"
        for topic, head in heads.items()
        if counts[topic] != head
    ]
    summary.problems += [
        f"{topic}, seq {seq}: seen as {what}, acknowledged as {stored.get((topic, seq))}"
        for (topic, seq), what in list(seen.items())
        if stored.get((topic, seq)) != what
    ][:20]
    return heads


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, seconds=300.0, watchers=50))
