"""What workers of queues did: JSON lines that outlive a worker, and what they come to.

A worker notes each request before it is sent and each answer when it has come, so that a kill
between the two leaves a request whose fate nobody knows. All times are CLOCK_MONOTONIC in
nanoseconds, the same for every process; deadlines are turned into it when they come.

    do      fields                              noted
    claim   call node queue sent                before a claim is sent
    open    call node queue sent                before a stream is asked for
    live    call at                             when its head has come
    jobs    call at jobs                        a claim's answer, or what a stream showed; a job is
                                                [seq, token, deadline, deliveries, data]
    shut    call at                             before a stream is closed; of one that the server
                                                ended: when it was last heard
    ack     call node queue sent seqs tokens    before it is sent; tokens: None without
    nack    the same, delay_ms                  the same
    extend  the same, lease_ms                  the same
    done    call at skipped deadlines           the answer of one of these; deadlines by seq
    lost    call at                             no answer, or one that promises nothing
    wrong   text                                an answer that the contract does not have
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

CLOCKS_APART_NS = 200_000


class Journal:
    """Appends the notes of one process. A line that was written stays, whoever is killed."""

    def __init__(self, path: Path) -> None:
        self._name, self._numbers = path.stem, itertools.count(1)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def call(self) -> str:
        """The name of one more call."""
        return f"{self._name}:{next(self._numbers)}"

    def note(self, do: str, **fields: Any) -> None:
        os.write(self._fd, json.dumps({"do": do, **fields}).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def notes_of(path: Path) -> list[dict[str, Any]]:
    """The notes of one process; the last line of one that was killed may be torn."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def monotonic_ns(wall_ms: int) -> int:
    """A moment of the wall clock, as the monotonic clock will show it."""
    while True:
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if after - before < CLOCKS_APART_NS:  # nobody took the processor in between
            return before + wall_ms * 1_000_000 - wall


def row_of(job: dict[str, Any]) -> list[Any]:
    """A job of an answer, or of a stream, as a note has it."""
    deadline = monotonic_ns(job["deadline"])
    return [job["$seq"], job["lease_id"], deadline, job["deliveries"], job["data"]]


class Rules(NamedTuple):
    """What a queue was told to do."""

    shard: int
    leases_durable: bool = False
    max_deliveries: int = 0
    dead_letter: str | None = None


class Job(NamedTuple):
    """A job that was acknowledged to its producer. ``due``: it is not delivered before."""

    data: Any
    due: int = 0


class Death(NamedTuple):
    """A process of the server was killed between two moments."""

    role: str
    before: int
    after: int


@dataclass(slots=True)
class Delivery:
    """One lease that a worker was told of. ``sent``: not decided before; ``stream``: the call that
    opened it.
    """

    queue: str
    seq: int
    token: str
    node: str
    sent: int
    at: int
    deadline: int
    deliveries: int
    data: Any = None
    stream: str | None = None
    until: int = 0  # certainly live up to here, from ``at`` on

    @property
    def number(self) -> int:
        return int(self.token.removeprefix("lease_"), 16)


@dataclass(slots=True)
class Request:
    """An ack, nack or extend. ``at`` None: nobody knows what became of it. ``ms``: its delay or
    lease.
    """

    do: str
    node: str
    queue: str
    sent: int
    seqs: Sequence[int]
    tokens: Sequence[str] | None = None
    ms: int = 0
    at: int | None = None
    skipped: frozenset[int] = frozenset()
    deadlines: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Opening:
    """A claim, or a stream with its life. ``ended`` None: never, as far as is known."""

    node: str
    queue: str
    sent: int
    stream: bool
    live: int | None = None
    ended: int | None = None
    answered: bool = False


class History:
    """Everything that is known of a campaign's workers, for `worker_judge`."""

    def __init__(self) -> None:
        self.queues: dict[str, Rules] = {}
        self.jobs: dict[tuple[str, int], Job] = {}
        self.deaths: list[Death] = []
        self.deliveries: dict[tuple[str, int], list[Delivery]] = defaultdict(list)
        self.requests: list[Request] = []
        self.openings: dict[str, Opening] = {}
        self.wrong: list[str] = []
        self._requests: dict[str, Request] = {}

    def take(self, notes: Iterable[dict[str, Any]], killed: int | None = None) -> None:
        """The notes of one process, in order; ``killed``: the moment before it was."""
        calls = set()
        for note in notes:
            call, at = note.get("call", ""), note.get("at", 0)
            calls.add(call)
            match note["do"]:
                case "claim" | "open" as do:
                    opening = Opening(note["node"], note["queue"], note["sent"], do == "open")
                    self.openings[call] = opening
                case "live":
                    self.openings[call].live = at
                case "shut":
                    self.openings[call].ended = at
                case "jobs":
                    self._deliver(call, at, note["jobs"])
                case "ack" | "nack" | "extend" as do:
                    asked = do, note["node"], note["queue"], note["sent"]
                    ms = note.get("delay_ms", note.get("lease_ms", 0))
                    self._requests[call] = Request(*asked, note["seqs"], note["tokens"], ms)
                    self.requests.append(self._requests[call])
                case "done":
                    request = self._requests[call]
                    request.at, request.skipped = at, frozenset(note["skipped"])
                    deadlines = note.get("deadlines", {})
                    request.deadlines = {int(seq): moment for seq, moment in deadlines.items()}
                case "wrong":
                    self.wrong.append(note["text"])
                case _:
                    assert note["do"] == "lost", note  # nothing is known of it
        for call in calls & self.openings.keys() if killed is not None else ():
            if self.openings[call].ended is None:
                self.openings[call].ended = killed

    def _deliver(self, call: str, at: int, jobs: Iterable[list[Any]]) -> None:
        opening = self.openings[call]
        opening.answered = True
        queue, stream = opening.queue, call if opening.stream else None
        for seq, token, deadline, count, data in jobs:
            lease = opening.node, opening.sent, at, deadline, count
            self.deliveries[queue, seq].append(Delivery(queue, seq, token, *lease, data, stream))
