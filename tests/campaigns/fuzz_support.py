"""Shared code of fuzzing by bytes and by schema: workers in a separate process, each at a limited
rate, so that they do not distort the measured times; checks of the log after a run; parsing of
responses.
"""

from __future__ import annotations

import errno
import json
import random
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tests.support.api import Answer, Wire
from tests.support.program import in_a_process
from tests.support.server import Server
from tests.support.ws import TEXT, Socket

PROBLEMS_MAX = 20
SHOWN_BYTES = 2000
END_S = 15.0  # until a connection is closed after its client has sent everything


@dataclass
class Findings:
    """The results of a worker."""

    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, other: Any) -> None:
        """Add the results of another worker."""
        self.sent += other.sent
        self.outcomes += other.outcomes
        self.problems += other.problems


Found = TypeVar("Found", bound=Findings)


class Worker(threading.Thread, Generic[Found]):
    """Sends cases until its time is over or it has found too many errors."""

    def __init__(
        self, address: tuple[str, int], name: str, source: random.Random, findings: Found
    ) -> None:
        super().__init__(daemon=True, name=name)
        self.address, self.source, self.findings = address, source, findings
        self.until = self.pause_s = 0.0

    def run(self) -> None:
        due = time.monotonic()
        try:
            while due < self.until and len(self.findings.problems) < PROBLEMS_MAX:
                time.sleep(max(0.0, due - time.monotonic()))
                due = max(due + self.pause_s, time.monotonic() - 1)
                self.findings.sent += 1
                self.send_case()
            self.finish()
        except Exception:  # an exception in a thread would otherwise be lost
            self.problem(f"died:\n{traceback.format_exc()}")

    def send_case(self) -> None:
        """Send one case."""
        raise NotImplementedError

    def finish(self) -> None:
        """Run after the last case."""

    def problem(self, text: str) -> None:
        self.findings.problems.append(f"{self.name}, case {self.findings.sent}: {text}")


def run_workers(
    workers: Sequence[Worker[Found]], seconds: float, rate: float, into: Found
) -> Found:
    """Run all workers at ``rate`` cases per second."""
    for worker in workers:
        worker.until, worker.pause_s = time.monotonic() + seconds, len(workers) / rate
        worker.start()
    for worker in workers:
        worker.join()
        into.add(worker.findings)
    return into


def run_in_process(work: Callable[..., Found], server: Server, *arguments: Any) -> Found:
    """Run the workers in another process, and watch the server's processes."""
    roles, logged = server.roles(), len(server.log.events()) if server.log else 0
    findings = in_a_process(work, server.address, *arguments)
    if server.roles() != roles:
        findings.problems.append(f"a process was replaced: {roles} before, {server.roles()} after")
    for event in server.log.events()[logged:] if server.log else ():
        if event.get("level") in ("error", "critical") or "exception" in event:
            findings.problems.append(f"in the log: {json.dumps(event)[:SHOWN_BYTES]}")
    if "Traceback" in server.logged:
        findings.problems.append("a traceback is in the log")
    return findings


def exchange(address: tuple[str, int], fragments: Sequence[bytes], source: random.Random) -> bytes:
    """Send all bytes on a new connection, shut down the sending side, and return all received
    bytes.
    """
    began, is_slow = time.monotonic(), source.random() < 0.3
    with Wire(address, timeout_s=END_S) as wire:
        try:
            for fragment in fragments:
                wire.send(fragment)
                if is_slow:
                    time.sleep(0.0005)  # so that the fragments arrive separately
            wire.half_close()
        except OSError as error:  # refused before everything was sent
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
        received = wire.rest()
    took = time.monotonic() - began
    assert took < END_S, f"the connection took {took:.1f} s to end"
    return received


class _RecordingWire(Wire):
    """Parses bytes of responses that were already received."""

    def __init__(self, received: bytes) -> None:
        self._buffer, self._unanswered = bytearray(received), deque()

    def _receive(self) -> bool:
        return False


class _RecordingSocket(Socket):
    """Parses WebSocket frames that were already received."""

    def __init__(self, received: bytes) -> None:
        self._buffer = bytearray(received)

    def _receive(self) -> bool:
        return False


def responses_in(received: bytes) -> list[Answer]:
    """Return the complete responses on a connection. Bytes after a 101 belong to it."""
    wire, found = _RecordingWire(received), list[Answer]()
    while wire._buffer:
        answer = wire.answer()
        found.append(Answer(101, answer.headers, wire.rest()) if answer.status == 101 else answer)
    return found


def check_envelope(answer: Answer) -> None:
    """Check the envelope (§0.5) of an error response."""
    assert answer.headers.get("content-type") == "application/json", f"no JSON: {answer}"
    document = answer.json()
    assert document.keys() - {"performance"} == {"error"}, document
    members = document["error"].keys()
    assert {"code", "message"} <= members <= {"code", "message", "detail"}, document


def messages_in(received: bytes) -> list[dict[str, Any]]:
    """Return the text messages among a server's frames. Each frame must be complete and
    well-formed.
    """
    frames, found = _RecordingSocket(received), []
    while frames._buffer:
        frame = frames.receive()
        assert frame.fin, frame
        assert frame.code != 1011 or frame.opcode != 8, f"internal error: {frame}"
        if frame.opcode == TEXT:
            found.append(json.loads(frame.payload))
    return found
