"""Writers that lose no records: every write has an idempotency key and is repeated until it is
acknowledged.

A record's data is ``[writer, number, position, padding]``: the writer, the number of its write, and
the position of the record in this write. Topics are named after their durability class and created
by their first write.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.campaigns.clients import Actor, Address, stop_actors
from tests.support.api import Api

LARGE = "x" * (2**20 - 100)
LARGE_SHARE = 0.01


@dataclass(slots=True)
class Write:
    """One acknowledged write."""

    topic: str
    seqs: list[int]


@dataclass(slots=True)
class Ledger:
    """The acknowledged writes of one writer, and the write whose outcome is unknown."""

    writer: int
    acked: dict[int, Write] = field(default_factory=dict)
    uncertain: int | None = None
    problems: list[str] = field(default_factory=list)


class Writer(Actor):
    """Appends batches to random topics, and repeats a batch with the same key after every failure.

    It stops between two writes, or it is abandoned during one, whose outcome is then unknown.
    """

    def __init__(self, number: int, address: Address, topics: Sequence[str], seed: int) -> None:
        super().__init__(f"writer-{number}", address, random.Random(f"{seed}/{number}"))
        self.ledger = Ledger(number, problems=self.problems)
        self._topics = topics
        self._number = 0  # of the next write

    def step(self) -> None:
        topic = self.rng.choice(self._topics)
        self.ledger.uncertain = self._number
        records = self.records(topic)
        body: dict[str, Any] = {
            "records": records,
            "idempotency_key": f"{self.name}-{self._number}",
            "config": {"durability": topic.partition("-")[0]},
        }
        answer = self.client.request_until_done("POST", f"/v0/topics/{topic}", body)
        if answer is not None:
            self.ledger.acked[self._number] = Write(topic, answer["seqs"])
            self.ledger.uncertain = None
            self._number += 1

    def records(self, topic: str) -> list[dict[str, Any]]:
        """Return mostly a few small records, sometimes a body of several megabytes."""
        large = self.rng.random() < LARGE_SHARE
        size, padding = (5, LARGE) if large else (self.rng.randint(1, 3), "")
        return self.make_records(size, padding)

    def make_records(self, size: int, padding: str) -> list[dict[str, Any]]:
        """Return the records of the next write."""
        write_id = self.ledger.writer, self._number
        return [{"data": [*write_id, position, padding]} for position in range(size)]


def finish(writers: Sequence[Writer], *, abandon: bool = False) -> list[Ledger]:
    """Stop the writers and return their ledgers."""
    for writer in writers if abandon else ():
        writer.client.abandoned.set()
    stop_actors(writers)
    return [writer.ledger for writer in writers]


def verify(api: Api, topics: Sequence[str], ledgers: Sequence[Ledger]) -> list[str]:
    """Return the errors in the topics as text: acknowledged records that are lost, moved,
    duplicated or out of order, and missing seqs.
    """
    problems = [problem for ledger in ledgers for problem in ledger.problems]
    found: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
    for topic in topics:
        records = api.read(topic, max_batch_bytes=8 << 20)
        seqs = [record["$seq"] for record in records]
        if seqs != list(range(1, len(seqs) + 1)):
            problems.append(f"{topic}: seqs have holes or decrease: {_first_break(seqs)}")
        problems += _disorder(topic, [tuple(record["data"][:3]) for record in records])
        for record in records:
            writer, number, position, _padding = record["data"]
            found.setdefault((writer, number), []).append((topic, record["$seq"], position))
    for ledger in ledgers:
        problems += _compare(ledger, found)
    return problems


def _first_break(seqs: list[int]) -> str:
    for expected, seq in enumerate(seqs, 1):
        if seq != expected:
            return f"{seq} instead of {expected}"
    return "none"


def _disorder(topic: str, records: list[tuple[int, ...]]) -> list[str]:
    last: dict[int, tuple[int, ...]] = {}
    problems = []
    for writer, *write_id in records:
        if tuple(write_id) <= last.get(writer, (-1,)):
            problems.append(f"{topic}: writer {writer}: write {write_id} follows {last[writer]}")
        last[writer] = tuple(write_id)
    return problems


def _compare(ledger: Ledger, found: dict[tuple[int, int], list[tuple[str, int, int]]]) -> list[str]:
    problems = []
    for number, write in ledger.acked.items():
        expected = [(write.topic, seq, position) for position, seq in enumerate(write.seqs)]
        if (stored := found.get((ledger.writer, number), [])) != expected:
            problems.append(
                f"writer {ledger.writer}, write {number}: acknowledged as {expected},"
                f" stored {stored}"
            )
    known = {*ledger.acked, ledger.uncertain}
    unknown = [
        number for writer, number in found if writer == ledger.writer and number not in known
    ]
    if unknown:
        problems.append(f"writer {ledger.writer}: writes {unknown} were never sent")
    return problems
