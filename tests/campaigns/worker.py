"""One worker of queues: claims or streams jobs, and does with them what workers do, good and bad.

It acks, nacks, extends, acks late or says nothing more, and now and then tries again with tokens of
leases that are over. Whatever it asks and is told stands in a journal (`worker_history`).
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.campaigns.clients import RETRY_S, Actor, Address, Refused, Wrong
from tests.campaigns.killer import BACK_S
from tests.campaigns.worker_history import Journal, monotonic_ns, row_of
from tests.support.api import Wire, request
from tests.support.sse import ERROR, Decoder, SseEvent

LEASE_MS = (1000, 3000)
BATCH_MAX = 16
WAIT_MS = (100, 1500)
NACK_DELAYS_MS = (0, 0, 50, 400)
LATE_NS = 60_000_000  # after its deadline a lease is over so long that nobody doubts it
STREAM_S = (0.5, 5.0)
SILENCE_S = 25.0  # a stream that is open sends heartbeats
KINDS = ("polled", "waiting", "stream", "polled", "waiting", "stream", "polled", "stream")
# What becomes of the jobs of a claim.
FATES = ("ack",) * 8 + ("mixed",) * 3 + ("extend",) * 2 + ("late",) * 2 + ("dropped", "nack")
REJECTED = "frail"  # the jobs of this queue are mostly given back: many are moved
REJECTED_SHARE = 0.7
ENDS = ("end", "end", "reset", "vanish")


class Held(NamedTuple):
    """A job that the worker holds, or held."""

    queue: str
    seq: int
    token: str
    deadline: int


class Worker(Actor):
    """Works on some queues."""

    def __init__(
        self,
        number: int,
        node: str,
        address: Address,
        queues: Sequence[str],
        journal: Journal,
        dice: random.Random,
    ) -> None:
        super().__init__(node, address, dice)
        self.node, self._journal, self._queues = node, journal, queues
        self._kind = KINDS[number % len(KINDS)]
        self._fenced = bool(number % 3)  # the others ack without tokens
        self._late: list[Held] = []  # to be acked when their deadline is over
        self._over: deque[Held] = deque(maxlen=50)  # leases that have ended
        self._left: tuple[Wire, str] | None = None  # a stream that has vanished, and its call

    def run(self) -> None:
        super().run()
        self._close_left()

    def wrong(self, text: str) -> None:
        super().wrong(text)
        self._journal.note("wrong", text=text)

    def turn(self) -> None:
        queue = self.dice.choice(self._queues)
        if self._kind == "stream":
            self._stream(queue)
        else:
            wait_ms = self.dice.randint(*WAIT_MS) if self._kind == "waiting" else 0
            jobs = self._claim(queue, self.dice.randint(1, BATCH_MAX), wait_ms)
            self._handle(jobs)
            if not jobs:
                self.ending.wait(self.dice.uniform(0.0, 0.2))
        self._try_again()

    # What it asks

    def _ask(self, do: str, queue: str, body: dict[str, Any], **noted: Any) -> tuple[str, Any]:
        """The call, and the body of its answer; noted before, and if it promises nothing."""
        call, sent = self._journal.call(), time.monotonic_ns()
        self._journal.note(do, call=call, node=self.node, queue=queue, sent=sent, **noted)
        try:
            asked = {"node": self.node, **body}
            return call, self.line.ask("POST", f"/v0/topics/{queue}/{do}", asked).json()
        except (Refused, Wrong):
            self._journal.note("lost", call=call, at=time.monotonic_ns())
            raise

    def _claim(self, queue: str, max_jobs: int, wait_ms: int) -> list[Held]:
        asked = {"max": max_jobs, "lease_ms": self.dice.randint(*LEASE_MS)}
        asked |= {"wait_ms": wait_ms} if wait_ms else {}
        call, body = self._ask("claim", queue, asked)
        jobs = self._got(call, queue, body["claimed"])
        assert body["count"] == len(jobs) <= max_jobs, f"a claim of {max_jobs} answers {body}"
        seqs = [job.seq for job in jobs]
        assert seqs == sorted({*seqs}), f"claimed jobs are not ascending: {body}"
        return jobs

    def _got(self, call: str, queue: str, jobs: Sequence[dict[str, Any]]) -> list[Held]:
        """Note jobs of an answer or a stream."""
        at, rows = time.monotonic_ns(), [row_of(job) for job in jobs]
        self._journal.note("jobs", call=call, at=at, jobs=rows)
        return [Held(queue, seq, token, deadline) for seq, token, deadline, *_ in rows]

    def _finish(
        self, do: str, jobs: Sequence[Held], *, fenced: bool | None = None, **fields: int
    ) -> None:
        """Ack, nack or extend jobs of one queue. What was taken is over, but for an extend."""
        if not jobs:
            return
        queue, seqs = jobs[0].queue, [job.seq for job in jobs]
        is_fenced = self._fenced if fenced is None else fenced
        tokens = [job.token for job in jobs] if is_fenced else None
        asked = {"seqs": seqs, **fields} | ({"lease_ids": tokens} if tokens else {})
        try:
            call, body = self._ask(do, queue, asked, seqs=seqs, tokens=tokens, **fields)
        except Refused:  # nobody knows what became of it
            self.ending.wait(RETRY_S)
            return
        deadlines = {
            seq: monotonic_ns(deadline) for seq, deadline in body.get("deadlines", {}).items()
        }
        skipped = body["skipped"]
        at = time.monotonic_ns()
        self._journal.note("done", call=call, at=at, skipped=skipped, deadlines=deadlines)
        taken = [job for job in jobs if job.seq not in skipped]
        told = f"{do} of {seqs} answers {body}"
        assert body[f"{do}ed"] == len(taken), told
        assert {*skipped} <= {*seqs}, told
        if do == "extend":
            assert {*deadlines} == {str(job.seq) for job in taken}, told
        else:
            self._over += taken

    # What becomes of jobs

    def _handle(self, jobs: list[Held]) -> None:
        if not jobs:
            return
        self.ending.wait(self.dice.choice((0.0, 0.0, 0.01, 0.05)))
        fate = self.dice.choice(FATES)
        if jobs[0].queue == REJECTED and self.dice.random() < REJECTED_SHARE:
            fate = "nack"
        if fate == "mixed":
            at = self.dice.randint(0, len(jobs))
            self._finish("ack", jobs[:at])
            self._finish("nack", jobs[at:-1], delay_ms=self.dice.choice(NACK_DELAYS_MS))
            self._late += jobs[-1:]
        elif fate == "extend":
            self._finish("extend", jobs, lease_ms=self.dice.choice((200, 1000, 3000)))
            self.ending.wait(self.dice.choice((0.05, 0.4)))
            self._finish("ack", jobs)
        elif fate == "nack":
            self._finish("nack", jobs, delay_ms=self.dice.choice(NACK_DELAYS_MS))
        elif fate == "late":
            self._late += jobs
        elif fate == "dropped":
            self._over += jobs
        else:
            self._finish("ack", jobs)

    def _try_again(self) -> None:
        """Acks that are late, and requests with tokens of leases that are over."""
        now = time.monotonic_ns()
        if due := [job for job in self._late if job.deadline + LATE_NS < now]:
            mine = [job for job in due if job.queue == due[0].queue]
            self._late = [job for job in self._late if job not in mine]
            self._finish("ack", mine)
            self._over += mine
        if self._over and self.dice.random() < 0.4:
            queue = self.dice.choice(self._over).queue
            old = {job.seq: job for job in self._over if job.queue == queue}
            jobs = self.dice.sample([*old.values()], min(len(old), 3))
            do = self.dice.choice(("ack", "nack", "extend"))
            fields = {"nack": {"delay_ms": 0}, "extend": {"lease_ms": 3000}}.get(do, {})
            self._finish(do, jobs, fenced=True, **fields)

    # Streams

    def _stream(self, queue: str) -> None:
        call = self._journal.call()
        self._close_left()
        depth, lease_ms = self.dice.randint(1, BATCH_MAX), self.dice.randint(*LEASE_MS)
        path = f"/v0/topics/{queue}/work?node={self.node}&max={depth}&lease_ms={lease_ms}"
        sent = time.monotonic_ns()
        self._journal.note("open", call=call, node=self.node, queue=queue, sent=sent)
        wire = Wire(self.address(), BACK_S)
        heard = time.monotonic_ns()
        try:
            wire.send(request("GET", path, None, "Accept: text/event-stream"))
            status, headers = wire.head()
            assert status in (200, 429, 503), f"{path} answers {status} {headers}"
            if status != 200:
                return
            heard = time.monotonic_ns()
            self._journal.note("live", call=call, at=heard)
            heard = self._follow(wire, call, queue)
        except _Ended as ended:
            heard = ended.heard
        finally:
            if self._left is None:
                self._journal.note("shut", call=call, at=heard)
                wire.socket.close()

    def _close_left(self) -> None:
        """The network sees that a vanished connection is gone."""
        if self._left is not None:
            wire, call = self._left
            self._left = None
            self._journal.note("shut", call=call, at=time.monotonic_ns())
            wire.socket.close()

    def _follow(self, wire: Wire, call: str, queue: str) -> int:
        """Take what comes, until it is time to go; the moment of the end. A stream that the server
        has ended raises `_Ended`.
        """
        decoder, sock = Decoder(), wire.socket
        piece, wire._buffer = bytes(wire._buffer), bytearray()
        heard = time.monotonic_ns()
        until = time.monotonic() + self.dice.uniform(*STREAM_S)
        sock.settimeout(0.05)
        while time.monotonic() < until and not self.ending.is_set():
            events = decoder.feed(piece)
            self._handle(self._jobs_of(events, call, queue))
            if any(event.event == ERROR for event in events):
                raise _Ended(heard)
            self._try_again()
            try:
                piece = sock.recv(1 << 16)
            except TimeoutError:
                piece = b""
                if time.monotonic_ns() - heard > SILENCE_S * 1e9:
                    raise Wrong(f"a stream is silent for {SILENCE_S} s") from None
                continue
            except OSError:
                raise _Ended(heard) from None
            if not piece:
                raise _Ended(heard)
            heard = time.monotonic_ns()
        return self._leave(wire, call)

    def _leave(self, wire: Wire, call: str) -> int:
        """Go in one way or another; the moment before."""
        moment, how = time.monotonic_ns(), self.dice.choice(ENDS)
        if how == "reset":
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == "vanish" and not self.ending.is_set():  # nobody closes it, nobody reads it
            self._left = wire, call
        return moment

    def _jobs_of(self, events: Sequence[SseEvent], call: str, queue: str) -> list[Held]:
        shown = [event.json() for event in events if event.event == "job"]
        for event in events:
            assert event.event in (None, "job", ERROR), f"an unexpected event: {str(event)[:300]}"
        return self._got(call, queue, shown) if shown else []


class _Ended(Exception):
    """The server has ended a stream; ``heard``: when something last came."""

    def __init__(self, heard: int) -> None:
        super().__init__(heard)
        self.heard = heard
