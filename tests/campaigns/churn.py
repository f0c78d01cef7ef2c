"""A kill -9 campaign over everything that takes records away: deletes, caps, TTL and topics made
again, with small log files.

Each owner has one topic to itself and knows after every step what the topic must look like. It asks
after each outage, and now and then; whatever was not acknowledged is repeated. Runs as a program:
``python -m tests.campaigns.churn --kills 50 --seed 7``.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.campaigns.clients import Actor, Address, end
from tests.campaigns.killer import BACK_S, Killer, Summary, program
from tests.support.model import Kept, TopicModel
from tests.support.server import Server

SHARDS = 2
WAL_FILE_BYTES = 256 << 10  # a log file is full after a second or so
LOSSES = ("cap", "ttl", "mixed")
TAGS = ("a", "a:1", "a:2", "b", "b:1", None)
GLOBS = ("a*", "b:*", "*")
MATCHES = ("a", "b:1", ["tag", "Eq", "a:1"], *(["tag", "Glob", glob] for glob in GLOBS))
# "bulk": deletes that take several slices.
KINDS = ("deletes", "bulk", "caps", "bytes", "ttl", "recreated", "everything")
CAP_BYTES = 60_000
SLACK_BYTES = 6000 * 2  # more than the largest record and its framing
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


class Read(NamedTuple):
    """A topic from a cursor to its head."""

    cursor: int
    records: dict[int, Any]
    gaps: list[tuple[int, int]]
    page: Any  # the last one

    @property
    def told(self) -> set[int]:
        """Seqs that are told as lost."""
        return {seq for first, last in self.gaps for seq in range(first, last + 1)}


class Owner(Actor):
    """Works on one topic of one ``kind``."""

    def __init__(self, kind: str, durability: str, address: Address, seed: int) -> None:
        topic = f"{kind}.{durability}"
        super().__init__(topic, address, random.Random(f"{seed}/{topic}"))
        self._kind, self._durability, self._path = kind, durability, f"/v0/topics/{topic}"
        # §0.10: seqs of an ``ephemeral`` topic are not reused after a restart; they may leave a
        # hole.
        self._may_skip = durability == "ephemeral"
        self._lives = self._written = 0
        self._refusals = 0  # that it has checked the topic after
        self._begin()

    def _begin(self) -> None:
        self._model, self._age = TopicModel(), Age()
        self._stamps: dict[int, int] = {}  # by seq: when sent, and once it was read its `$ts`
        self._floor = 1

    # Acting

    def _call(self, method: str, tail: str, body: Any = None) -> Any:
        return self.line.insist(method, f"{self._path}{tail}", body)

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
        step, kind = self.dice.random(), self._kind
        if kind == "bulk" and step > 0.6:
            self._take_away()
        elif step < 0.78:
            self._append()
        elif step < 0.9 and kind in ("deletes", "caps", "everything"):
            self._take_away()
        elif step < 0.96 and kind in ("caps", "everything"):
            cap = self.dice.choice((0, 20, 100, 300))
            self._call("PUT", "", {"cap_records": cap})
            self._model.set_cap(cap)
        elif step < 0.96 and kind == "ttl":
            sent, ttl_ms = now_ms(), self.dice.choice((0, SHORT_TTL_MS, LONG_TTL_MS))
            self._call("PUT", "", {"ttl_ms": ttl_ms})
            self._age.change(ttl_ms, sent, now_ms())
        elif step > 0.99 and kind in ("recreated", "everything"):
            self._make_again()

    def _make(self) -> None:
        self._lives += 1
        self._call("PUT", "", {"durability": self._durability})
        if self._kind == "bytes":
            self._call("PUT", "", {"cap_bytes": CAP_BYTES})

    def _make_again(self) -> None:
        old = self._call("GET", "?touch=false")
        self._call("DELETE", "")
        self._begin()
        self._make()
        new = self._call("GET", "?touch=false")
        assert new["epoch"] != old["epoch"], f"made again it is {new}, before it was {old}"
        assert new["head_seq"] == 0, f"made again it is {new}"
        asked = {"from_seq": old["head_seq"], "epoch": old["epoch"]}
        stone = self._call("POST", "/diff", asked)["tombstone"] or {}
        told = stone.get("reason"), stone.get("gap_from"), stone.get("gap_to")
        assert told == ("recreated", 1, 0), f"an old cursor is told {stone}"

    def _append(self) -> None:
        self._written += 1
        is_bulk, model = self._kind == "bulk", self._model
        records = []
        for number in range(self.dice.choice((1, 3000, 8000) if is_bulk else (1, 1, 2, 5, 30))):
            padding = "x" * (0 if is_bulk else self.dice.choice((0, 50, 800, 4000)))
            data = [self._lives, self._written, number, padding]
            records.append(Kept(data, self.dice.choice(TAGS)))
        sent = [{"data": kept.data} | ({"tag": kept.tag} if kept.tag else {}) for kept in records]
        asked = {"records": sent, "idempotency_key": f"{self._written}", "create": False}
        sent_ms = now_ms()
        body = self._call("POST", "", asked)
        first, seqs = body["first_seq"], body["seqs"]
        assert seqs == [*range(first, first + len(records))], f"the seqs of one write are {seqs}"
        follows = first == model.head_seq + 1 or (self._may_skip and first > model.head_seq)
        assert follows, f"a write after seq {model.head_seq} begins at {first}"
        model.append(records, first)
        self._stamps |= dict.fromkeys(seqs, sent_ms)
        self.counts["records"] += len(records)

    def _take_away(self) -> None:
        body: dict[str, Any] = {}
        if self.dice.random() < 0.7:
            body["match"] = self.dice.choice(MATCHES)
        if not body or self.dice.random() < 0.5:
            head, back = self._model.head_seq, 8000 if self._kind == "bulk" else 200
            body["before_seq"] = self.dice.randint(max(0, head - back), head + 5)
        refusals = self.line.refusals
        deleted = self._call("POST", "/delete", body)["deleted"]
        count = self._model.delete(**body)
        self.counts["deleted"] += count
        # Asked a second time, the first may have done it: a delete has no key.
        is_sure = refusals == self.line.refusals and not self._may_skip
        assert deleted == count or not is_sure, f"a delete {body} took {deleted} of {count}"

    # Checking

    def check(self) -> None:
        """Read the whole topic and compare."""
        self.counts["checks"] += 1
        model, sent = self._model, now_ms()
        read = self._read(self.dice.choice((0, 0, self.dice.randint(0, model.head_seq))))
        answered, floor = now_ms(), read.page["earliest_seq"]
        assert floor >= self._floor, f"earliest_seq went back from {self._floor} to {floor}"
        self._floor = floor
        if self._may_skip:
            self._check_ephemeral(read)
            return
        head = read.page["head_seq"]
        assert head == model.head_seq, f"the head is {head}, {model.head_seq} is acknowledged"
        self._check_records(read, *self._age.bounds(sent, answered))
        if self._kind in ("bytes", "ttl", "recreated"):  # nothing was deleted
            silent = sorted({*range(read.cursor + 1, head + 1)} ^ {*read.records, *read.told})
            assert not silent, f"seqs {silent[:5]} are neither read nor told as lost, or both"
        if self._kind in ("deletes", "bulk", "caps", "recreated", "everything"):
            gap = model.gap(read.cursor)
            expected = [] if gap is None else [gap]
            assert read.gaps == expected, f"from {read.cursor} {read.gaps} for {expected} are told"
            self._check_state()

    def _read(self, start: int) -> Read:
        cursor, records, gaps = start, dict[int, Any](), []
        while True:
            asked = {"from_seq": cursor, "limit": 1000, "include_tags": True}
            page = self._call("POST", "/diff", asked)
            if (stone := page["tombstone"]) is not None:
                assert stone["reason"] in LOSSES, stone
                assert stone["gap_from"] == cursor + 1, f"from {cursor}: {stone}"
                gaps.append((stone["gap_from"], stone["gap_to"]))
            for record in page["records"]:
                last = next(reversed(records), start)
                assert record["$seq"] > max(last, cursor), f"{record['$seq']} comes after {last}"
                records[record["$seq"]] = record
            if page["caught_up"]:
                return Read(start, records, gaps, page)
            assert page["next_from_seq"] > cursor, f"the cursor stands still: {cursor}"
            cursor = page["next_from_seq"]

    def _check_records(self, read: Read, gone: int, doubtful: int) -> None:
        """Everything that is read is what was written; everything that must be there is."""
        model, stamps, first = self._model, self._stamps, min(read.records, default=0)
        for seq, record in read.records.items():
            self._check_record(seq, record)
            ts = stamps[seq] = record["$ts"]
            assert ts >= gone, f"seq {seq} of {ts} is there, what is before {gone} has expired"
        missing = [seq for seq in model.after(read.cursor) if seq not in read.records]
        if not missing:
            return
        # What a cap of bytes or the age takes is a front; the cap leaves something.
        is_front = missing[-1] < first if first else self._kind == "ttl"
        assert is_front, f"{missing[-1]} is gone, and {first or 'nothing'} is there"
        if self._kind == "ttl":
            early = [seq for seq in missing if stamps[seq] >= doubtful]
            assert not early, f"{early} are gone, only what is before {doubtful} may have expired"
        elif self._kind == "bytes":
            held = self._call("GET", "?touch=false")["bytes"]
            assert held <= CAP_BYTES, f"{held} bytes are live"
            assert held + SLACK_BYTES >= CAP_BYTES, f"{held} bytes are live, {missing[-1]} is gone"
        else:
            raise AssertionError(f"acknowledged records are gone: {missing}")
        for seq in missing:
            del model.live[seq]

    def _check_record(self, seq: int, record: Any) -> None:
        kept = self._model.live.get(seq)
        assert kept is not None, f"seq {seq} is there: deleted, evicted or never acknowledged"
        there = record["data"], record.get("$tag")
        assert there == kept, f"seq {seq} is {str(record)[:200]}, it was {str(kept)[:200]}"

    def _check_state(self) -> None:
        state, model = self._call("GET", "?touch=false"), self._model
        told = state["head_seq"], state["earliest_seq"], state["count"], state["bytes"] > 0
        count = len(model.live)
        expected = model.head_seq, model.earliest_seq, count, count > 0
        assert told == expected, f"the state is {state}, {expected} belongs there"

    def _check_ephemeral(self, read: Read) -> None:
        """Promises nothing but this: what is read was written and not deleted, seqs go up, and loss
        is told.
        """
        model, head = self._model, read.page["head_seq"]
        assert head >= model.head_seq, f"the head went back from {model.head_seq} to {head}"
        for seq, record in read.records.items():
            self._check_record(seq, record)
        lost = [seq for seq in model.after(read.cursor) if seq not in read.records]
        silent = sorted({*lost} - read.told)
        assert not silent, f"seqs {silent[:5]} are gone, and nobody tells"
        for seq in lost:
            del model.live[seq]
        model.head_seq = head


def campaign(data_dir: Path, *, seed: int, kills: int, kinds: str = ",".join(KINDS)) -> Summary:
    """Owners of every kind work while processes are killed; at the end everything is checked after
    a clean restart as well.
    """
    summary, dice = Summary(seed), random.Random(seed)
    with Server(data_dir, shards=SHARDS, wal_file_bytes=WAL_FILE_BYTES) as server:
        killer = Killer(server, SHARDS, dice)
        owned = [(kind, each) for kind in kinds.split(",") for each in ("fsync", "disk")]
        if "deletes" in kinds.split(","):
            owned.append(("deletes", "ephemeral"))
        owners = [Owner(kind, each, lambda: server.address, seed) for kind, each in owned]
        for owner in owners:
            owner.start()
        try:
            for _ in range(kills):
                time.sleep(dice.uniform(0.1, 1.5))  # the moment is the point
                killer.kill()
            time.sleep(0.5)
        finally:
            end(owners)
            summary.killed = str(killer)
            summary.counts["log files"] = len([*data_dir.glob("wal/*/*.wal")])
        server.wait_ready(BACK_S)
        for times in (1, 3):
            for owner in owners:
                for _ in range(times) if not owner.problems else ():
                    owner.attempt(owner.check)
            if times == 1:
                server.restart("stop")
    for owner in owners:
        owner.line.close()
        summary.counts += owner.counts
        summary.problems += owner.problems
    return summary


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, kills=50, kinds=",".join(KINDS)))
