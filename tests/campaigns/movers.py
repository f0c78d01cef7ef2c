"""Records on their way between topics while everything is killed: each stands once in the end.

Queues that have an epoch in common with a queue of another shard (`twins`), as many as can be made:

    dying queue --claimed, given back--> one dead-letter topic --redrive--.
    source queue ----------------------------------redrive----------------'--> one target

Each mover has some of these queues to itself. It repeats a redrive that failed before it begins
another one of that topic, as the contract wants it. The windows of both targets are shorter than a
restart takes. Nobody takes a record out of the circle, so each that was acknowledged is somewhere.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.campaigns.clients import GIVE_UP_S, RETRY_S, Actor, Refused
from tests.support.api import Api, ok
from tests.support.queues import names_on, twins
from tests.support.server import Server

BASE = "twins"
DEAD, TARGET = names_on("moved")  # in two shards
WINDOW_MS = 300
MOVERS = 2
DYING_SHARE = 0.7  # of the queues of a mover
JOBS_MAX, REDRIVE_MAX = 70, 40  # more jobs than a batch has
LEASE_MS = 1000


class Mover(Actor):
    """Appends jobs and moves them on. ``acked``: data of the jobs that are somewhere."""

    def __init__(self, number: int, server: Server, seed: int, groups: list[list[str]]) -> None:
        dice = random.Random(f"{seed}/mover/{number}")
        super().__init__(f"mover-{number}", lambda: server.address, dice)
        self.number = number
        queues = [name for group in groups for name in group]
        self.dying = queues[: max(2, int(len(queues) * DYING_SHARE))]
        self.sources = [*({*queues} - {*self.dying})]
        if number == 0:
            self.sources.append(DEAD)
        self.acked: list[list[int]] = []
        self._numbers = itertools.count()

    def turn(self) -> None:
        self.ending.wait(self.dice.uniform(0, 0.05))
        if self.dice.random() < 0.3:
            self._append(self.dice.choice([*self.dying, *self.sources]))
        elif self.dice.random() < 0.6 or not self.sources:
            self.reject(self.dice.choice(self.dying))
        else:
            self._redrive(self.dice.choice(self.sources))

    def _append(self, queue: str) -> None:
        if queue == DEAD:
            return
        number = next(self._numbers)
        data = [[self.number, number, at] for at in range(self.dice.randint(1, JOBS_MAX))]
        body = {"records": [{"data": each} for each in data], "idempotency_key": f"n{number}"}
        self.line.insist("POST", f"/v0/topics/{queue}", body)
        self.acked += data

    def reject(self, queue: str) -> None:
        """Claim what is there and give it back. A claim that is not answered ends by itself."""
        asked = {"node": "w", "max": 100, "lease_ms": LEASE_MS}
        jobs = self.line.ask("POST", f"/v0/topics/{queue}/claim", asked).json()["claimed"]
        if seqs := [job["$seq"] for job in jobs]:
            self.line.ask("POST", f"/v0/topics/{queue}/nack", {"node": "w", "seqs": seqs})

    def _redrive(self, topic: str) -> None:
        """The same again until all of it is done."""
        asked = {"to": TARGET, "limit": self.dice.randint(1, REDRIVE_MAX)}
        deadline = time.monotonic() + GIVE_UP_S
        while (body := self.line.insist("POST", f"/v0/topics/{topic}/redrive", asked)).get(
            "reason"
        ):
            assert time.monotonic() < deadline, f"redrive of {topic}: {body}"
            time.sleep(RETRY_S)
        self.counts["redriven"] += body["moved"]

    def end(self) -> None:
        """Every job of the dying queues becomes a dead letter."""
        left = [*self.dying]
        deadline = time.monotonic() + GIVE_UP_S
        while left and time.monotonic() < deadline:
            for queue in left:
                with contextlib.suppress(Refused):
                    self.reject(queue)
            left = [queue for queue in left if self.line.api.state(queue)["count"]]
        self.problems += [f"{queue}: jobs do not become dead letters" for queue in left]


def movers(server: Server, seed: int) -> list[Mover]:
    """Movers, not started, and their topics."""
    with Api(server.address) as api:
        for topic in (DEAD, TARGET):
            ok(api.put(topic, {"idempotency_window_ms": WINDOW_MS}), 201)
    groups = twins(server.address, BASE, max_deliveries=1, dead_letter=DEAD, lease_ms=LEASE_MS)
    return [Mover(number, server, seed, groups[number::MOVERS]) for number in range(MOVERS)]


def judged(found: Iterable[Mover], server: Server) -> Iterator[str]:
    """What is wrong once all have ended."""
    wanted: Counter[tuple[int, ...]] = Counter()
    there: Counter[tuple[int, ...]] = Counter()
    topics = {DEAD, TARGET}
    for mover in found:
        mover.end()
        mover.line.close()
        yield from mover.problems
        wanted.update(map(tuple, mover.acked))
        topics.update(mover.dying, mover.sources)
    with Api(server.address, timeout_s=GIVE_UP_S) as api:
        for topic in topics:
            records = api.read(topic, max_batch_bytes=8 << 20)
            there.update(tuple(record["data"]) for record in records)
    for data, count in (wanted - there).items():
        yield f"job {data} of a mover stands nowhere: {count}"
    for data, count in (there - wanted).items():
        yield f"job {data} of a mover stands {count} times too often"
