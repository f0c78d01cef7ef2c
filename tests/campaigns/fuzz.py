"""Fuzzing: malformed and mutated bytes for both planes and the WebSocket, while a probe measures
response times.

Runs as a program: ``python -m tests.campaigns.fuzz --seconds 600 --seed 1``. The seed determines
the inputs of each worker and their order. Between the fuzzed connections each worker makes valid
requests, which must succeed as usual (`Steady`).

These conditions must hold (topic names encode the permitted effect of a request, see
`fuzz_inputs`):

- no response is a 500, every error response has the envelope, every connection is closed
- no topic ``never.*`` exists; all other topics contain exactly the acknowledged records
- no process died, no traceback is in the log, and ``/v0/health`` responds as fast as on another
  server without fuzzing
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.campaigns import fuzz_support
from tests.campaigns.fuzz_inputs import BROKEN, JSON_CHUNKED, PLANES, Case, case
from tests.campaigns.fuzz_support import (
    SHOWN_BYTES,
    check_envelope,
    exchange,
    messages_in,
    responses_in,
)
from tests.campaigns.hostile import Bystander, Memory, Probe, run_alongside, watched
from tests.campaigns.killer import Summary, program
from tests.support.api import Answer, Api, Wire, listed, ok, request
from tests.support.server import Server
from tests.support.ws import Socket

WORKERS = 6  # two for each kind of input
STEADY_EVERY = 4  # cases between two requests that must succeed as usual
AIM_MS = 20.0  # the permitted increase of the probe's p99 compared with another server
Stored = dict[str, int]
FAILURES = (AssertionError, OSError, EOFError, ValueError, KeyError)


class Steady:
    """Requests between the fuzzed ones, on one connection, that must succeed as usual: appends and
    diffs, the control plane, or publishes on a WebSocket.
    """

    def __init__(self, address: tuple[str, int], plane: str, number: int) -> None:
        self.topic, self.records = f"steady.{plane}.{number}", list[Any]()
        self._path = f"/v0/topics/{self.topic}"
        self._line: Socket | Wire = Socket(address) if plane == "socket" else Wire(address)
        self.send_valid = {"data": self._append, "admin": self._put, "socket": self._publish}[plane]

    def _record(self, source: random.Random) -> dict[str, Any]:
        return {"number": len(self.records), "filler": "é" * source.choice((0, 10, 3000))}

    def _append(self, source: random.Random) -> None:
        record, path, wire = self._record(source), self._path, self._line
        assert isinstance(wire, Wire)
        body = json.dumps({"records": [{"data": record}]}).encode()
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        content = source.choice(
            (
                request("POST", path, body),
                request("POST", path, gzip.compress(body), "Content-Encoding: gzip"),
                request("POST", path, None, *JSON_CHUNKED) + chunks,
            )
        )
        at = source.randrange(1, len(content))
        wire.send(content[:at], content[at:])
        answer = wire.answer()
        self.records.append(record)
        count = len(self.records)
        assert answer.status == (200 if count > 1 else 201), answer
        assert answer.json()["first_seq"] == count, answer
        start = source.randrange(count)
        wire.send(request("POST", f"{path}/diff", b'{"from_seq":%d,"limit":3}' % start))
        seen = [record["data"] for record in ok(wire.answer())["records"]]
        assert seen == self.records[start : start + 3], seen

    def _put(self, source: random.Random) -> None:
        ttl_ms, wire = source.randint(10**6, 10**9), self._line
        assert isinstance(wire, Wire)
        put = request("PUT", self._path, b'{"ttl_ms":%d}' % ttl_ms)
        at = source.randrange(1, len(put))
        page = request("GET", f"/v0/topics?prefix={self.topic}&page_size=1")
        wire.send(put[:at], put[at:], request("GET", self._path), page)
        answer = wire.answer()
        assert answer.status in (200, 201), answer
        state = ok(wire.answer())
        assert (state["config"]["ttl_ms"], state["head_seq"]) == (ttl_ms, 0), state
        assert [row["topic"] for row in ok(wire.answer())["topics"]] == [self.topic]

    def _publish(self, source: random.Random) -> None:
        record, socket = self._record(source), self._line
        assert isinstance(socket, Socket)
        answer = socket.request("publish", "p", topic=self.topic, records=[{"data": record}])
        self.records.append(record)
        assert (answer["op"], answer["first_seq"]) == ("ack", len(self.records)), answer
        assert socket.request("ping", "q")["op"] == "pong"


@dataclass
class Findings(fuzz_support.Findings):
    """``stored``: acknowledged records by topic. ``unanswered``: publishes without a response."""

    stored: Stored = field(default_factory=dict)
    unanswered: int = 0
    steady: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, other: Findings) -> None:
        super().add(other)
        for topic, count in other.stored.items():
            self.stored[topic] = self.stored.get(topic, 0) + count
        self.unanswered += other.unanswered
        self.steady |= other.steady


class Worker(fuzz_support.Worker[Findings]):
    """Sends the cases of one kind of input."""

    def __init__(self, address: tuple[str, int], seed: int, number: int) -> None:
        source = random.Random(f"{seed}-{number}")
        super().__init__(address, f"worker {number}", source, Findings())
        self._number, self._plane = number, PLANES[number % len(PLANES)]
        self._steady = Steady(address, self._plane, number)

    def send_case(self) -> None:
        sent = case(self.source, self._plane, self._number)
        try:
            self._check(sent, exchange(self.address, sent.fragments(), self.source))
        except FAILURES as error:
            shown = f"{sent.wire[:SHOWN_BYTES]!r} in fragments that end at {sent.cuts}"
            what = f"{type(error).__name__}: {error}\n  {shown}"
            self.problem(f"{sent.kind}: {sent.name}: {what}")
        if self.findings.sent % STEADY_EVERY == 0:
            try:
                self._steady.send_valid(self.source)
            except FAILURES as error:
                self.problem(f"a valid request afterwards: {type(error).__name__}: {error}")

    def finish(self) -> None:
        self.findings.steady = {self._steady.topic: self._steady.records}

    def _check(self, sent: Case, received: bytes) -> None:
        acks = 0
        for answer in responses_in(received):
            status = answer.status
            self.findings.outcomes[f"{self._plane} {sent.kind} {status}"] += 1
            assert status != 500, answer
            if status == 101:
                acks = self._check_frames(sent, answer)
            elif status >= 300:
                check_envelope(answer)
            elif status >= 200:
                assert sent.kind != BROKEN, f"malformed, but the response is {answer}"
                if answer.body.startswith(b"{"):
                    self._record_stored(answer.json())
        self.findings.unanswered += max(0, sent.publishes - acks)

    def _check_frames(self, sent: Case, answer: Answer) -> int:
        acks = 0
        for message in messages_in(answer.body):
            assert message["op"] != "error" or message["code"] != "internal", message
            if message["op"] == "ack":
                assert sent.kind != BROKEN, f"malformed, but acknowledged: {message}"
                self._record_stored(message)
                acks += 1
        return acks

    def _record_stored(self, document: dict[str, Any]) -> None:
        """Record the records that an append has stored, or the topic that a PUT has created."""
        if "created" in document:
            count = document["count"] if "last_seq" in document and not document["deduped"] else 0
            stored = self.findings.stored
            stored[document["topic"]] = stored.get(document["topic"], 0) + count


def work(address: tuple[str, int], seed: int, seconds: float, rate: float) -> Findings:
    """Run all workers in a separate process."""
    workers = [Worker(address, seed, number) for number in range(WORKERS)]
    return fuzz_support.run_workers(workers, seconds, rate, Findings())


def check_stored(server: Server, findings: Findings) -> None:
    """Report topics and records that the server should not contain, or that it lacks."""
    with Api(server.address) as api:
        found = {topic: int(api.state(topic)["head_seq"]) for topic in listed(api)}
        for topic, records in findings.steady.items():
            seen = (
                [record["data"] for record in api.read(topic)]
                if found.pop(topic, None) is not None
                else None
            )
            if seen != records:
                findings.problems.append(f"{topic} does not contain the stored records")
    for topic in found.keys() | findings.stored.keys():
        acknowledged, stored_count = findings.stored.get(topic), found.get(topic)
        if stored_count is None or topic.startswith("never."):
            findings.problems.append(
                f"{topic}: {acknowledged} records acknowledged, {stored_count} stored"
            )
        elif stored_count != acknowledged:
            findings.unanswered -= abs(stored_count - (acknowledged or 0)) or 1
            if findings.unanswered < 0 or stored_count < (acknowledged or 0):
                findings.problems.append(
                    f"{topic}: {acknowledged} records acknowledged, {stored_count} stored"
                )


def fuzz(
    server: Server, *, seed: int, seconds: float, rate: float
) -> tuple[Findings, Bystander, Memory]:
    """Fuzz a running server. Return the responses to the probe and the memory use at the
    same time.
    """
    with watched(server) as memory, run_alongside(server, Probe) as probe:
        findings = fuzz_support.run_in_process(work, server, seed, seconds, rate)
    findings.problems += probe.problems
    check_stored(server, findings)
    return findings, probe, memory


def campaign(data_dir: Path, *, seed: int, seconds: float, rate: float) -> Summary:
    """Fuzz a server, and compare it with another one. ``rate``: fuzzed connections per second."""
    summary = Summary(seed)
    with (
        Server(data_dir.with_name("other"), shards=1) as other,
        Server(data_dir, shards=1) as server,
        run_alongside(other, Probe) as control,
    ):
        findings, probe, memory = fuzz(server, seed=seed, seconds=seconds, rate=rate)
    summary.print_progress(f"probe: {probe}\nprobe of another server at the same time: {control}")
    summary.print_progress(
        f"memory: {memory}; {len(findings.stored)} topics created by mutated requests"
    )
    summary.counts = findings.outcomes
    summary.counts["connections"] = findings.sent
    summary.counts["records between them"] = sum(map(len, findings.steady.values()))
    summary.problems = findings.problems
    if probe.percentile(99) > control.percentile(99) + AIM_MS:
        summary.problems.append(f"the limit is {AIM_MS:.0f} ms more than on another server")
    return summary


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, seconds=60.0, rate=120.0))
