"""Queue work of the load that is recorded for a power loss (`power_load`): jobs, some of them
delayed, claims, acks, nacks, extends and dead letters.

Leases and delays are long: states are judged long after they were made. So nothing ends by itself,
and every step is noted with what it did.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.support.api import Api, ok

QUEUE_CLASSES = ("fsync", "disk")
MAX_DELIVERIES = 2
LONG_MS = (12 * 3600 * 1000, 23 * 3600 * 1000)
DUE_MS = 20 * 24 * 3600 * 1000
MOVED_S = 10.0
NODES = ("worker-1", "worker-2", "worker-3")

Do = Callable[..., Any]
"""As `power_load.Load._do`."""


class Held(NamedTuple):
    """A job that a node holds."""

    seq: int
    token: str
    node: str
    deliveries: int


def queues_of(durability: str) -> tuple[str, str]:
    """Its queues: one with durable leases and dead letters, one without."""
    return f"{durability}.firm", f"{durability}.loose"


def dead_of(durability: str) -> str:
    return f"{durability}.dead"


class QueueLoad:
    """Works on the queues and knows what is held. ``do`` sends a step and notes it."""

    def __init__(self, do: Do, note: Callable[[dict[str, Any]], None], dice: random.Random) -> None:
        self._do, self._note, self._dice = do, note, dice
        self._held: dict[str, list[Held]] = defaultdict(list)
        self._free: dict[str, int] = defaultdict(int)  # jobs that were delivered and nobody holds
        self._moved: dict[str, int] = defaultdict(int)
        self._number = 0

    def make(self, window_ms: int) -> None:
        """Make the queues."""
        for durability in QUEUE_CLASSES:
            dead = {"durability": durability, "idempotency_window_ms": window_ms}
            self._put(dead_of(durability), dead)
            queue = {"type": "queue", **dead}
            firm, loose = queues_of(durability)
            moves = {"max_deliveries": MAX_DELIVERIES, "dead_letter": dead_of(durability)}
            self._put(firm, {**queue, "leases_durable": True, **moves})
            self._put(loose, queue)

    def restarted(self) -> None:
        """What a queue without durable leases knows of deliveries is gone."""
        for durability in QUEUE_CLASSES:
            _, loose = queues_of(durability)
            self._held[loose].clear()
            self._free[loose] = 0

    def step(self, api: Api, durability: str) -> None:
        """One step on one queue of this class."""
        queue = queues_of(durability)[self._dice.random() < 0.3]
        held, step = self._held[queue], self._dice.random()
        if step < 0.3 or (step >= 0.55 and not held):
            self._append(queue)
        elif step < 0.55:
            self._claim(queue, self._dice.randint(1, 4))
        elif step < 0.75:
            self._ack(queue, self._some(held))
        elif step < 0.83:
            self._extend(queue, self._some(held))
        elif step < 0.9 or queue.endswith("loose"):
            delay_ms = self._dice.choice((0, self._dice.randint(*LONG_MS)))
            # A job that would be moved next is hidden: `_bury` says when it is moved.
            some = [each for each in self._some(held) if each.deliveries < MAX_DELIVERIES]
            self._nack(queue, some, delay_ms)
        else:
            self._bury(api, queue, durability)

    def _put(self, topic: str, config: dict[str, Any]) -> None:
        self._do("put", topic, "PUT", "", config, config=config)

    def _some(self, held: list[Held]) -> list[Held]:
        """Jobs of one node."""
        if not held:
            return []
        node = self._dice.choice(held).node
        mine = [each for each in held if each.node == node]
        return self._dice.sample(mine, self._dice.randint(1, min(3, len(mine))))

    def _append(self, queue: str) -> None:
        self._number += 1
        records = []
        for position in range(self._dice.choice((1, 2, 5))):
            size = self._dice.choice((10, 300, 2500))
            record: dict[str, Any] = {"data": [self._number, position, "x" * size]}
            if self._dice.random() < 0.15:
                record["delay_ms"] = DUE_MS
            records.append(record)
        sent = {"records": records, "idempotency_key": f"kq{self._number}"}
        key = sent["idempotency_key"]
        self._do("append", queue, "POST", "", sent, records=records, key=key)

    def _claim(self, queue: str, max_jobs: int) -> None:
        node = self._dice.choice(NODES)
        lease_ms = self._dice.randint(*LONG_MS)
        sent = {"node": node, "max": max_jobs, "lease_ms": lease_ms}

        def noted(body: Any) -> dict[str, Any]:
            jobs = [
                [job["$seq"], _number(job["lease_id"]), job["deadline"], job["deliveries"]]
                for job in body["claimed"]
            ]
            return {"node": node, "jobs": jobs}

        body = self._do("claim", queue, "POST", "/claim", sent, answered=noted)
        for job in body["claimed"]:
            self._held[queue].append(Held(job["$seq"], job["lease_id"], node, job["deliveries"]))
            self._free[queue] -= job["deliveries"] > 1

    def _ack(self, queue: str, jobs: list[Held]) -> None:
        self._finish("ack", queue, jobs)

    def _nack(self, queue: str, jobs: list[Held], delay_ms: int) -> None:
        self._finish("nack", queue, jobs, delay_ms=delay_ms)
        self._free[queue] += 0 if delay_ms else len(jobs)

    def _extend(self, queue: str, jobs: list[Held]) -> None:
        lease_ms = self._dice.randint(*LONG_MS)

        def noted(body: Any) -> dict[str, Any]:
            deadlines = [[int(seq), deadline] for seq, deadline in body["deadlines"].items()]
            return {"deadlines": deadlines}

        self._finish("extend", queue, jobs, lease_ms=lease_ms, answered=noted)

    def _finish(self, step: str, queue: str, jobs: list[Held], **fields: Any) -> None:
        """Ack, nack or extend jobs that are held; none may be skipped."""
        if not jobs:
            return
        answered = fields.pop("answered", None)
        seqs, tokens = [job.seq for job in jobs], [job.token for job in jobs]
        sent = {"node": jobs[0].node, "seqs": seqs, "lease_ids": tokens, **fields}
        sent_ms, began = time.time_ns() // 1_000_000, time.monotonic()

        def noted(body: Any) -> dict[str, Any]:
            assert body["skipped"] == [], f"{step} of {jobs} in {queue} answers {body}"
            took_ms = int((time.monotonic() - began) * 1000) + 1
            told = answered(body) if answered is not None else {}
            return {"seqs": seqs, "sent_ms": sent_ms, "took_ms": took_ms, **fields, **told}

        self._do(step, queue, "POST", f"/{step}", sent, answered=noted)
        if step != "extend":
            self._held[queue] = [each for each in self._held[queue] if each not in jobs]

    def _spent(self, queue: str) -> list[Held]:
        """Jobs that are moved when they are given back."""
        return [each for each in self._held[queue] if each.deliveries >= MAX_DELIVERIES]

    def _bury(self, api: Api, queue: str, durability: str) -> None:
        """Give back jobs that were delivered often enough, and wait until they are moved."""
        jobs = self._some(self._spent(queue))
        if not jobs:  # make some
            self._nack(queue, self._some(self._held[queue]), 0)
            self._claim(queue, self._free[queue] + 1)
            jobs = self._some(self._spent(queue))
        if not jobs:
            return
        self._nack(queue, jobs, 0)
        self._free[queue] -= len(jobs)  # nobody will get them
        dead, seqs = dead_of(durability), sorted(job.seq for job in jobs)
        head = ok(api.get(dead, touch="false"))["head_seq"]
        began = time.monotonic_ns()
        self._claim(queue, self._free[queue] + 1)  # so many that the pass comes to all of them
        self._moved[queue] += len(jobs)
        deadline = time.monotonic() + MOVED_S
        while (moved := ok(api.get(queue, touch="false"))["queue"]["dead_lettered"]) < (
            self._moved[queue]
        ):
            assert time.monotonic() < deadline, f"{moved} of {self._moved[queue]} are moved"
            time.sleep(0.002)
        copies = api.read(dead, from_seq=head)
        there = sorted(copy["meta"]["$dead_letter_src_seq"] for copy in copies)
        assert there == seqs, f"{seqs} of {queue} became {copies}"
        moment = {"sent": began, "acknowledged": time.monotonic_ns()}
        for copy in copies:  # each has a key, and a frame of its own
            one = {"first_seq": copy["$seq"], "records": [{"data": copy["data"]}]}
            self._note({"step": "append", "topic": dead, **one, **moment})
        self._note({"step": "bury", "topic": queue, "seqs": seqs, **moment})


def _number(token: str) -> int:
    return int(token.removeprefix("lease_"), 16)
