"""Random walks over a queue, beside a model that knows each job's state. Leases and delays last an
hour, so that no time passes for the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.queues import HOUR_MS, Queue, counters, numbers
from tests.support.server import Server

pytestmark = pytest.mark.slow

NODES = ("a", "b", "c")
STEPS = 150
VERBS: list[tuple[str, dict[str, Any], str, str]] = [
    ("ack", {}, "acked", "gone"),
    ("nack", {}, "nacked", "freed"),
    ("nack", {"delay_ms": HOUR_MS}, "nacked", "hidden"),
    ("extend", {"lease_ms": HOUR_MS}, "extended", "held"),
]


@dataclass(slots=True)
class Model:
    """Every live seq is in exactly one of these."""

    fresh: set[int] = field(default_factory=set)
    freed: set[int] = field(default_factory=set)
    hidden: set[int] = field(default_factory=set)
    delayed: set[int] = field(default_factory=set)
    held: dict[int, tuple[str, str]] = field(default_factory=dict)  # node and token
    deliveries: dict[int, int] = field(default_factory=dict)
    tags: dict[int, str] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)  # all that there ever were

    @property
    def live(self) -> list[int]:
        return sorted({*self.fresh, *self.freed, *self.hidden, *self.delayed, *self.held})

    def drop(self, seqs: set[int]) -> None:
        for where in (self.fresh, self.freed, self.hidden, self.delayed):
            where -= seqs
        for seq in seqs:
            self.held.pop(seq, None)


class Walk:
    """A walk over one queue, whose every step is checked."""

    def __init__(self, queue: Queue, seed: int) -> None:
        self.queue, self.model, self.chance = queue, Model(), random.Random(seed)

    def push(self) -> None:
        records = []
        for _ in range(self.chance.randrange(1, 6)):
            late = {"delay_ms": HOUR_MS} if self.chance.random() < 0.2 else {}
            records.append({"data": 1, "tag": self.chance.choice("xyz"), **late})
        for seq, record in zip(
            ok(self.queue.api.append(self.queue.name, records=records))["seqs"],
            records,
            strict=True,
        ):
            (self.model.delayed if "delay_ms" in record else self.model.fresh).add(seq)
            self.model.tags[seq] = str(record["tag"])

    def claim(self) -> None:
        model, node, most = self.model, self.chance.choice(NODES), self.chance.randrange(1, 8)
        jobs = self.queue.claim(node, most, lease_ms=HOUR_MS)
        seqs = {*numbers(jobs)}
        from_freed = min(most, len(model.freed))
        assert len(seqs & model.freed) == from_freed
        fresh = sorted(model.fresh)[: most - from_freed]
        assert seqs - model.freed == {*fresh}, "fresh ones from the head"
        model.drop(seqs)
        for job in jobs:
            seq = job["$seq"]
            model.deliveries[seq] = model.deliveries.get(seq, 0) + 1
            assert job["deliveries"] == model.deliveries[seq]
            assert job["$tag"] == model.tags[seq]
            assert job["lease_id"] not in model.tokens
            model.held[seq] = node, job["lease_id"]
            model.tokens.append(job["lease_id"])

    def settle(self) -> None:
        """Ack, nack or extend some seqs, some of them in vain."""
        model, chance = self.model, self.chance
        node = chance.choice(NODES)
        mine = {seq for seq, (holder, _) in model.held.items() if holder == node}
        known = [0, *range(1, len(model.tags) + 3), 2**64 - 1]
        asked = {*chance.sample(known, min(len(known), chance.randrange(1, 6)))}
        asked |= {seq for seq in mine if chance.random() < 0.5}
        seqs = chance.sample(sorted(asked), len(asked))
        verb, body, done, where = chance.choice(VERBS)
        body, good = {"node": node, "seqs": seqs, **body}, mine & asked
        if chance.random() < 0.5:
            fence = [self._token(seq) for seq in seqs]
            body["lease_ids"] = fence
            good -= {
                seq for seq, token in zip(seqs, fence, strict=True) if not self._is(seq, token)
            }
        answer = ok(self.queue.call(verb, body))
        assert answer["skipped"] == [seq for seq in seqs if seq not in good]
        assert answer[done] == len(good)
        if where != "held":
            model.drop(good)
        if where in ("freed", "hidden"):
            getattr(model, where).update(good)

    def _is(self, seq: int, token: str) -> bool:
        return self.model.held.get(seq, ("", ""))[1] == token

    def _token(self, seq: int) -> str:
        """The right one, mostly."""
        if seq in self.model.held and self.chance.random() < 0.7:
            return self.model.held[seq][1]
        return self.chance.choice([*self.model.tokens, "lease_0"])

    def erase(self) -> None:
        live = self.model.live
        tag = self.chance.choice("xyz")
        before = self.chance.choice(live) if live else 1
        self.queue.erase(match=tag, before_seq=before)
        self.model.drop({seq for seq in live if seq < before and self.model.tags[seq] == tag})

    def check(self) -> None:
        model = self.model
        expected = counters(
            ready=len(model.fresh) + len(model.freed),
            in_flight=len(model.held),
            delayed=len(model.delayed),
        )
        assert self.queue.counters() == expected
        assert self.queue.live() == model.live
        told = [
            (lease["$seq"], lease["node"], lease["lease_id"], lease["deliveries"])
            for lease in self.queue.leases()
        ]
        assert told == [
            (seq, *model.held[seq], model.deliveries[seq]) for seq in sorted(model.held)
        ]

    def run(self, steps: int) -> None:
        moves: list[Callable[[], None]] = [self.push, self.claim, self.settle, self.erase]
        for _ in range(steps):
            self.chance.choices(moves, [3, 5, 8, 1])[0]()
            self.check()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("leases_durable", [False, True], ids=["loose", "durable"])
def test_every_answer_is_that_of_the_model(
    api: Api, topic: str, leases_durable: bool, seed: int
) -> None:
    Walk(Queue.create(api, topic, leases_durable=leases_durable), seed).run(STEPS)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_restart_changes_nothing_that_the_model_knows(
    tmp_path: Path, durability: str, seed: int
) -> None:
    with Server(tmp_path / "data", shards=1, wal_file_bytes=64 << 10) as server:
        with Api(server.address) as api:
            walk = Walk(Queue.create(api, "q", durability=durability, leases_durable=True), seed)
            walk.run(STEPS // 3)
        for end in ("kill", "stop", "kill"):
            server.kill() if end == "kill" else server.stop()
            server.start()
            with Api(server.address) as api:
                walk.queue = Queue(api, "q")
                walk.check()
                walk.run(STEPS // 3)
