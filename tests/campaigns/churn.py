"""A kill -9 campaign over everything that takes records away: deletes, caps, TTL and topics made
again, with small log files.

Each owner (`churn_owner`) has one topic to itself and compares it with what it must look like.
Runs as a program: ``python -m tests.campaigns.churn --kills 50 --seed 7``.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from tests.campaigns.churn_owner import KINDS, Owner
from tests.campaigns.clients import end
from tests.campaigns.killer import BACK_S, Killer, Summary, program
from tests.support.server import Server

SHARDS = 2
WAL_FILE_BYTES = 256 << 10  # a log file is full after a second or so


def campaign(data_dir: Path, *, seed: int, kills: int, kinds: str = ",".join(KINDS)) -> Summary:
    """Owners of every kind work while processes are killed; at the end everything is checked after
    a clean restart as well.
    """
    summary = Summary(seed)
    dice = random.Random(seed)
    with Server(data_dir, shards=SHARDS, wal_file_bytes=WAL_FILE_BYTES) as server:
        killer = Killer(server, SHARDS, dice)
        owners = [
            Owner(kind, durability, lambda: server.address, seed)
            for kind in kinds.split(",")
            for durability in ("fsync", "disk")
        ]
        if "deletes" in kinds.split(","):
            owners.append(Owner("deletes", "ephemeral", lambda: server.address, seed))
        for owner in owners:
            owner.start()
        try:
            for _ in range(kills):
                time.sleep(dice.uniform(0.1, 1.5))  # the moment is the point
                killer.kill()
            time.sleep(0.5)
        finally:
            end(owners)
            summary.killed = str(killer)
            summary.counts["log files"] = len(list(data_dir.glob("wal/*/*.wal")))
        server.wait_ready(BACK_S)
        for restart in (False, True):
            if restart:
                server.restart("stop")
            for owner in owners:
                for _ in range(1 + 2 * restart) if not owner.problems else ():
                    owner.attempt(owner.check)
    for owner in owners:
        owner.line.close()
        summary.counts += owner.counts
        summary.problems += owner.problems
    return summary


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, kills=50, kinds=",".join(KINDS)))
