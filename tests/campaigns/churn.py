"""A kill -9 campaign over everything that takes records away: deletes, caps, TTL and topics made
again, with small log files.

Each owner (`churn_owner`) has one topic to itself and compares it with what it must look like.
Runs as a program: ``python -m tests.campaigns.churn --kills 50 --seed 7``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaigns.churn_call import GIVE_UP_S, Report
from tests.campaigns.churn_owner import KINDS, Owner
from tests.campaigns.killer import BACK_S, Killer, verdict_of
from tests.support.server import Server

SHARDS = 2
WAL_FILE_BYTES = 256 << 10  # a log file is full after a second or so


@dataclass(slots=True)
class Summary:
    """What a campaign did and what it found."""

    seed: int
    killed: str = "nobody"
    reports: list[Report] = field(default_factory=list)
    log_files: int = 0

    @property
    def problems(self) -> list[str]:
        return [report.problem for report in self.reports if report.problem]

    def __str__(self) -> str:
        steps, records, deleted, checks = (
            sum(getattr(report, name) for report in self.reports)
            for name in ("steps", "records", "deleted", "checks")
        )
        work = (
            f"{steps} steps, {records} records, {deleted} of them deleted, {checks} checks;"
            f" {self.log_files} log files at the end"
        )
        return "\n".join(
            [
                f"seed {self.seed}: {self.killed}",
                work,
                f"{len(self.problems)} problems",
                *self.problems,
            ]
        )


def campaign(data_dir: Path, *, seed: int, kills: int, kinds: tuple[str, ...] = KINDS) -> Summary:
    """Owners of every kind work while processes are killed; at the end everything is checked after
    a clean restart as well.
    """
    summary = Summary(seed)
    dice = random.Random(seed)
    with Server(data_dir, shards=SHARDS, wal_file_bytes=WAL_FILE_BYTES) as server:
        killer = Killer(server, SHARDS, dice)
        owners = [
            Owner(kind, durability, lambda: server.address, seed)
            for kind in kinds
            for durability in ("fsync", "disk")
        ]
        if "deletes" in kinds:
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
            summary.killed, summary.reports = str(killer), [owner.report for owner in owners]
            summary.log_files = len(list(data_dir.glob("wal/*/*.wal")))
        assert not any(owner.is_alive() for owner in owners), "an owner hangs"
        server.wait_ready(BACK_S)
        server.stop()
        server.start()
        for owner in owners:
            owner.check_again()
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    arguments = parser.parse_args()
    return verdict_of(
        arguments.seed,
        lambda data: campaign(
            data,
            seed=arguments.seed,
            kills=arguments.kills,
            kinds=tuple(arguments.kinds.split(",")),
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
