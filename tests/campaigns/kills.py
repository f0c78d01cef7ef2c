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


def campaign(data_dir: Path, *, seed: int, kills: int) -> Summary:
    """Writers write while processes are killed; what they know to be stored is there, also after a
    clean restart.
    """
    summary, dice = Summary(seed), random.Random(seed)
    with Server(data_dir, shards=SHARDS) as server:
        killer = Killer(server, SHARDS, dice)
        writers = [
            Writer(number, lambda: server.address, TOPICS, seed) for number in range(WRITERS)
        ]
        for writer in writers:
            writer.start()
        try:
            for _ in range(kills):
                time.sleep(dice.uniform(0.05, 1.2))  # the moment is the point
                killer.kill()
        finally:
            summary.killed = str(killer)
            ledgers = finish(writers)
        for when in ("while it runs", "after a clean restart"):
            if "restart" in when:
                server.restart("stop")
            server.wait_ready(BACK_S)
            with Api(server.address, timeout_s=60) as api:
                summary.problems += [f"{when}: {said}" for said in verify(api, TOPICS, ledgers)]
    for ledger in ledgers:
        summary.counts += Counter(writes=len(ledger.acked), repeated=ledger.retries)
        summary.counts["duplicates"] += ledger.deduped
    return summary


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, kills=50))
