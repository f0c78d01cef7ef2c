"""Watchers while the front, a shard or all processes are killed and networks are cut: each receives
every record once, or a report of the gap.

Each watcher follows a few topics over SSE and compares every event with its position. Its position
in a topic is the end of the last complete event, and the next event must begin there. So no record
is missing, duplicated or out of order, except after a resume from an earlier cursor. At the end
all watchers must be at the heads, and must have received exactly the acknowledged records. Runs as
a program: ``python -m tests.campaigns.watchers --seconds 300 --seed 1``.
"""

from __future__ import annotations

import random
import socket
import struct
import sys
import time
import traceback
from collections import Counter, deque
from pathlib import Path
from typing import Any

from tests.campaigns.clients import BROKEN, Actor, Address
from tests.campaigns.killer import RESTART_MAX_S, Killer, Summary, program
from tests.campaigns.writers import Ledger, Writer, finish
from tests.support.api import Api, Wire, ok, request
from tests.support.server import Server
from tests.support.sse import (
    CAUGHT_UP,
    ERROR,
    RECORD,
    TOMBSTONE,
    Decoder,
    SseEvent,
    Unchunk,
    decoded,
)

SHARDS = 2
WRITERS = 4
WAL_FILE_BYTES = 1 << 20  # a part of the records that a resume reads is stored in segments
CAPS = {"fsync-0": 0, "fsync-1": 0, "disk-0": 0, "disk-1": 0, "disk-capped": 60, "fsync-capped": 40}
# Capped topics are chosen more often, because their readers fall behind sooner.
WRITTEN = [*CAPS, "disk-capped", "disk-capped", "fsync-capped"]
PADDINGS = (0, 200, 2000, 16_000)
KILL_SHARE = 0.25  # of all faults; the others are cut networks
CATCH_UP_S = 60.0  # for all records in flight at the end
CUTS = ("end", "reset", "vanish")
HEARTBEAT_MS = 1000
SILENCE_S = 15.0  # an open stream sends at least a heartbeat within this time
RETRY_S = 0.05
IDS_KEPT = 30
KINDS = ("brisk", "brisk", "brisk", "slow", "stalling")
GAP_REASONS = ("cap", "from_seq_too_old", "mixed")
Seen = dict[tuple[str, int], tuple[int, ...]]  # topic and seq: writer, number, position


class PacedWriter(Writer):
    """A writer with few and small writes, so that many watchers can follow."""

    def records(self, topic: str) -> list[dict[str, Any]]:
        self.ending.wait(self.rng.uniform(0.0, 0.04))
        return self.make_records(self.rng.randint(1, 4), "x" * self.rng.choice(PADDINGS))


class Watcher(Actor):
    """Follows some topics until it has reached the given heads, or until it has found an error."""

    def __init__(self, number: int, address: Address, seed: int, seen: Seen) -> None:
        rng = random.Random(f"{seed}/watcher/{number}")
        super().__init__(f"watcher-{number}", address, rng)
        self._seen, self._kind = seen, KINDS[number % len(KINDS)]
        self._options = {
            "heartbeat_ms": HEARTBEAT_MS,
            "limit": rng.choice((10, 256, 256, 1000)),
            "consistency": rng.choice(("eventual", "eventual", "strong")),
        }
        self._at = dict.fromkeys(sorted(rng.sample(list(CAPS), rng.randint(1, 4))), 0)
        self._highest = dict(self._at)
        self._epochs: dict[str, int] = {}
        # By topic: the end of a tombstone that was the last received event.
        self._gap_ends: dict[str, int] = {}
        self._wid: str | None = None
        self._ids: deque[str] = deque(maxlen=IDS_KEPT)
        self.cut: str | None = None  # how its network is about to be cut
        # A lost connection: the client neither reads nor closes it.
        self._abandoned_wire: Wire | None = None
        self._heads: dict[str, int] | None = None

    def set_final_heads(self, heads: dict[str, int]) -> None:
        """Set the final heads. The watcher ends when it has reached them."""
        self._heads = heads
        self.ending.set()

    @property
    def missing(self) -> dict[str, tuple[int, int]]:
        """Return the current and the required position by topic."""
        heads = self._heads or {}
        positions = {topic: (at, heads.get(topic, at)) for topic, at in self._at.items()}
        return {
            topic: position for topic, position in positions.items() if position[0] != position[1]
        }

    @property
    def _has_caught_up(self) -> bool:
        return self._heads is not None and not self.missing

    def run(self) -> None:
        try:
            while not self._has_caught_up:
                try:
                    self._watch()
                except BROKEN:
                    self.counts["breaks"] += 1
                pause_max_s = 3.0 if self.rng.random() < 0.1 else 3 * RETRY_S
                self.ending.wait(self.rng.uniform(0.0, pause_max_s))
                time.sleep(RETRY_S)
        except Exception:
            self.add_problem(f"{self}: {traceback.format_exc(limit=-2)}")
        finally:
            if self._abandoned_wire is not None:
                self._abandoned_wire.socket.close()

    def __str__(self) -> str:
        return f"{self.name} ({self._kind}, {self._options}, {dict(self.counts)}) at {self._at}"

    # Connecting

    def _watch(self) -> None:
        """Follow one stream from its opening to its failure. Raise the failure, unless it is a
        refusal.
        """
        if self._wid is None or not self._ids:
            self._ids.clear()
            self._wid = self._post()
            if self._wid is None:
                return
        receive_bytes = None if self._kind == "brisk" else 8192
        with Wire(self.address(), RESTART_MAX_S, receive_bytes=receive_bytes) as wire:
            last = [f"Last-Event-ID: {self._rewind()}"] if self._ids else []
            accept = "Accept: text/event-stream"
            wire.send(request("GET", f"/v0/watch/{self._wid}", None, accept, *last))
            status, headers = wire.head()
            if status == 404:
                self.counts["expired sessions"] += 1
                self._wid = None
            if status in (404, 429, 503):
                return
            assert status == 200, f"GET returns {status} {headers}"
            assert headers["transfer-encoding"] == "chunked", headers
            self.counts["streams"] += 1
            self._gap_ends.clear()
            self._read(wire)

    def _post(self) -> str | None:
        """Create a new session at the watcher's positions. Return None if the server is
        unavailable.
        """
        topics = {topic: {"from_seq": seq} for topic, seq in self._at.items()}
        for topic in topics.keys() & self._epochs.keys():
            topics[topic]["epoch"] = self._epochs[topic]
        with Api(self.address(), timeout_s=RESTART_MAX_S) as api:
            answer = api.call("POST", "/v0/watch", {**self._options, "topics": topics})
        if answer.status in (429, 503):
            return None
        assert answer.status == 200, f"POST returns {answer}"
        body = answer.json()
        for topic, start in body["topics"].items():
            at, epoch = self._at[topic], self._epochs.setdefault(topic, start["epoch"])
            assert start["from_seq"] == at, f"POST for {topic} from {at} returns {start}"
            assert start["epoch"] == epoch, f"{topic} has another epoch: {start}, it was {epoch}"
        self.counts["posts"] += 1
        return str(body["wid"])

    def _rewind(self) -> str:
        """Return the id to resume from: mostly the last one, sometimes an earlier one. Set the
        watcher's positions to it.
        """
        if self.rng.random() < 0.3:
            for _ in range(self.rng.randrange(len(self._ids))):
                self._ids.pop()
        self._at = {topic: decoded(self._ids[-1])[topic] for topic in self._at}
        self.counts["resumes"] += 1
        self.counts["rewound"] += any(seq < self._highest[topic] for topic, seq in self._at.items())
        return self._ids[-1]

    # Reading

    def _read(self, wire: Wire) -> None:
        decoder, unchunk, sock = Decoder(), Unchunk(), wire.socket
        data, wire._buffer = bytes(wire._buffer), bytearray()
        sock.settimeout(0.1)
        received_at = time.monotonic()
        self.cut = None
        while True:
            for event in decoder.feed(unchunk.feed(data)):
                self._check_event(event)
            if self._has_caught_up:
                return
            if self.cut is not None:
                self._cut_network(wire, self.cut)
            self._delay()
            is_brisk = self._kind == "brisk" or self.ending.is_set()
            try:
                data = sock.recv(1 << 16 if is_brisk else 4096)
            except TimeoutError:
                data, silent_s = b"", time.monotonic() - received_at
                assert silent_s <= SILENCE_S, "the stream is silent"
                continue
            received_at = time.monotonic()
            if not data:
                raise EOFError("the stream has ended")

    def _delay(self) -> None:
        if self._kind == "slow":
            self.ending.wait(0.01)
        elif self._kind == "stalling" and self.rng.random() < 0.01:
            self.counts["stalls"] += 1
            self.ending.wait(self.rng.uniform(0.5, 6.0))

    def _cut_network(self, wire: Wire, how: str) -> None:
        self.counts[f"cut: {how}"] += 1
        if how == "end":
            wire.socket.shutdown(socket.SHUT_RDWR)
        elif how == "reset":
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:  # the other end is not notified, as with a disconnected cable
            if self._abandoned_wire is not None:
                self._abandoned_wire.socket.close()
            self._abandoned_wire = Wire.__new__(Wire)
            self._abandoned_wire.socket = socket.socket(fileno=wire.socket.detach())
        raise EOFError(how)

    def _check_event(self, event: SseEvent) -> None:
        if event.event is None:
            return
        body = event.json()
        if event.event == ERROR:
            self.counts[f"error {body['code']}"] += 1
            assert "topics" not in body or event.is_paced, f"a topic cannot be read: {body}"
            return
        topic = body["topic"]
        if event.event == RECORD:
            self._check_records(topic, body)
        elif event.event == TOMBSTONE:
            self._check_tombstone(topic, body)
        else:
            assert event.event == CAUGHT_UP, f"an unexpected event: {str(event)[:500]}"
            self.counts["caught up"] += 1
            at = self._at[topic]
            assert body["head_seq"] == at, f"{topic} is caught up: {body}, the watcher is at {at}"
        cursor = event.id and event.cursor
        assert cursor == self._at, f"the id is {cursor} after {event.event} of {topic}: {self._at}"
        self._ids.append(str(event.id))

    def _check_records(self, topic: str, body: dict[str, Any]) -> None:
        at, to_seq, highest = self._at[topic], body["to_seq"], self._highest[topic]
        seqs = [record["$seq"] for record in body["records"]]
        bounds = {name: body[name] for name in ("from_seq", "to_seq", "head_seq")}
        what = f"{topic}: {bounds} with {seqs} follows {at}; the highest known seq is {highest}"
        assert body["from_seq"] == at < to_seq <= body["head_seq"], what
        assert seqs == [*range(at + 1, to_seq + 1)], what
        for record in body["records"]:
            origin, key = tuple(record["data"][:3]), (topic, record["$seq"])
            other = self._seen.setdefault(key, origin)
            assert other == origin, f"{key}: {origin}, another watcher received {other}"
        self.counts["records"] += len(seqs)
        self.counts["repeated records"] += sum(seq <= highest for seq in seqs)
        self._gap_ends.pop(topic, None)
        self._move(topic, to_seq)

    def _check_tombstone(self, topic: str, body: dict[str, Any]) -> None:
        at, cap = self._at[topic], CAPS[topic]
        gap_from, gap_to, head_seq = body["gap_from"], body["gap_to"], body["head_seq"]
        what = f"{topic} at {at} with a cap of {cap}: {body}"
        assert cap, what
        assert body["reason"] in GAP_REASONS, what
        assert gap_from == at + 1 <= gap_to, what
        assert topic not in self._gap_ends, (
            f"a gap is reported in two parts, {self._gap_ends} and {what}"
        )
        # Other watchers do not know the head at the eviction.
        is_eventual = self._options["consistency"] == "eventual"
        assert gap_to <= head_seq - cap or not is_eventual, (
            f"records that are still stored are reported as lost: {what}"
        )
        assert gap_to == body["earliest_seq"] - 1, (
            f"the gap does not end before the earliest seq: {what}"
        )
        self.counts["gaps"] += 1
        self.counts["lost"] += gap_to - at
        self._gap_ends[topic] = gap_to
        self._move(topic, gap_to)

    def _move(self, topic: str, seq: int) -> None:
        self._at[topic] = seq
        self._highest[topic] = max(seq, self._highest[topic])


def campaign(data_dir: Path, *, seed: int, seconds: float, watchers: int) -> Summary:
    """Run writers and watchers while processes are killed and networks are cut. Afterwards all
    records must arrive.
    """
    summary, rng, seen = Summary(seed), random.Random(seed), Seen()
    with Server(data_dir, shards=SHARDS, wal_file_bytes=WAL_FILE_BYTES) as server:
        with Api(server.address) as api:
            for topic, cap in CAPS.items():
                ok(api.put(topic, {"durability": topic.partition("-")[0], "cap_records": cap}), 201)
        killer = Killer(server, SHARDS, rng)
        writers = [
            PacedWriter(number, lambda: server.address, WRITTEN, seed) for number in range(WRITERS)
        ]
        readers = [
            Watcher(number, lambda: server.address, seed, seen) for number in range(watchers)
        ]
        for thread in (*writers, *readers):
            thread.start()
        try:
            _inject_faults(rng, killer, readers, seconds)
        finally:
            ledgers = finish(writers)
            summary.killed = str(killer)
        server.wait_ready(RESTART_MAX_S)
        heads = _compare(summary, ledgers, seen)
        for reader in readers:
            reader.set_final_heads(heads)
        deadline = time.monotonic() + CATCH_UP_S
        for reader in readers:
            reader.join(max(deadline - time.monotonic(), 0.0))
            summary.counts += reader.counts
            summary.problems += reader.problems
            if reader.is_alive():
                summary.problems.append(f"{reader}: current, required positions: {reader.missing}")
        _compare(summary, ledgers, seen)
    summary.problems = list(dict.fromkeys(summary.problems))
    return summary


def _inject_faults(
    rng: random.Random, killer: Killer, readers: list[Watcher], seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(rng.uniform(0.05, 0.8))  # a random moment for the next fault
        if rng.random() < KILL_SHARE:
            killer.kill()
        else:
            for reader in rng.sample(readers, min(rng.randint(1, 3), len(readers))):
                reader.cut = rng.choice(CUTS)


def _compare(summary: Summary, ledgers: list[Ledger], seen: Seen) -> dict[str, int]:
    """Return the heads according to the acknowledged records. Check that received and acknowledged
    records are equal.
    """
    summary.problems += [problem for ledger in ledgers for problem in ledger.problems]
    stored: Seen = {}
    for ledger in ledgers:
        for number, write in ledger.acked.items():
            stored |= {
                (write.topic, seq): (ledger.writer, number, position)
                for position, seq in enumerate(write.seqs)
            }
    summary.counts["acknowledged"] = len(stored)
    heads = dict.fromkeys(CAPS, 0)
    counts = Counter(topic for topic, _ in stored)
    for topic, seq in stored:
        heads[topic] = max(heads[topic], seq)
    summary.problems += [
        f"{topic}: {counts[topic]} records are acknowledged up to seq {head}"
        for topic, head in heads.items()
        if counts[topic] != head
    ]
    summary.problems += [
        f"{topic}, seq {seq}: seen as {what}, acknowledged as {stored.get((topic, seq))}"
        for (topic, seq), what in seen.copy().items()
        if stored.get((topic, seq)) != what
    ][:20]
    return heads


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, seconds=300.0, watchers=50))
