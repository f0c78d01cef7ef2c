"""Workers of queues while they, the front, a shard or everything is killed: no job is lost, none is
held twice, nobody finishes what is no longer theirs.

Producers append with keys; workers (`worker`, in processes of their own: `crew`) claim, stream,
ack, nack, extend and die. In the end all is counted, claimed and acked, and `worker_judge` says
what is wrong. Runs as a program: ``python -m tests.campaigns.workers --seconds 300 --seed 1``.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.campaigns.clients import end
from tests.campaigns.crew import Crew, tell_address
from tests.campaigns.killer import BACK_S, Killer, Summary, damage, deaths_by_themselves, program
from tests.campaigns.movers import Mover, judged, movers
from tests.campaigns.worker import REJECTED
from tests.campaigns.worker_end import Ending
from tests.campaigns.worker_history import Death, History, Job, Rules
from tests.campaigns.worker_judge import judge
from tests.campaigns.writers import Writer, finish
from tests.support.api import Api, ok
from tests.support.server import Server
from topics.formats.names import shard_of

SHARDS = 2
CREWS, CREW = 8, 4
PRODUCERS = 3
WAL_FILE_BYTES = 64 << 10  # sealing and checkpoints all the time
PADDINGS = (0, 100, 1000, 5000)
FAR_MS = 3600_000  # a job that is not due before the end
CREW_SHARE = 0.6  # of the kills
BACKLOG_MAX = 1500  # jobs of a queue; above, its producers pause
# Of a campaign that is long enough; a check that met nothing proves nothing.
WANTED = (
    *("deliveries again", "live", "stale: expired", "stale: released", "stale: superseded"),
    *("stale: no token", "acked", "dead-lettered", "jobs of twins", "redriven"),
)

QUEUES: dict[str, dict[str, Any]] = {
    "loose": {"durability": "disk"},
    "firm": {"durability": "fsync", "leases_durable": True},
    "cohort": {"durability": "disk", "claim_jitter_ms": 15},
    "dying": {"durability": "disk", "leases_durable": True, "max_deliveries": 3},
    "doomed": {"durability": "fsync", "max_deliveries": 2},
    REJECTED: {"durability": "disk", "max_deliveries": 1},
}


def _elsewhere(queue: str) -> str:
    """A name for its dead-letter topic, in another shard."""
    names = (f"{queue}.dead{number}" for number in range(100))
    home = shard_of(queue, SHARDS)
    return next(name for name in names if shard_of(name, SHARDS) != home)


for _name, _config in QUEUES.items():
    _config |= {"type": "queue", "lease_ms": 2000}
    if "max_deliveries" in _config:
        _config["dead_letter"] = _elsewhere(_name)
RULES = {
    name: Rules(shard_of(name, SHARDS), *map(config.get, Rules._fields[1:], Rules(0)[1:]))
    for name, config in QUEUES.items()
}


class Producer(Writer):
    """Appends jobs, some of them with a delay. ``jobs``: what was acknowledged, and when due."""

    def __init__(self, number: int, server: Server, seed: int, backlog: dict[str, int]) -> None:
        super().__init__(number, lambda: server.address, [*QUEUES], seed)
        self.jobs: dict[tuple[str, int], Job] = {}
        self._backlog = backlog

    def records(self, topic: str) -> list[dict[str, Any]]:
        self.ending.wait(self.dice.uniform(0.0, 0.06))
        while self._backlog.get(topic, 0) > BACKLOG_MAX and not self.ending.wait(0.05):
            pass
        records = self.made(self.dice.choice((1, 1, 2, 3, 8)), "x" * self.dice.choice(PADDINGS))
        for record in records:
            if delay := self.dice.choice((0, 0, 0, 0, 0, 60, 700)):
                record["delay_ms"] = delay
        if self.dice.random() < 0.01:
            records[-1]["delay_ms"] = FAR_MS
        self._made = time.monotonic_ns()
        return records

    def fields(self, topic: str) -> dict[str, Any]:
        return {}

    def note(self, topic: str, records: list[dict[str, Any]], answer: Any) -> None:
        super().note(topic, records, answer)
        for seq, record in zip(answer["seqs"], records, strict=True):
            delay = record.get("delay_ms", 0)
            self.jobs[topic, seq] = Job(
                record["data"], self._made + delay * 1_000_000 if delay else 0
            )


class Campaign:
    """One server with its queues, producers, movers and crews, and what kills them."""

    def __init__(self, data_dir: Path, *, seed: int, seconds: float, crews: int) -> None:
        self.summary, self._history, self._seconds = Summary(seed), History(), seconds
        self._history.queues = dict(RULES)
        self._data_dir, self._journals = data_dir, data_dir.with_name("journals")
        self._journals.mkdir()
        self._server = Server(data_dir, shards=SHARDS, wal_file_bytes=WAL_FILE_BYTES)
        self._killer = Killer(self._server, SHARDS, random.Random(seed))
        self._backlog: dict[str, int] = {}
        self._crews = [Crew(self._journals, n, CREW, seed, [*QUEUES]) for n in range(crews)]

    def run(self) -> Summary:
        with self._server as server:
            tell_address(self._journals, server.address)
            with Api(server.address) as api:
                for name, config in QUEUES.items():
                    ok(api.put(name, config), 201)
            moving = movers(server, self.summary.seed)
            self._load(moving)
            self.summary.problems += judged(moving, server)
            self._history.deaths = [Death(*death) for death in self._killer.deaths]
            tell_address(self._journals, server.address)
            ends = Ending(server, self._journals, self._history).run()
        verdict = judge(self._history, ends)
        self.summary.counts += verdict.counts
        self.summary.problems += list(dict.fromkeys(verdict.problems))
        self.summary.problems += damage(self._data_dir, SHARDS)
        return self.summary

    def _load(self, moving: list[Mover]) -> None:
        """Producers, workers and movers at work, and what kills them."""
        summary, seed = self.summary, self.summary.seed
        producers = [Producer(n, self._server, seed, self._backlog) for n in range(PRODUCERS)]
        try:
            for crew in self._crews:
                crew.start()
            for thread in (*producers, *moving):
                thread.start()
            self._harm()
        finally:
            ledgers = finish(producers)
            end(moving)
            for crew in self._crews:
                crew.stop()
        for mover in moving:
            summary.counts += mover.counts + Counter({"jobs of twins": len(mover.acked)})
        for crew in self._crews:
            crew.tell(self._history)
        for producer in producers:
            self._history.jobs |= producer.jobs
        kills = sum(crew.kills for crew in self._crews)
        summary.killed = f"{self._killer}; crews killed {kills}x"
        summary.problems += [problem for ledger in ledgers for problem in ledger.problems]
        summary.counts["appends repeated"] = sum(ledger.retries for ledger in ledgers)

    def _harm(self) -> None:
        """Kill at random; what dies without being killed here is a problem."""
        deadline, dice, wrong = time.monotonic() + self._seconds, self._killer.dice, list[str]()
        while time.monotonic() < deadline:
            time.sleep(dice.uniform(0.1, 1.0))  # the moment is the point
            if dice.random() < CREW_SHARE:
                dice.choice(self._crews).kill()
            else:
                wrong += deaths_by_themselves(self._server)
                self._killer.kill()
                tell_address(self._journals, self._server.address)
            with contextlib.suppress(OSError, EOFError), Api(self._server.address) as api:
                for queue in QUEUES:
                    answer = api.get(queue, touch="false")
                    if answer.status == 200:
                        self._backlog[queue] = answer.json()["count"]
        self._server.wait_ready(BACK_S)
        self.summary.problems += dict.fromkeys(wrong + deaths_by_themselves(self._server))


def campaign(data_dir: Path, *, seed: int, seconds: float, crews: int = CREWS) -> Summary:
    """Jobs come and go while processes are killed; then all must be accounted for."""
    return Campaign(data_dir, seed=seed, seconds=seconds, crews=crews).run()


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, WANTED, seconds=300.0, crews=CREWS))
