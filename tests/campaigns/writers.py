"""Writers that lose nothing of their own: every write has a key and is repeated until it is
acknowledged.

A record's data is ``[writer, number, position, padding]``: which writer, its how-manieth write,
which record of that write. Topics are named after their durability class and made by the first
write that reaches them.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.api import Answer, Api, ok

RETRY_S = 0.02
LARGE = "x" * (2**20 - 100)
LARGE_SHARE = 0.01
GIVE_UP_S = 40.0

Address = Callable[[], tuple[str, int]]


@dataclass(slots=True)
class Write:
    """One acknowledged write."""

    topic: str
    seqs: list[int]


@dataclass(slots=True)
class Ledger:
    """What one writer knows to be stored, and the write whose fate it does not know."""

    writer: int
    acked: dict[int, Write] = field(default_factory=dict)
    in_doubt: int | None = None
    retries: int = 0
    deduped: int = 0
    problems: list[str] = field(default_factory=list)


class Writer(threading.Thread):
    """Appends one batch after the other to random topics; the same key again after every failure.

    ``stop`` ends it between two writes; ``abandon`` also in the middle of one, which is then in
    doubt.
    """

    def __init__(self, number: int, address: Address, topics: Sequence[str], seed: int) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self.ledger = Ledger(number)
        self.stop = threading.Event()
        self.abandon = threading.Event()
        self._address = address
        self._topics = topics
        self._random = random.Random(f"{seed}/{number}")
        self._api: Api | None = None

    def run(self) -> None:
        number = 0
        while not self.stop.is_set() and not self.ledger.problems:
            topic = self._random.choice(self._topics)
            self.ledger.in_doubt = number
            answer = self._until_acknowledged(topic, number, self._data(number))
            if answer is None:
                break
            self._note(topic, number, answer)
            number += 1
        self._hang_up()

    def _data(self, number: int) -> list[list[Any]]:
        """Mostly a few small records, sometimes a body of several megabytes."""
        large = self._random.random() < LARGE_SHARE
        size, padding = (5, LARGE) if large else (self._random.randint(1, 3), "")
        return [[self.ledger.writer, number, position, padding] for position in range(size)]

    def _note(self, topic: str, number: int, answer: Answer) -> None:
        body = ok(answer, answer.status)
        self.ledger.acked[number] = Write(topic, body["seqs"])
        self.ledger.deduped += body["deduped"]
        self.ledger.in_doubt = None

    def _until_acknowledged(self, topic: str, number: int, data: list[list[Any]]) -> Answer | None:
        """The answer that acknowledges the write; None when it was abandoned or went wrong."""
        deadline = time.monotonic() + GIVE_UP_S
        while not self.abandon.is_set():
            answer = self._try(topic, number, data)
            if answer is not None and answer.status in (200, 201):
                return answer
            if answer is not None and answer.status not in (429, 503):
                self.ledger.problems.append(
                    f"writer {self.ledger.writer}, write {number}: {answer}"
                )
                return None
            if time.monotonic() > deadline:
                self.ledger.problems.append(
                    f"writer {self.ledger.writer}, write {number}: no answer in {GIVE_UP_S} s"
                    f" (last: {answer})"
                )
                return None
            self.ledger.retries += 1
            self.abandon.wait(RETRY_S)
        return None

    def _try(self, topic: str, number: int, data: list[list[Any]]) -> Answer | None:
        """One attempt; None when the connection broke."""
        try:
            if self._api is None:
                self._api = Api(self._address(), timeout_s=GIVE_UP_S)
            return self._append(self._api, topic, number, data)
        except (OSError, http.client.HTTPException):
            self._hang_up()
            return None

    def _append(self, api: Api, topic: str, number: int, data: list[list[Any]]) -> Answer:
        config = {"durability": topic.partition("-")[0]}
        key = f"w{self.ledger.writer}-{number}"
        return api.append(topic, *data, idempotency_key=key, config=config)

    def _hang_up(self) -> None:
        if self._api is not None:
            self._api.close()
            self._api = None


def finish(writers: Sequence[Writer], *, abandon: bool = False) -> list[Ledger]:
    """Stop the writers and return what they know."""
    for writer in writers:
        writer.stop.set()
        if abandon:
            writer.abandon.set()
    for writer in writers:
        writer.join(2 * GIVE_UP_S)
        assert not writer.is_alive(), f"{writer.name} hangs"
    return [writer.ledger for writer in writers]


def verify(api: Api, topics: Sequence[str], ledgers: Sequence[Ledger]) -> list[str]:
    """What is wrong with the topics, in words: acknowledged records lost, moved, doubled or out of
    order, holes in the seqs.
    """
    problems = [problem for ledger in ledgers for problem in ledger.problems]
    found: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
    for topic in topics:
        records = api.read(topic, max_batch_bytes=8 << 20)
        seqs = [record["$seq"] for record in records]
        if seqs != list(range(1, len(seqs) + 1)):
            problems.append(f"{topic}: seqs have holes or go back: {_first_break(seqs)}")
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
            return f"{seq} where {expected} belongs"
    return "none"


def _disorder(topic: str, records: list[tuple[int, ...]]) -> list[str]:
    last: dict[int, tuple[int, ...]] = {}
    problems = []
    for writer, *place in records:
        if tuple(place) <= last.get(writer, (-1,)):
            problems.append(f"{topic}: writer {writer}: write {place} stands behind {last[writer]}")
        last[writer] = tuple(place)
    return problems


def _compare(ledger: Ledger, found: dict[tuple[int, int], list[tuple[str, int, int]]]) -> list[str]:
    problems = []
    for number, write in ledger.acked.items():
        expected = [(write.topic, seq, position) for position, seq in enumerate(write.seqs)]
        if (there := found.get((ledger.writer, number), [])) != expected:
            problems.append(
                f"writer {ledger.writer}, write {number}: acknowledged as {expected}, found {there}"
            )
    known = {*ledger.acked, ledger.in_doubt}
    strangers = [
        number for writer, number in found if writer == ledger.writer and number not in known
    ]
    if strangers:
        problems.append(f"writer {ledger.writer}: writes {strangers} were never sent")
    return problems
