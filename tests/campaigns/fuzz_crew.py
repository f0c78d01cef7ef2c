"""What fuzzing by bytes and by schema share: workers in a process of their own, each at a bounded
rate, so that the times of others are the server's; and what a run leaves in the log.
"""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import random
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tests.support.server import Server

PROBLEMS_MAX = 20
SHOWN_BYTES = 2000


@dataclass
class Findings:
    """What happened."""

    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, other: Any) -> None:
        """What another worker found."""
        self.sent += other.sent
        self.outcomes += other.outcomes
        self.problems += other.problems


Found = TypeVar("Found", bound=Findings)


class Worker(threading.Thread, ABC, Generic[Found]):
    """Sends cases until its time is over or too much is wrong."""

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
                self.one()
            self.finish()
        except Exception:  # in a thread nobody would hear of it
            self.problem(f"died:\n{traceback.format_exc()}")

    @abstractmethod
    def one(self) -> None:
        """One case."""

    def finish(self) -> None:
        """After the last."""

    def problem(self, text: str) -> None:
        self.findings.problems.append(f"{self.name}, case {self.findings.sent}: {text}")


def together(workers: Sequence[Worker[Found]], seconds: float, rate: float, into: Found) -> Found:
    """Let all work, at ``rate`` cases a second."""
    for worker in workers:
        worker.until, worker.pause_s = time.monotonic() + seconds, len(workers) / rate
        worker.start()
    for worker in workers:
        worker.join()
        into.add(worker.findings)
    return into


def apart(work: Callable[..., Found], server: Server, *arguments: Any) -> Found:
    """Work in another process, and see what becomes of the server's."""
    roles, logged = server.roles(), len(server.log.events()) if server.log else 0
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        findings = pool.submit(work, server.address, *arguments).result()
    if server.roles() != roles:
        findings.problems.append(f"a process was replaced: {roles} before, {server.roles()} after")
    for event in server.log.events()[logged:] if server.log else ():
        if event.get("level") in ("error", "critical") or "exception" in event:
            findings.problems.append(f"in the log: {json.dumps(event)[:SHOWN_BYTES]}")
    if "Traceback" in server.logged:
        findings.problems.append("a traceback is in the log")
    return findings
