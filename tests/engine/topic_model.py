"""A model of a topic: a list of records. The effects of log frames are also a list, so a restart
applies them again in a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from topics.formats.api.diff_body import TagMatch
from topics.formats.api.topic_config import TopicConfig

# The reason that readers see for each cause.
REASONS = {"cap": "cap", "ttl": "ttl", "loss": "mixed", "trim": "source_trim"}


@dataclass
class Record:
    seq: int
    ts: int
    shown: dict[str, Any]  # As a reader receives it with all options
    size: int
    logged: bool = True
    live: bool = True

    @property
    def tag(self) -> str | None:
        return self.shown.get("$tag")


@dataclass
class Expected:
    """The expected page."""

    records: list[dict[str, Any]]
    next_from_seq: int
    scanned: int
    tombstone: tuple[int, int, str] | None


@dataclass
class TopicModel:
    """One incarnation of a topic in its committed state."""

    name: str
    config: TopicConfig
    epoch: int = 0
    head: int = 0
    records: list[Record] = field(default_factory=list)
    floors: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 1))
    losses: list[tuple[int, int]] = field(default_factory=list)
    trimmed: list[tuple[int, int]] = field(default_factory=list)

    # State

    @property
    def live(self) -> list[Record]:
        return [record for record in self.records if record.live]

    @property
    def start(self) -> int:
        live = self.live
        return live[0].seq if live else self.head + 1

    @property
    def count(self) -> int:
        return len(self.live)

    @property
    def bytes(self) -> int:
        return sum(record.size for record in self.live)

    def settle(self) -> None:
        """Convert losses below the first live record to floors."""
        start = self.start
        for first, last in self.losses:
            if first < start:
                self.floors["loss"] = max(self.floors["loss"], last + 1)
        self.losses = [lost for lost in self.losses if lost[0] >= start]
        for first, last in self.trimmed:
            if first < start:
                self.floors["trim"] = max(self.floors["trim"], last + 1)
        self.trimmed = [skipped for skipped in self.trimmed if skipped[0] >= start]

    # Changes

    def append(self, records: list[Record]) -> None:
        self.records += records
        self.head = records[-1].seq
        self.apply_caps()

    def apply_caps(self) -> None:
        live = self.live
        count, size = len(live), sum(record.size for record in live)
        for record in live:
            over_count = self.config.cap_records and count > self.config.cap_records
            over_bytes = self.config.cap_bytes and size > self.config.cap_bytes
            if not over_count and not over_bytes:
                break
            record.live = False
            self.floors["cap"] = record.seq + 1
            count, size = count - 1, size - record.size
        self.settle()

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.apply_caps()

    def expire(self, now_ts: int) -> None:
        for record in self.live:
            if self.config.ttl_ms and now_ts - record.ts > self.config.ttl_ms:
                record.live = False
                self.floors["ttl"] = record.seq + 1
        self.settle()

    def matching(self, bound: int, match: TagMatch | None) -> set[int]:
        """Return the seqs that a delete removes."""
        return {
            record.seq
            for record in self.live
            if record.seq < bound and (match is None or _matches(match, record.tag))
        }

    def delete(self, seqs: set[int]) -> int:
        removed = [record for record in self.live if record.seq in seqs]
        for record in removed:
            record.live = False
        self.settle()
        return len(removed)

    def cut(self, start: int) -> None:
        """Delete all records below ``start``, as a replayed frame specifies."""
        for record in self.records:
            record.live &= record.seq >= start
        self.settle()

    def lose(self, first: int, last: int) -> None:
        if self.losses and self.losses[-1][1] + 1 == first:
            first, _ = self.losses.pop()
        self.losses.append((first, last))
        self.head = last

    def trim(self, first: int, last: int) -> None:
        """Skip seqs."""
        self.trimmed = joined([*self.trimmed, (first, last)])
        self.head = last
        self.settle()

    def trim_again(self, first: int, last: int) -> None:
        """Skip seqs during a replay. Missing records below them were in memory and are lost."""
        if first > self.head + 1:
            self.lose(self.head + 1, first - 1)
        self.trim(first, last)

    @property
    def losses_at_restart(self) -> list[tuple[int, int]]:
        """Return the ranges that are lost after a restart: losses, and records that only memory
        holds.

        Ranges below the first live record are omitted.
        """
        start = self.start
        spans = [
            *self.losses,
            *(
                (record.seq, record.seq)
                for record in self.records
                if not record.logged and record.seq >= start
            ),
        ]
        return joined(spans)

    # Reads

    def read(
        self,
        from_seq: int,
        limit: int,
        nodes: set[str],
        recreated: bool,
        flags: tuple[bool, bool, bool],
        head: int,
        until: int,
    ) -> Expected:
        """Return the page of a read.

        ``flags``: tags, meta, data. The reader must not see anything after ``head``. It requests
        nothing after ``until``, except for what follows a gap that crosses it.
        """
        tombstone = None
        head = min(head, self.head)
        last = min(head, until)
        if recreated:
            tombstone, from_seq = (1, head, "recreated"), 0
        elif from_seq < last and (
            met := [cause for cause, floor in self.floors.items() if from_seq + 1 < floor]
        ):
            reason = REASONS[met[0]] if len(met) == 1 else "mixed"
            if self.start > last:
                last = head
            tombstone = (from_seq + 1, min(self.start - 1, last), reason)
        found: list[dict[str, Any]] = []
        scanned, at = 0, max(from_seq + 1, self.start)
        live = {record.seq: record for record in self.live}
        while at <= last:
            spans = [*self.losses, *self.trimmed]
            lost = next(((first, last) for first, last in spans if first <= at <= last), None)
            if lost is not None:
                if tombstone or found:
                    break
                if lost[1] > last:
                    last = head
                reason = "mixed" if lost in self.losses else "source_trim"
                is_exact = scanned or reason == "source_trim"
                gap_from = max(lost[0], from_seq + 1) if is_exact else from_seq + 1
                tombstone = (gap_from, min(lost[1], last), reason)
                at = lost[1] + 1
                continue
            record = live.get(at)
            if record is not None:
                if len(found) == limit:
                    break
                scanned += 1
                if record.shown.get("$node") not in nodes or not self.config.dedupe_node:
                    found.append(_cut(record.shown, *flags))
            at += 1
        return Expected(
            found,
            min(at - 1, last) if from_seq < last else min(from_seq, self.head),
            scanned,
            tombstone,
        )

    def copy(self) -> TopicModel:
        return replace(
            self,
            records=[replace(record) for record in self.records],
            floors=dict(self.floors),
            losses=list(self.losses),
            trimmed=list(self.trimmed),
        )


def joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same seqs as the fewest ranges."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and found[-1][1] + 1 >= first:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def _matches(match: TagMatch, tag: str | None) -> bool:
    if tag is None:
        return False
    return tag == match.text if match.op == "Eq" else tag.startswith(match.text)


def _cut(shown: dict[str, Any], tags: bool, meta: bool, data: bool) -> dict[str, Any]:
    left_out = {
        name
        for name, kept in {"$tag": tags, "meta": meta and data, "data": data}.items()
        if not kept
    }
    return {name: value for name, value in shown.items() if name not in left_out}
