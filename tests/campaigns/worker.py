"""One worker of queues: claims or streams jobs, and does with them what workers do, good and bad.

It acks, nacks, extends, acks late or says nothing more, and now and then tries again with tokens of
leases that are over. Whatever it asks and is told stands in a journal (`worker_history`).
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.campaigns.killer import BACK_S
from tests.campaigns.worker_history import Journal, monotonic_ns
from tests.support.api import RESET, Answer, Api, Wire, request
from tests.support.sse import ERROR, Decoder, SseEvent

RETRY_S = 0.03
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


class Worker(threading.Thread):
    """Works until it is stopped or an answer is wrong."""

    def __init__(
        self,
        number: int,
        node: str,
        address: Callable[[], tuple[str, int]],
        queues: Sequence[str],
        journal: Journal,
        dice: random.Random,
    ) -> None:
        super().__init__(name=node, daemon=True)
        self.node, self._journal = node, journal
        self._address, self._queues, self._random = address, queues, dice
        self._kind = KINDS[number % len(KINDS)]
        self._fenced = bool(number % 3)  # the others ack without tokens
        self._api: Api | None = None
        self._late: list[Held] = []  # to be acked when their deadline is over
        self._over: deque[Held] = deque(maxlen=50)  # leases that have ended
        self._left: tuple[Wire, str] | None = None  # a stream that has vanished, and its call
        self._ending = threading.Event()

    def stop(self) -> None:
        self._ending.set()

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                self._turn()
            except (OSError, EOFError, http.client.HTTPException):
                self._hang_up()
                self._ending.wait(RETRY_S)
            except Exception as error:
                self._journal.note("wrong", text=f"{self.name}: {error!r}")
                break
        self._hang_up()
        self._close_left()

    def _turn(self) -> None:
        queue = self._random.choice(self._queues)
        if self._kind == "stream":
            self._stream(queue)
        else:
            wait_ms = self._random.randint(*WAIT_MS) if self._kind == "waiting" else 0
            jobs = self._claim(queue, self._random.randint(1, BATCH_MAX), wait_ms)
            self._handle(jobs)
            if not jobs:
                self._ending.wait(self._random.uniform(0.0, 0.2))
        self._try_again()

    # What it asks

    def _call(self, path: str, body: dict[str, Any]) -> Answer:
        if self._api is None:
            self._api = Api(self._address(), timeout_s=BACK_S)
        return self._api.call("POST", path, body)

    def _hang_up(self) -> None:
        if self._api is not None:
            self._api.close()
            self._api = None

    def _ask(self, call: str, path: str, body: dict[str, Any]) -> Any | None:
        """The body of a 200; None, and a note, for what promises nothing."""
        try:
            answer = self._call(path, body)
        except (OSError, EOFError, http.client.HTTPException):
            self._journal.note("lost", call=call, at=time.monotonic_ns())
            raise
        if answer.status == 200:
            return answer.json()
        self._journal.note("lost", call=call, at=time.monotonic_ns())
        if answer.status not in (429, 503):
            raise ValueError(f"{path} {body} answers {answer}")
        self._ending.wait(RETRY_S)
        return None

    def _claim(self, queue: str, max_jobs: int, wait_ms: int) -> list[Held]:
        call = self._journal.call()
        asked: dict[str, Any] = {"node": self.node, "max": max_jobs}
        asked |= {"lease_ms": self._random.randint(*LEASE_MS)}
        asked |= {"wait_ms": wait_ms} if wait_ms else {}
        sent = time.monotonic_ns()
        self._journal.note("claim", call=call, node=self.node, queue=queue, sent=sent)
        body = self._ask(call, f"/v0/topics/{queue}/claim", asked)
        if body is None:
            return []
        jobs = self._got(call, queue, body["claimed"])
        if len(jobs) > max_jobs or body["count"] != len(jobs):
            raise ValueError(f"a claim of {max_jobs} answers {body}")
        if [job.seq for job in jobs] != sorted({job.seq for job in jobs}):
            raise ValueError(f"claimed jobs are not ascending: {body}")
        return jobs

    def _got(self, call: str, queue: str, jobs: Sequence[dict[str, Any]]) -> list[Held]:
        """Note jobs of an answer or a stream."""
        at = time.monotonic_ns()
        held = [
            Held(queue, job["$seq"], job["lease_id"], monotonic_ns(job["deadline"])) for job in jobs
        ]
        rows = [
            [each.seq, each.token, each.deadline, job["deliveries"], job["data"]]
            for each, job in zip(held, jobs, strict=True)
        ]
        self._journal.note("jobs", call=call, at=at, jobs=rows)
        return held

    def _finish(
        self, do: str, jobs: Sequence[Held], *, fenced: bool | None = None, **fields: int
    ) -> None:
        """Ack, nack or extend jobs of one queue. What was taken is over, but for an extend."""
        if not jobs:
            return
        queue, call = jobs[0].queue, self._journal.call()
        seqs = [job.seq for job in jobs]
        is_fenced = self._fenced if fenced is None else fenced
        tokens = [job.token for job in jobs] if is_fenced else None
        asked = {"seqs": seqs, **fields} | ({"lease_ids": tokens} if tokens else {})
        sent = time.monotonic_ns()
        self._journal.note(
            do,
            call=call,
            node=self.node,
            queue=queue,
            sent=sent,
            seqs=seqs,
            tokens=tokens,
            **fields,
        )
        body = self._ask(call, f"/v0/topics/{queue}/{do}", {"node": self.node, **asked})
        if body is None:
            return
        deadlines = {
            seq: monotonic_ns(deadline) for seq, deadline in body.get("deadlines", {}).items()
        }
        skipped = body["skipped"]
        at = time.monotonic_ns()
        self._journal.note("done", call=call, at=at, skipped=skipped, deadlines=deadlines)
        taken = [job for job in jobs if job.seq not in skipped]
        if body[f"{do}ed"] != len(taken) or not {*skipped} <= {*seqs}:
            raise ValueError(f"{do} of {seqs} answers {body}")
        if do == "extend" and {*deadlines} != {str(job.seq) for job in taken}:
            raise ValueError(f"extend of {seqs} answers {body}")
        if do != "extend":
            self._over += taken

    # What becomes of jobs

    def _handle(self, jobs: list[Held]) -> None:
        if not jobs:
            return
        self._ending.wait(self._random.choice((0.0, 0.0, 0.01, 0.05)))
        fate = self._random.choice(FATES)
        if jobs[0].queue == REJECTED and self._random.random() < REJECTED_SHARE:
            fate = "nack"
        if fate == "mixed":
            at = self._random.randint(0, len(jobs))
            self._finish("ack", jobs[:at])
            self._finish("nack", jobs[at:-1], delay_ms=self._random.choice(NACK_DELAYS_MS))
            self._late += jobs[-1:]
        elif fate == "extend":
            self._finish("extend", jobs, lease_ms=self._random.choice((200, 1000, 3000)))
            self._ending.wait(self._random.choice((0.05, 0.4)))
            self._finish("ack", jobs)
        elif fate == "nack":
            self._finish("nack", jobs, delay_ms=self._random.choice(NACK_DELAYS_MS))
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
        if self._over and self._random.random() < 0.4:
            queue = self._random.choice(self._over).queue
            old = {job.seq: job for job in self._over if job.queue == queue}
            jobs = self._random.sample([*old.values()], min(len(old), 3))
            do = self._random.choice(("ack", "nack", "extend"))
            fields = {"nack": {"delay_ms": 0}, "extend": {"lease_ms": 3000}}.get(do, {})
            self._finish(do, jobs, fenced=True, **fields)

    # Streams

    def _stream(self, queue: str) -> None:
        call = self._journal.call()
        self._close_left()
        depth, lease_ms = self._random.randint(1, BATCH_MAX), self._random.randint(*LEASE_MS)
        path = f"/v0/topics/{queue}/work?node={self.node}&max={depth}&lease_ms={lease_ms}"
        sent = time.monotonic_ns()
        self._journal.note("open", call=call, node=self.node, queue=queue, sent=sent)
        wire = Wire(self._address(), BACK_S)
        heard = time.monotonic_ns()
        try:
            wire.send(request("GET", path, None, "Accept: text/event-stream"))
            status, headers = wire.head()
            if status != 200:
                if status not in (429, 503):
                    raise ValueError(f"{path} answers {status} {headers}")
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
        until = time.monotonic() + self._random.uniform(*STREAM_S)
        sock.settimeout(0.05)
        while time.monotonic() < until and not self._ending.is_set():
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
                    raise ValueError(f"a stream is silent for {SILENCE_S} s") from None
                continue
            except OSError:
                raise _Ended(heard) from None
            if not piece:
                raise _Ended(heard)
            heard = time.monotonic_ns()
        return self._leave(wire, call)

    def _leave(self, wire: Wire, call: str) -> int:
        """Go in one way or another; the moment before."""
        moment, how = time.monotonic_ns(), self._random.choice(ENDS)
        if how == "reset":
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        elif how == "vanish" and not self._ending.is_set():  # nobody closes it, nobody reads it
            self._left = wire, call
        return moment

    def _jobs_of(self, events: Sequence[SseEvent], call: str, queue: str) -> list[Held]:
        shown = [event.json() for event in events if event.event == "job"]
        for event in events:
            if event.event not in (None, "job", ERROR):
                raise ValueError(f"an unexpected event: {str(event)[:300]}")
        return self._got(call, queue, shown) if shown else []


class _Ended(Exception):
    """The server has ended a stream; ``heard``: when something last came."""

    def __init__(self, heard: int) -> None:
        super().__init__(heard)
        self.heard = heard
