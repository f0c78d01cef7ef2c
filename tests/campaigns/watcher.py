"""One watcher: it follows a few topics over SSE and holds every event against where it stands.

Its place in each topic is the end of the last event that came whole, and every event must begin
there: so nothing is missing, nothing comes twice and nothing out of order, but what lies behind the
cursor that a resume went back to.
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.campaigns.killer import BACK_S
from tests.support.api import Api, Wire, request
from tests.support.sse import CAUGHT_UP, ERROR, RECORD, TOMBSTONE, Decoder, SseEvent, decoded

CAPS = {"fsync-0": 0, "fsync-1": 0, "disk-0": 0, "disk-1": 0, "disk-capped": 60, "fsync-capped": 40}
HEARTBEAT_MS = 1000
SILENCE_S = 15.0  # a stream that is open says at least that nothing has happened
RETRY_S = 0.05
IDS_KEPT = 30
KINDS = ("brisk", "brisk", "brisk", "slow", "stalling")
TOLD = ("cap", "from_seq_too_old", "mixed")
Seen = dict[tuple[str, int], tuple[int, ...]]  # topic and seq: writer, number, position


class Wrong(Exception):
    """The server contradicts the contract or itself."""


@dataclass(slots=True)
class Report:
    """What a watcher did and met."""

    counts: Counter[str] = field(default_factory=Counter)
    problem: str | None = None


class Watcher(threading.Thread):
    """Follows some topics until told where their heads are and it stands there, or until something
    is wrong.
    """

    def __init__(
        self, number: int, address: Callable[[], tuple[str, int]], seed: int, seen: Seen
    ) -> None:
        super().__init__(name=f"watcher-{number}", daemon=True)
        self.report = Report()
        self._address, self._seen = address, seen
        self._random = random.Random(f"{seed}/watcher/{number}")
        self._kind = KINDS[number % len(KINDS)]
        self._options = {
            "heartbeat_ms": HEARTBEAT_MS,
            "limit": self._random.choice((10, 256, 256, 1000)),
            "consistency": self._random.choice(("eventual", "eventual", "strong")),
        }
        self._at = dict.fromkeys(
            sorted(self._random.sample(list(CAPS), self._random.randint(1, 4))), 0
        )
        self._highest = dict(self._at)
        self._epochs: dict[str, int] = {}
        # By topic: the end of the tombstone that was the last thing that came.
        self._gap_ends: dict[str, int] = {}
        self._wid: str | None = None
        self._ids: deque[str] = deque(maxlen=IDS_KEPT)
        self._cut: str | None = None
        # A connection that has vanished: nobody reads it, nobody has closed it.
        self._left: Wire | None = None
        self._heads: dict[str, int] | None = None
        self._ending = threading.Event()

    def cut(self, how: str) -> None:
        """Cut its network, soon."""
        self._cut = how

    def end_at(self, heads: dict[str, int]) -> None:
        """There will be no more than this: hurry, and end there."""
        self._heads = heads
        self._ending.set()

    @property
    def missing(self) -> dict[str, tuple[int, int]]:
        """Where it stands and where it must come, by topic."""
        heads = self._heads or {}
        return {
            topic: (at, heads[topic])
            for topic, at in self._at.items()
            if topic in heads and at != heads[topic]
        }

    @property
    def _arrived(self) -> bool:
        return self._heads is not None and not self.missing

    @property
    def _count(self) -> Counter[str]:
        return self.report.counts

    def run(self) -> None:
        try:
            while not self._arrived:
                try:
                    self._watch()
                except (OSError, EOFError, http.client.HTTPException):
                    self._count["breaks"] += 1
                away = 3.0 if self._random.random() < 0.1 else 3 * RETRY_S
                self._ending.wait(self._random.uniform(0.0, away))
                time.sleep(RETRY_S)
        except (Wrong, AssertionError) as wrong:
            self.report.problem = f"{self}: {wrong}"
        except Exception:
            self.report.problem = f"{self}: {traceback.format_exc()}"
        finally:
            if self._left is not None:
                self._left.socket.close()

    def __str__(self) -> str:
        return f"{self.name} ({self._kind}, {self._options}, {dict(self._count)}) at {self._at}"

    # Connecting

    def _watch(self) -> None:
        """One stream, from its opening until it breaks. What breaks it is raised, but for a
        refusal.
        """
        if self._wid is None or not self._ids:
            self._ids.clear()
            self._wid = self._post()
            if self._wid is None:
                return
        with Wire(
            self._address(), BACK_S, receive_bytes=None if self._kind == "brisk" else 8192
        ) as wire:
            last = [f"Last-Event-ID: {self._go_back()}"] if self._ids else []
            wire.send(
                request("GET", f"/v0/watch/{self._wid}", None, "Accept: text/event-stream", *last)
            )
            status, headers = wire.head()
            if status == 404:
                self._count["sessions gone"] += 1
                self._wid = None
                return
            if status in (429, 503):
                return
            if status != 200 or "chunked" in headers.get("transfer-encoding", ""):
                raise Wrong(f"GET answers {status} {headers}")
            self._count["streams"] += 1
            self._gap_ends.clear()
            self._read(wire)

    def _post(self) -> str | None:
        """A new session from where the watcher stands; None when the server cannot now."""
        with Api(self._address(), timeout_s=BACK_S) as api:
            topics = {
                topic: {"from_seq": seq}
                | ({"epoch": self._epochs[topic]} if topic in self._epochs else {})
                for topic, seq in self._at.items()
            }
            answer = api.call("POST", "/v0/watch", {**self._options, "topics": topics})
        if answer.status in (429, 503):
            return None
        if answer.status != 200:
            raise Wrong(f"POST answers {answer}")
        body = answer.json()
        for topic, told in body["topics"].items():
            if told["from_seq"] != self._at[topic]:
                raise Wrong(f"POST for {topic} from {self._at[topic]} answers {told}")
            if self._epochs.setdefault(topic, told["epoch"]) != told["epoch"]:
                raise Wrong(f"{topic} has another epoch: {told}, it was {self._epochs[topic]}")
        self._count["posts"] += 1
        return str(body["wid"])

    def _go_back(self) -> str:
        """The id to resume from: mostly the last one, sometimes one before it. The watcher stands
        there now.
        """
        if self._random.random() < 0.3:
            for _ in range(self._random.randrange(len(self._ids))):
                self._ids.pop()
        self._at = {topic: decoded(self._ids[-1])[topic] for topic in self._at}
        self._count["resumes"] += 1
        self._count["rewound"] += any(seq < self._highest[topic] for topic, seq in self._at.items())
        return self._ids[-1]

    # Reading

    def _read(self, wire: Wire) -> None:
        decoder, sock = Decoder(), wire.socket
        piece, wire._buffer = bytes(wire._buffer), bytearray()
        sock.settimeout(0.1)
        heard_at = time.monotonic()
        self._cut = None
        while True:
            for event in decoder.feed(piece):
                self._take(event)
            if self._arrived:
                return
            if self._cut is not None:
                self._break(wire, self._cut)
            self._dawdle()
            try:
                piece = sock.recv(
                    1 << 16 if self._kind == "brisk" or self._ending.is_set() else 4096
                )
            except TimeoutError:
                piece = b""
                if time.monotonic() - heard_at > SILENCE_S:
                    raise Wrong(f"the stream is silent for {SILENCE_S} s") from None
                continue
            heard_at = time.monotonic()
            if not piece:
                raise EOFError("the stream has ended")

    def _dawdle(self) -> None:
        if self._kind == "slow":
            self._ending.wait(0.01)
        elif self._kind == "stalling" and self._random.random() < 0.01:
            self._count["stalls"] += 1
            self._ending.wait(self._random.uniform(0.5, 6.0))

    def _break(self, wire: Wire, how: str) -> None:
        self._count[f"cut: {how}"] += 1
        if how == "end":
            wire.socket.shutdown(socket.SHUT_RDWR)
        elif how == "reset":
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:  # its other end learns nothing of it, as when a cable is pulled
            if self._left is not None:
                self._left.socket.close()
            self._left = Wire.__new__(Wire)
            self._left.socket = socket.socket(fileno=wire.socket.detach())
        raise EOFError(how)

    def _take(self, event: SseEvent) -> None:
        if event.event is None:
            return
        body = event.json()
        if event.event == ERROR:
            self._count[f"error {body['code']}"] += 1
            if "topics" in body and not event.is_paced:
                raise Wrong(f"a topic cannot be read: {body}")
            return
        topic = body["topic"]
        if event.event == RECORD:
            self._take_records(topic, body)
        elif event.event == TOMBSTONE:
            self._take_tombstone(topic, body)
        elif event.event == CAUGHT_UP:
            self._count["caught up"] += 1
            if body["head_seq"] != self._at[topic]:
                raise Wrong(
                    f"{topic} is caught up at {body['head_seq']}, the watcher stands at"
                    f" {self._at[topic]}"
                )
        else:
            raise Wrong(f"an unexpected event: {str(event)[:500]}")
        if event.id is None or event.cursor != self._at:
            raise Wrong(
                f"the id says {event.id and event.cursor} after {event.event} of {topic}, the"
                f" watcher stands at {self._at}"
            )
        self._ids.append(event.id)

    def _take_records(self, topic: str, body: dict[str, Any]) -> None:
        at, to_seq = self._at[topic], body["to_seq"]
        seqs = [record["$seq"] for record in body["records"]]
        if (
            body["from_seq"] != at
            or not seqs
            or seqs != list(range(at + 1, to_seq + 1))
            or body["head_seq"] < to_seq
        ):
            told = {name: body[name] for name in ("from_seq", "to_seq", "head_seq")}
            raise Wrong(
                f"{topic}: after {at} came {told} with {_runs(seqs)}; up to"
                f" {self._highest[topic]} was seen before"
            )
        for record in body["records"]:
            what = tuple(record["data"][:3])
            if self._seen.setdefault((topic, record["$seq"]), what) != what:
                raise Wrong(
                    f"{topic}, seq {record['$seq']}: {what}, another watcher got"
                    f" {self._seen[topic, record['$seq']]}"
                )
        self._count["records"] += len(seqs)
        self._count["again"] += sum(seq <= self._highest[topic] for seq in seqs)
        self._gap_ends.pop(topic, None)
        self._move(topic, to_seq)

    def _take_tombstone(self, topic: str, body: dict[str, Any]) -> None:
        at, cap = self._at[topic], CAPS[topic]
        gap_from, gap_to, head_seq = body["gap_from"], body["gap_to"], body["head_seq"]
        if not cap or body["reason"] not in TOLD:
            raise Wrong(f"{topic}, which has a cap of {cap}, at {at}: {body}")
        if gap_from != at + 1 or gap_to < gap_from:
            raise Wrong(f"{topic}: the gap behind {at} is told as {body}")
        if topic in self._gap_ends:
            raise Wrong(
                f"{topic}: a gap is told in two parts, the first ended at"
                f" {self._gap_ends[topic]}, the second is {body}"
            )
        # The others are not told of the head that has evicted.
        shown_all = self._options["consistency"] == "eventual"
        if (shown_all and gap_to > head_seq - cap) or gap_to != body["earliest_seq"] - 1:
            raise Wrong(f"{topic}: with a cap of {cap} this is not what is lost: {body}")
        self._count["gaps"] += 1
        self._count["lost"] += gap_to - at
        self._gap_ends[topic] = gap_to
        self._move(topic, gap_to)

    def _move(self, topic: str, seq: int) -> None:
        self._at[topic] = seq
        self._highest[topic] = max(seq, self._highest[topic])


def _runs(seqs: list[int]) -> str:
    """The seqs in short: ``5-9 11``."""
    runs: list[list[int]] = []
    for seq in seqs:
        if runs and seq == runs[-1][1] + 1:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])
    return (
        " ".join(f"{first}-{last}" if first != last else f"{first}" for first, last in runs)
        or "no records"
    )
