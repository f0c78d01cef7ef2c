"""Clients of `tests.campaigns.overload`: many connections in one loop, with requests that are
prepared in advance.

Each client sends the next append as soon as it has the response to the previous one. Its manner
determines its reaction to a 429:

    HEADER         waits for the number of seconds in ``Retry-After``
    MILLISECONDS   waits for ``error.detail.retry_after_ms``
    GREEDY         resends immediately

    sent --2xx--> sent
    sent --429--> waits --due--> resent (second attempt, third …)
"""

from __future__ import annotations

import gc
import heapq
import os
import re
import select
import socket
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from tests.bench.processes import queued_s

RECEIVE_BYTES = 64 * 1024
HEAD_END = b"\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
RETRY_AFTER = re.compile(rb"\r\nretry-after: *(\d+)", re.IGNORECASE)
RETRY_MS = re.compile(rb'"retry_after_ms": *(\d+)')
LIMIT = re.compile(rb'"limit": *"(\w+)"')
DEFAULT_RETRY_S = 1.0  # the wait of a client after a refusal that specifies no time


class Manner(Enum):
    """How a client reacts to a 429."""

    HEADER = "header"
    MILLISECONDS = "milliseconds"
    GREEDY = "greedy"


@dataclass(frozen=True, slots=True)
class Plan:
    """One client: its topic, its complete request, and its manner."""

    topic: str
    request: bytes
    manner: Manner = Manner.HEADER


@dataclass(slots=True)
class Tally:
    """Results of the clients of one topic and one manner. Times are in seconds."""

    stored: int = 0
    refused: int = 0
    second_tries: int = 0
    second_stored: int = 0
    tries_max: int = 0
    last_stored: float = 0.0
    gap_s: float = 0.0  # the longest time without a stored write
    # duration of one exchange, if stored
    took_s: array[float] = field(default_factory=lambda: array("d"))
    total_s: array[float] = field(default_factory=lambda: array("d"))  # from the first attempt on
    others: dict[str, int] = field(default_factory=dict)  # other responses

    def store(self, client: Client, now: float) -> None:
        self.stored += 1
        self.took_s.append(now - client.sent)
        self.total_s.append(now - client.began)
        self.second_tries += client.tries == 2
        self.second_stored += client.tries == 2
        self.gap_s, self.last_stored = max(self.gap_s, now - self.last_stored), now

    def refuse(self, client: Client) -> None:
        self.refused += 1
        self.second_tries += client.tries == 2
        self.tries_max = max(self.tries_max, client.tries)

    def other(self, what: str) -> None:
        self.others[what] = self.others.get(what, 0) + 1


@dataclass(slots=True)
class Report:
    """Results of one process of clients. ``tallies`` by topic and manner."""

    took_s: float
    cpu_s: float
    queued_s: float  # time in which the process was runnable without a processor
    tallies: dict[tuple[str, Manner], Tally]


class Client:
    """One connection and its request in progress."""

    __slots__ = ("answer", "began", "expected_bytes", "plan", "sent", "sock", "tally", "tries")

    def __init__(self, address: tuple[str, int], plan: Plan, tally: Tally) -> None:
        self.plan, self.tally = plan, tally
        self.sock = socket.create_connection(address, timeout=30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answer = b""
        self.expected_bytes = 0  # bytes of the response; 0 while its head is incomplete
        self.tries = 0  # attempts of this write
        self.began = self.sent = 0.0

    def send(self, now: float) -> None:
        """Send the next write, or repeat the last one."""
        if not self.tries:
            self.began = now
        self.tries += 1
        self.sent = now
        self.answer, self.expected_bytes = b"", 0
        assert self.sock.send(self.plan.request) == len(self.plan.request), (
            "the kernel accepted only a part"
        )

    def receive(self) -> bool:
        """Receive bytes. Return whether the response is complete. Raise `EOFError` if the server
        has closed the connection.
        """
        data = self.sock.recv(RECEIVE_BYTES)
        if not data:
            raise EOFError
        answer = self.answer = self.answer + data if self.answer else data
        if not self.expected_bytes:
            end = answer.find(HEAD_END)
            if end < 0:
                return False
            found = LENGTH.search(answer, 0, end + 2)
            self.expected_bytes = end + 4 + (int(found[1]) if found else 0)
        return len(answer) >= self.expected_bytes

    def retry_after_s(self) -> float:
        """Return the time that the refusal specifies for this client."""
        if self.plan.manner is Manner.GREEDY:
            return 0.0
        if self.plan.manner is Manner.MILLISECONDS:
            found = RETRY_MS.search(self.answer)
            return int(found[1]) / 1000 if found else DEFAULT_RETRY_S
        found = RETRY_AFTER.search(self.answer)
        return float(found[1]) if found else DEFAULT_RETRY_S


class Clients:
    """All clients of one process."""

    def __init__(self, address: tuple[str, int], plans: Sequence[Plan]) -> None:
        self._poll = select.epoll()
        self._waits: list[tuple[float, int]] = []  # when which descriptor resends
        self._tallies = {(plan.topic, plan.manner): Tally() for plan in plans}
        made = [Client(address, plan, self._tallies[plan.topic, plan.manner]) for plan in plans]
        self._clients = {client.sock.fileno(): client for client in made}
        for descriptor in self._clients:
            self._poll.register(descriptor, select.EPOLLIN)

    def run(self, seconds: float) -> Report:
        """Write for this time. Later responses are not counted."""
        cpu, queued = time.process_time(), queued_s(os.getpid())
        began = self._now = time.perf_counter()
        self._until = began + seconds
        for tally in self._tallies.values():
            tally.last_stored = began
        gc.disable()
        for client in self._clients.values():
            client.send(began)
        while self._now < self._until:
            self._run_iteration()
        gc.enable()
        took = self._now - began
        for tally in self._tallies.values():
            tally.gap_s = max(tally.gap_s, self._now - tally.last_stored)
        self._close()
        cpu, queued = time.process_time() - cpu, queued_s(os.getpid()) - queued
        return Report(took, cpu, queued, self._tallies)

    def _run_iteration(self) -> None:
        """Read the available responses, then send the due requests."""
        due = self._waits[0][0] if self._waits else self._until
        found = self._poll.poll(max(0.0, min(due, self._until) - self._now), 1024)
        for descriptor, _ in found:
            client = self._clients[descriptor]
            self._now = time.perf_counter()
            try:
                if client.receive():
                    self._take(descriptor, client)
            except (EOFError, ConnectionError):
                self._lost(descriptor, client)
        self._now = time.perf_counter()
        while self._waits and self._waits[0][0] <= self._now:
            _, descriptor = heapq.heappop(self._waits)
            self._send(descriptor, self._clients[descriptor])

    def _take(self, descriptor: int, client: Client) -> None:
        status = client.answer[9:12]
        if status in (b"200", b"201"):
            client.tally.store(client, self._now)
            client.tries = 0
            self._send(descriptor, client)
        elif status == b"429" and (limit := LIMIT.search(client.answer)) is None:
            client.tally.refuse(client)
            self._later(descriptor, client, client.retry_after_s())
        else:
            what = (
                status.decode() if status != b"429" else f"429 {limit[1].decode() if limit else ''}"
            )
            client.tally.other(what)
            self._later(descriptor, client, DEFAULT_RETRY_S)

    def _later(self, descriptor: int, client: Client, seconds: float) -> None:
        if seconds > 0:
            heapq.heappush(self._waits, (self._now + seconds, descriptor))
        else:
            self._send(descriptor, client)

    def _send(self, descriptor: int, client: Client) -> None:
        try:
            client.send(self._now)
        except ConnectionError:
            self._lost(descriptor, client)

    def _lost(self, descriptor: int, client: Client) -> None:
        """Record that the server has closed the connection, which it should not."""
        client.tally.other("connection lost")
        self._poll.unregister(descriptor)

    def _close(self) -> None:
        self._poll.close()
        for client in self._clients.values():
            client.sock.close()


def drive(address: tuple[str, int], plans: Sequence[Plan], seconds: float) -> Report:
    """Run all clients of this process for this time."""
    return Clients(address, plans).run(seconds)
