"""An owner: it has one topic to itself and knows after every step what the topic must look like.

It asks after each outage, and now and then; whatever was not acknowledged is repeated.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

from tests.campaigns.clients import Actor, Address, Wrong
from tests.support.model import Kept, TopicModel

LOSSES = ("cap", "ttl", "mixed")
TAGS = ("a", "a:1", "a:2", "b", "b:1", None)
MATCHES = (
    "a",
    "b:1",
    ["tag", "Eq", "a:1"],
    ["tag", "Glob", "a*"],
    ["tag", "Glob", "b:*"],
    ["tag", "Glob", "*"],
)
# "bulk": deletes that take several slices.
KINDS = ("deletes", "bulk", "caps", "bytes", "ttl", "recreated", "everything")
CAP_BYTES = 60_000
SHORT_TTL_MS, LONG_TTL_MS = 800, 3000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Age:
    """What a TTL has surely taken (``$ts`` below ``gone``) and what it may have taken (below
    ``doubtful``).
    """

    ttl_ms: int = 0
    gone: int = 0
    doubtful: int = 0

    def change(self, ttl_ms: int, sent_ms: int, acknowledged_ms: int) -> None:
        """Another TTL from some moment between the two on; what the old one took stays gone."""
        if self.ttl_ms:
            self.gone = max(self.gone, sent_ms - self.ttl_ms)
        shortest = min((ttl for ttl in (self.ttl_ms, ttl_ms) if ttl), default=0)
        if shortest:
            self.doubtful = max(self.doubtful, acknowledged_ms - shortest)
        self.ttl_ms = ttl_ms

    def bounds(self, sent_ms: int, answered_ms: int) -> tuple[int, int]:
        """``gone`` and ``doubtful`` for an answer that was given between the two."""
        if not self.ttl_ms:
            return self.gone, self.doubtful
        return max(self.gone, sent_ms - self.ttl_ms), max(self.doubtful, answered_ms - self.ttl_ms)


class Owner(Actor):
    """Works on one topic of one ``kind``."""

    def __init__(self, kind: str, durability: str, address: Address, seed: int) -> None:
        topic = f"{kind}.{durability}"
        super().__init__(topic, address, random.Random(f"{seed}/{topic}"))
        self._kind, self._durability, self._topic = kind, durability, topic
        self._lives = 0
        self._written = 0
        self._refusals = 0  # that it has checked the topic after
        self._begin()

    def _begin(self) -> None:
        self._model, self._age = TopicModel(), Age()
        # By seq: when it was sent, and once it was read its `$ts`.
        self._stamps: dict[int, int] = {}
        self._floor = 1
        self._cap_bytes = 0

    # Acting

    def _call(self, method: str, tail: str, body: Any = None) -> Any:
        return self.line.insist(method, f"/v0/topics/{self._topic}{tail}", body)

    def turn(self) -> None:
        if not self._lives:
            self._make()
        self._step()
        self.counts["steps"] += 1
        if self.line.refusals > self._refusals or self.dice.random() < 0.03:
            self._refusals = self.line.refusals
            self.check()

    def wrong(self, text: str) -> None:
        super().wrong(f"step {self.counts['steps']}, life {self._lives}: {text}")

    def _step(self) -> None:
        step = self.dice.random()
        kind = self._kind
        if kind == "bulk" and step > 0.6:
            self._take_away()
        elif step < 0.78:
            self._append()
        elif step < 0.9 and kind in ("deletes", "caps", "everything"):
            self._take_away()
        elif step < 0.96 and kind in ("caps", "everything"):
            self._set_cap()
        elif step < 0.96 and kind == "ttl":
            self._set_ttl(self.dice.choice((0, SHORT_TTL_MS, LONG_TTL_MS)))
        elif step > 0.99 and kind in ("recreated", "everything"):
            self._make_again()

    def _make(self) -> None:
        self._lives += 1
        self._call("PUT", "", {"durability": self._durability})
        if self._kind == "bytes":
            self._cap_bytes = CAP_BYTES
            self._call("PUT", "", {"cap_bytes": CAP_BYTES})

    def _make_again(self) -> None:
        old = self._call("GET", "?touch=false")
        self._call("DELETE", "")
        self._begin()
        self._make()
        new = self._call("GET", "?touch=false")
        if new["epoch"] == old["epoch"] or new["head_seq"] != 0:
            raise Wrong(f"made again it is {new}, before it was {old}")
        stone = self._call("POST", "/diff", {"from_seq": old["head_seq"], "epoch": old["epoch"]})[
            "tombstone"
        ]
        if (
            stone is None
            or stone["reason"] != "recreated"
            or (stone["gap_from"], stone["gap_to"]) != (1, 0)
        ):
            raise Wrong(f"an old cursor is told {stone}")

    def _append(self) -> None:
        self._written += 1
        records, is_bulk = [], self._kind == "bulk"
        for number in range(self.dice.choice((1, 3000, 8000) if is_bulk else (1, 1, 2, 5, 30))):
            padding = "x" * (0 if is_bulk else self.dice.choice((0, 50, 800, 4000)))
            records.append(
                Kept([self._lives, self._written, number, padding], self.dice.choice(TAGS))
            )
        sent = [{"data": kept.data} | ({"tag": kept.tag} if kept.tag else {}) for kept in records]
        sent_ms = now_ms()
        body = self._call(
            "POST", "", {"records": sent, "idempotency_key": f"{self._written}", "create": False}
        )
        first, model = body["first_seq"], self._model
        if body["seqs"] != list(range(first, first + len(records))):
            raise Wrong(f"the seqs of one write are {body['seqs']}")
        if first != model.head_seq + 1 and not (self._may_skip and first > model.head_seq):
            raise Wrong(f"a write after seq {model.head_seq} begins at {first}")
        model.append(records, first)
        self._stamps |= dict.fromkeys(body["seqs"], sent_ms)
        self.counts["records"] += len(records)

    @property
    def _may_skip(self) -> bool:
        """§0.10: seqs of an ``ephemeral`` topic are not reused after a restart; they may leave a
        hole.
        """
        return self._durability == "ephemeral"

    def _take_away(self) -> None:
        body: dict[str, Any] = {}
        if self.dice.random() < 0.7:
            body["match"] = self.dice.choice(MATCHES)
        if not body or self.dice.random() < 0.5:
            back = 8000 if self._kind == "bulk" else 200
            body["before_seq"] = self.dice.randint(
                max(0, self._model.head_seq - back), self._model.head_seq + 5
            )
        refusals = self.line.refusals
        answer = self._call("POST", "/delete", body)
        count = self._model.delete(**body)
        self.counts["deleted"] += count
        # Asked a second time, the first may have done it: a delete has no key.
        if answer["deleted"] != count and refusals == self.line.refusals and not self._may_skip:
            raise Wrong(f"a delete {body} took {answer['deleted']} records, {count} were there")

    def _set_cap(self) -> None:
        cap = self.dice.choice((0, 20, 100, 300))
        self._call("PUT", "", {"cap_records": cap})
        self._model.set_cap(cap)

    def _set_ttl(self, ttl_ms: int) -> None:
        sent = now_ms()
        self._call("PUT", "", {"ttl_ms": ttl_ms})
        self._age.change(ttl_ms, sent, now_ms())

    # Checking

    def check(self) -> None:
        """Read the whole topic and compare. Raises `Wrong`."""
        self.counts["checks"] += 1
        cursor = self.dice.choice((0, 0, self.dice.randint(0, self._model.head_seq)))
        sent = now_ms()
        records, gaps, page = self._read(cursor)
        answered = now_ms()
        self._check_floor(page)
        model = self._model
        if self._may_skip:
            self._check_ephemeral(cursor, records, gaps, page)
            return
        if page["head_seq"] != model.head_seq:
            raise Wrong(f"the head is {page['head_seq']}, {model.head_seq} is acknowledged")
        self._check_records(cursor, records, self._age.bounds(sent, answered))
        if self._kind in ("deletes", "bulk", "caps", "recreated", "everything"):
            expected = model.gap(cursor)
            if gaps != ([] if expected is None else [expected]):
                raise Wrong(f"from {cursor} the gaps {gaps} are told, {expected} belongs there")
            self._check_state()
        self._check_covered(cursor, records, gaps, page)

    def _read(self, cursor: int) -> tuple[dict[int, Any], list[tuple[int, int]], Any]:
        records: dict[int, Any] = {}
        gaps = []
        while True:
            page = self._call(
                "POST", "/diff", {"from_seq": cursor, "limit": 1000, "include_tags": True}
            )
            if (stone := page["tombstone"]) is not None:
                if stone["reason"] not in LOSSES or stone["gap_from"] != cursor + 1:
                    raise Wrong(f"from {cursor}: {stone}")
                gaps.append((stone["gap_from"], stone["gap_to"]))
            for record in page["records"]:
                if record["$seq"] <= max(records, default=cursor):
                    raise Wrong(f"seq {record['$seq']} comes after {max(records, default=cursor)}")
                records[record["$seq"]] = record
            if page["caught_up"]:
                return records, gaps, page
            if page["next_from_seq"] <= cursor:
                raise Wrong(f"the cursor stands still: {cursor}")
            cursor = page["next_from_seq"]

    def _check_floor(self, page: Any) -> None:
        if page["earliest_seq"] < self._floor:
            raise Wrong(f"earliest_seq went back from {self._floor} to {page['earliest_seq']}")
        self._floor = page["earliest_seq"]

    def _check_records(self, cursor: int, records: dict[int, Any], bounds: tuple[int, int]) -> None:
        """Everything that is read is what was written; everything that must be there is."""
        gone, _doubtful = bounds
        for seq, record in records.items():
            kept = self._model.live.get(seq)
            if kept is None:
                raise Wrong(
                    f"seq {seq} is there, though it was deleted, evicted or never acknowledged"
                )
            if (record["data"], record.get("$tag")) != (kept.data, kept.tag):
                raise Wrong(
                    f"seq {seq} is {str(record)[:200]}, it was written as {str(kept)[:200]}"
                )
            if record["$ts"] < gone:
                raise Wrong(
                    f"seq {seq} of {record['$ts']} is there, though everything before {gone} has"
                    " expired"
                )
            self._stamps[seq] = record["$ts"]
        missing = [seq for seq in self._model.after(cursor) if seq not in records]
        if self._kind == "ttl":
            self._forget_expired(missing, records, bounds)
        elif self._kind == "bytes":
            self._forget_evicted(missing, records)
        elif missing:
            raise Wrong(
                f"{len(missing)} acknowledged records are gone, the first is seq {missing[0]},"
                f" the last {missing[-1]}"
            )

    def _forget_expired(
        self, missing: list[int], records: dict[int, Any], bounds: tuple[int, int]
    ) -> None:
        """What has expired is a front, and old enough."""
        _gone, doubtful = bounds
        for seq in missing:
            if self._stamps[seq] >= doubtful or seq > min(records, default=seq):
                raise Wrong(
                    f"seq {seq} of {self._stamps[seq]} is gone, but only what is before"
                    f" {doubtful} may have expired"
                )
        for seq in missing:
            self._model.live.pop(seq, None)
            self._stamps.pop(seq, None)

    def _forget_evicted(self, missing: list[int], records: dict[int, Any]) -> None:
        if any(seq > min(records, default=0) for seq in missing):
            raise Wrong(f"a cap of bytes took {missing[-1]} and left {min(records, default=0)}")
        held = self._call("GET", "?touch=false")["bytes"]
        if held > self._cap_bytes:
            raise Wrong(f"{held} bytes are live under a cap of {self._cap_bytes}")
        # More than the largest record and its framing.
        if missing and held + 6000 * 2 < self._cap_bytes:
            raise Wrong(
                f"{held} bytes are live, a cap of {self._cap_bytes} had no need to take seq"
                f" {missing[-1]}"
            )
        for seq in missing:
            self._model.live.pop(seq, None)

    def _check_state(self) -> None:
        state = self._call("GET", "?touch=false")
        model = self._model
        expected = {
            "head_seq": model.head_seq,
            "earliest_seq": model.earliest_seq,
            "count": len(model.live),
        }
        if {name: state[name] for name in expected} != expected or (state["bytes"] == 0) != (
            not model.live
        ):
            raise Wrong(f"the state is {state}, {expected} belongs there")

    def _check_covered(
        self, cursor: int, records: dict[int, Any], gaps: list[tuple[int, int]], page: Any
    ) -> None:
        """Where nothing was deleted, each seq is read or told as lost."""
        if self._kind in ("bytes", "ttl", "recreated"):
            told = {*records, *(seq for first, last in gaps for seq in range(first, last + 1))}
            if told != {*range(cursor + 1, page["head_seq"] + 1)}:
                silent = sorted({*range(cursor + 1, page["head_seq"] + 1)} - told)
                raise Wrong(
                    f"seqs {silent[:5]}, {len(silent)} in all, are neither read nor told as lost"
                )

    def _check_ephemeral(
        self, cursor: int, records: dict[int, Any], gaps: list[tuple[int, int]], page: Any
    ) -> None:
        """Promises nothing but this: what is read was written and not deleted, seqs go up, and loss
        is told.
        """
        model = self._model
        if page["head_seq"] < model.head_seq:
            raise Wrong(f"the head went back from {model.head_seq} to {page['head_seq']}")
        for seq, record in records.items():
            kept = model.live.get(seq)
            if kept is None or (record["data"], record.get("$tag")) != (kept.data, kept.tag):
                raise Wrong(
                    f"seq {seq} is {str(record)[:200]}, it was written as {str(kept)[:200]}"
                )
        told = {seq for first, last in gaps for seq in range(first, last + 1)}
        lost = [seq for seq in model.after(cursor) if seq not in records]
        if not told.issuperset(lost):
            raise Wrong(f"seqs {sorted({*lost} - told)[:5]} are gone, and nobody tells")
        for seq in lost:
            del model.live[seq]
        model.head_seq = page["head_seq"]
