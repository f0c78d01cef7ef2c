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

from tests.campaigns.churn_call import GIVE_UP_S
from tests.campaigns.churn_owner import KINDS, Owner
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
            for owner in owners:
                owner.stop.set()
            for owner in owners:
                owner.join(2 * GIVE_UP_S)
            summary.killed = str(killer)
            summary.counts["log files"] = len(list(data_dir.glob("wal/*/*.wal")))
        assert not any(owner.is_alive() for owner in owners), "an owner hangs"
        server.wait_ready(BACK_S)
        server.restart("stop")
        for owner in owners:
            owner.check_again()
    for report in (owner.report for owner in owners):
        for name in ("steps", "records", "deleted", "checks"):
            summary.counts[name] += getattr(report, name)
        summary.problems += [report.problem] if report.problem else []
    return summary


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, kills=50, kinds=",".join(KINDS)))
