"""Fuzzing: malformed and mutated bytes for both lanes and the WebSocket, while a probe measures.

Runs as a program: ``python -m tests.campaigns.fuzz --minutes 10 --seed 1``. The seed decides what
each worker sends and in which order. Between the fuzzed connections each worker makes requests of
its own that must be answered as ever (`fuzz_steady`).

What must hold (the topics' names say what may become of a request, see `fuzz_inputs`):

- no answer is a 500, every refusal has the envelope, every connection comes to its end
- no topic ``never.*`` exists; all others hold exactly what was acknowledged
- no process died, no traceback is in the log, and ``/v0/health`` answers
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaigns import fuzz_crew
from tests.campaigns.fuzz_answers import answers_of, check_envelope, messages_of, spoken
from tests.campaigns.fuzz_crew import PROBLEMS_MAX, SHOWN_BYTES
from tests.campaigns.fuzz_inputs import BROKEN, LANES, Case, case
from tests.campaigns.fuzz_steady import STEADY
from tests.campaigns.hostile import Bystander, Memory, Probe, beside, watched
from tests.support.api import Api, listed
from tests.support.server import Server

WORKERS = 6  # two for each lane
STEADY_EVERY = 4  # cases; then a request that must be answered as ever
AIM_MS = 20.0  # 99 of 100 probes
Stored = dict[str, int]


@dataclass
class Findings(fuzz_crew.Findings):
    """``stored``: records by topic as acknowledged; ``unsaid``: publishes whose answer never
    came.
    """

    stored: Stored = field(default_factory=dict)
    unsaid: int = 0
    steady: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, other: Findings) -> None:
        super().add(other)
        for topic, count in other.stored.items():
            self.stored[topic] = self.stored.get(topic, 0) + count
        self.unsaid += other.unsaid
        self.steady |= other.steady


class Worker(fuzz_crew.Worker[Findings]):
    """Cases of one lane."""

    def __init__(self, address: tuple[str, int], seed: int, number: int) -> None:
        source = random.Random(f"{seed}-{number}")
        super().__init__(address, f"worker {number}", source, Findings())
        self._number, self._lane = number, LANES[number % len(LANES)]
        self._steady = STEADY[self._lane](address, number)

    def one(self) -> None:
        self._one(case(self.source, self._lane, self._number))
        if self.findings.sent % STEADY_EVERY == 0:
            self._be_steady()

    def finish(self) -> None:
        self.findings.steady = self._steady.told()
        self._steady.close()

    def _one(self, sent: Case) -> None:
        try:
            self._judge(sent, spoken(self.address, sent, self.source))
        except (AssertionError, OSError, ValueError) as error:
            self._report(sent, f"{type(error).__name__}: {error}")

    def _judge(self, sent: Case, heard: bytes) -> None:
        acks = 0
        for status, fields, body in answers_of(heard):
            self.findings.outcomes[f"{self._lane} {sent.kind} {status}"] += 1
            assert status != 500, f"500: {body[:300]!r}"
            if status == 101:
                acks = self._judge_frames(sent, body)
            elif status >= 300:
                check_envelope(status, fields, body)
            elif status >= 200:
                assert sent.kind != BROKEN, f"malformed, and answered {status}: {body[:300]!r}"
                self._note(body)
        self.findings.unsaid += max(0, sent.publishes - acks)

    def _judge_frames(self, sent: Case, heard: bytes) -> int:
        acks = 0
        for message in messages_of(heard):
            op = message["op"]
            assert op != "error" or message["code"] != "internal", message
            if op == "ack":
                assert sent.kind != BROKEN, f"malformed, and acknowledged: {message}"
                self._note_document(message)
                acks += 1
        return acks

    def _note(self, body: bytes) -> None:
        if body.startswith(b"{"):
            self._note_document(json.loads(body))

    def _note_document(self, document: dict[str, Any]) -> None:
        """An append says how many records it has stored, a PUT that the topic is there."""
        if "created" in document:
            count = document["count"] if "last_seq" in document and not document["deduped"] else 0
            self.findings.stored[document["topic"]] = (
                self.findings.stored.get(document["topic"], 0) + count
            )

    def _be_steady(self) -> None:
        try:
            self._steady.ask(self.source)
        except (AssertionError, OSError, EOFError, ValueError, KeyError) as error:
            self.problem(f"then a valid request: {type(error).__name__}: {error}")

    def _report(self, sent: Case, what: str) -> None:
        shown = f"{sent.wire[:SHOWN_BYTES]!r} in pieces that end at {sent.cuts}"
        self.problem(f"{sent.kind}: {sent.name}: {what}\n  {shown}")


def work(address: tuple[str, int], seed: int, seconds: float, rate: float) -> Findings:
    """All workers; meant for a process of its own."""
    workers = [Worker(address, seed, number) for number in range(WORKERS)]
    return fuzz_crew.together(workers, seconds, rate, Findings())


def check_stored(server: Server, findings: Findings) -> None:
    """Add to the problems what the server holds and should not, or should hold and does not."""
    with Api(server.address) as api:
        found = {topic: int(api.state(topic)["head_seq"]) for topic in listed(api)}
        for topic, records in findings.steady.items():
            seen = (
                [record["data"] for record in api.read(topic)]
                if found.pop(topic, None) is not None
                else None
            )
            if seen != records:
                findings.problems.append(f"{topic} does not hold what was stored there")
    for topic in found.keys() | findings.stored.keys():
        told, held = findings.stored.get(topic), found.get(topic)
        if held is None or topic.startswith("never."):
            findings.problems.append(f"{topic}: {told} records acknowledged, {held} held")
        elif held != told:
            findings.unsaid -= abs(held - (told or 0)) or 1
            if findings.unsaid < 0 or held < (told or 0):
                findings.problems.append(f"{topic}: {told} records acknowledged, {held} held")


def fuzz(
    server: Server, *, seed: int, seconds: float, rate: float
) -> tuple[Findings, Bystander, Memory]:
    """Fuzz a server that runs; the answers to the probe and the memory that it took beside it."""
    with watched(server) as memory, beside(server, Probe) as probe:
        findings = fuzz_crew.apart(work, server, seed, seconds, rate)
    findings.problems += probe.trouble
    check_stored(server, findings)
    return findings, probe, memory


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--rate", type=float, default=120.0, help="fuzzed connections a second")
    arguments = parser.parse_args()
    seed, seconds, rate = arguments.seed, 60 * arguments.minutes, arguments.rate
    # The other server shows what the machine does meanwhile to one that nobody fuzzes.
    with (
        tempfile.TemporaryDirectory(prefix="topics-fuzz-") as directory,
        Server(Path(directory) / "other", shards=1) as other,
        Server(Path(directory) / "data", shards=1) as server,
        beside(other, Probe) as control,
    ):
        findings, probe, memory = fuzz(server, seed=seed, seconds=seconds, rate=rate)
    if probe.percentile(99) > AIM_MS:
        took = f"{probe.percentile(99):.1f} ms, beside {control.percentile(99):.1f} ms elsewhere"
        findings.problems.append(f"99 of 100 probes took up to {took}; the aim is {AIM_MS:.0f} ms")
    _tell(seed, findings, probe, control, memory)
    return 1 if findings.problems else 0


def _tell(
    seed: int,
    findings: Findings,
    probe: Bystander,
    control: Bystander,
    memory: Memory,
) -> None:
    steady = sum(map(len, findings.steady.values()))
    print(f"seed {seed}: {findings.sent} connections; {steady} records between them")
    print(", ".join(f"{outcome}: {n}" for outcome, n in sorted(findings.outcomes.items())))
    print(f"probe: {probe}\nprobe of another server meanwhile: {control}")
    print(f"memory: {memory}; {len(findings.stored)} topics made by mutated requests")
    print("\n".join([f"{len(findings.problems)} problems", *findings.problems[:PROBLEMS_MAX]]))


if __name__ == "__main__":
    sys.exit(main())
