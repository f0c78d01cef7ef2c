"""Judges what was seen of routers (`router_history`) against their topology: pure.

bytes       a record that was read once is the same whenever it is read again
content     a copy is what was appended, without what its router drops, with its stamp
order       copies stand in the order of the source, each once
completeness
            between two copies stands all that was appended between their originals, unless a
            tombstone was told there, of so many seqs
cursors     a page continues where its cursor stands; what it passes over was lost, and told, or
            deleted; the reason is one that the dest can have
totals      `forwarded_total` is the number of records that were forwarded
gates       a dest that rejects holds no more than its cap
restarts    the same contents and totals afterwards

An ephemeral dest loses its records in a kill and may get them again: of it, only what is there is
judged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.campaigns.router_history import Copy, History, Origin, Page, Sent
from tests.campaigns.router_topology import Dest, Topology
from topics.formats.ranges import SeqRange

SAID_MAX = 5  # problems of one kind with one dest


@dataclass(slots=True)
class Verdict:
    """What is wrong, and how much there was to judge."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Told(NamedTuple):
    """Seqs of a dest that tombstones told as lost: merged ranges."""

    firsts: list[int]
    lasts: list[int]

    def covers(self, first: int, last: int) -> bool:
        at = bisect_right(self.firsts, first) - 1
        return at >= 0 and self.lasts[at] >= last


def judge(history: History, topology: Topology) -> Verdict:
    """What is wrong with a campaign."""
    verdict = Verdict(list(history.wrong))
    verdict.problems += [f"changed: {said}" for said in history.changed[:SAID_MAX]]
    origins = {
        root: {record.origin: seq for seq, record in sent.items()}
        for root, sent in history.sent.items()
    }
    for dest in topology.dests.values():
        _Dest(history, topology, dest, origins.get(dest.root, {}), verdict).judge()
    verdict.counts["records"] = sum(map(len, history.sent.values()))
    return verdict


class _Dest:
    """The judgement of one dest."""

    def __init__(
        self,
        history: History,
        topology: Topology,
        dest: Dest,
        origins: dict[Origin, int],
        verdict: Verdict,
    ) -> None:
        self._history, self._topology, self._dest, self._verdict = history, topology, dest, verdict
        self._sent = history.sent.get(dest.root, {})
        self._by_origin = origins
        self._copies = history.copies.get(dest.name, {})
        self._pages = [page for page in history.pages if page.topic == dest.name]
        self._told = _told(self._pages)
        self._deleted = history.deleted.get(dest.name, 0)

    def judge(self) -> None:
        self._verdict.counts["copies"] += len(self._copies)
        for check in (
            self._contents,
            self._sequence if self._dest.is_kept else self._returns,
            self._cursors,
            self._totals,
            self._ends,
        ):
            problems = list(check())
            more = [f"{self._dest.name}: and {len(problems) - SAID_MAX} more of the kind"]
            self._verdict.problems += [f"{self._dest.name} {said}" for said in problems[:SAID_MAX]]
            self._verdict.problems += more if len(problems) > SAID_MAX else []

    # Contents

    def _place(self, copy: Copy) -> int | None:
        """The seq of its original. An ephemeral source may have had it twice: the stamp tells."""
        if copy.stamp is not None and self._dest.root in self._topology.lossy:
            return copy.stamp.seq if copy.origin in self._by_origin else None
        return self._by_origin.get(copy.origin)

    def _contents(self) -> Iterator[str]:
        for seq, copy in self._copies.items():
            place = self._by_origin.get(copy.origin)
            if place is None:
                yield f"{seq} is {copy.origin}, nobody appended it"
                continue
            yield from (f"{seq}: {said}" for said in self._differences(copy, self._sent[place]))

    def _differences(self, copy: Copy, sent: Sent) -> Iterator[str]:
        asked = self._dest.asked
        wanted = {
            "node": sent.node if asked.get("preserve_node", True) else None,
            "tag": sent.tag if asked.get("preserve_tag", True) else None,
            "data": sent.data,
            "meta": sent.meta,
        }
        for name, value in wanted.items():
            if (there := getattr(copy, name)) != value:
                yield f"{name} is {there}, it was {value}"
        if not self._dest.takes(sent.tag):
            yield f"the filter lets {sent.tag} pass"
        if self._dest.is_stamped != (copy.stamp is not None):
            yield f"the stamp is {copy.stamp}"
        elif copy.stamp is not None:
            yield from self._stamp_differs(copy)

    def _stamp_differs(self, copy: Copy) -> Iterator[str]:
        stamp, place = copy.stamp, self._place(copy)
        assert stamp is not None, "only stamped copies come here"
        named = stamp.router, stamp.source, stamp.seq
        if named != (self._dest.router, self._dest.feeder, place):
            yield f"the stamp is {stamp}, the original stands at {place}"

    # Order and completeness

    def _sequence(self) -> Iterator[str]:
        """From copy to copy."""
        wanted = self._wanted()
        seen: dict[int, int] = {}
        last_seq, last_place = 0, 0
        for seq in sorted(self._copies):
            place = self._place(self._copies[seq])
            if place is None:
                continue
            if place in seen:
                yield f"{place} of {self._dest.root} stands at {seen[place]} and at {seq}"
            elif place < last_place:
                yield f"{seq} is {place} of {self._dest.root}, behind {last_place}"
            else:
                yield from self._between(wanted, last_seq, seq, last_place, place)
                last_place = place
            seen[place], last_seq = seq, seq
        if self._history.ends:
            end = self._history.ends[0][self._dest.name].head_seq + 1
            behind = max(self._sent, default=0) + 1
            yield from self._between(wanted, last_seq, end, last_place, max(behind, last_place))

    def _wanted(self) -> list[int]:
        """Seqs of the records that must come over, ascending."""
        deleted = self._history.deleted.get(self._dest.root, 0)
        return sorted(
            seq
            for seq, record in self._sent.items()
            if seq > deleted and self._dest.takes(record.tag)
        )

    def _between(
        self, wanted: list[int], last_seq: int, seq: int, last_place: int, place: int
    ) -> Iterator[str]:
        """Two neighbours: the copy at ``last_seq`` of the original at ``last_place``, and the
        next.
        """
        missing = bisect_left(wanted, place) - bisect_right(wanted, last_place)
        burnt = seq - last_seq - 1
        where = f"between {last_seq} and {seq} ({last_place} and {place} of {self._dest.root})"
        if missing > 0 and not burnt:
            yield f"{where} {missing} records are missing, and nobody tells"
            return
        if not burnt:
            return
        first = max(last_seq + 1, self._deleted + 1)
        if first < seq and not self._told.covers(first, seq - 1):
            yield f"{where} {burnt} seqs are missing, and nobody tells"
        elif missing > burnt or (self._is_exact and missing != burnt):
            yield f"{where} {missing} records are missing, and {burnt} seqs"
        self._verdict.counts["seqs told as lost"] += burnt

    @property
    def _is_exact(self) -> bool:
        """Whether each seq of the dest stands for one record that was acknowledged."""
        root = self._dest.root
        is_volatile = self._topology.sources[root].get("durability") == "ephemeral"
        return not (is_volatile or self._dest.is_filtered or self._history.deleted.get(root))

    def _returns(self) -> Iterator[str]:
        """Of an ephemeral dest: it goes back in its source when a kill made it forget."""
        places = [self._place(self._copies[seq]) for seq in sorted(self._copies)]
        found = [place for place in places if place is not None]
        back = sum(after <= before for before, after in pairwise(found))
        kills = sum(self._history.kills.values())
        if back > kills:
            yield f"it goes back in its source {back} times, {kills} were killed"

    # Cursors

    def _cursors(self) -> Iterator[str]:
        seqs = sorted(self._copies)
        for page in self._pages:
            self._verdict.counts["pages"] += 1
            if page.gap is not None:
                self._verdict.counts[f"{page.gap.reason} told"] += 1
            yield from (f"{page}: {said}" for said in self._page_problems(page, seqs))

    def _page_problems(self, page: Page, seqs: list[int]) -> Iterator[str]:
        if page.next_seq < page.from_seq:
            yield "the cursor goes back"
        if page.head_seq < page.next_seq:
            yield "the head is below the cursor"
        if page.gap is not None and page.gap.reason not in self._dest.reasons:
            yield "an unexplained tombstone"
        last = page.from_seq
        for first, end in page.seqs:
            if first <= last:
                yield "records out of order"
            last = end
        if last > page.next_seq:
            yield "records behind the next cursor"
        if (alive := self._told_and_there(page, seqs)) is not None:
            yield f"it tells {alive} as lost, which stands there"
        hole = self._hole(page, seqs)
        if hole is not None:
            yield f"it passes over {hole}, which stands there"

    def _told_and_there(self, page: Page, seqs: list[int]) -> int | None:
        """A record that the page's tombstone spans, though nothing can have taken it."""
        if page.gap is None or not self._dest.is_complete:
            return None
        at = bisect_left(seqs, page.gap.first)
        return seqs[at] if at < len(seqs) and seqs[at] <= page.gap.last else None

    def _hole(self, page: Page, seqs: list[int]) -> int | None:
        """A record that the page should have had."""
        passed = [*page.seqs]
        if page.gap is not None:
            passed.append(SeqRange(page.gap.first, page.gap.last))
        start = max(page.from_seq, self._deleted)
        for first, last in [*sorted(passed), SeqRange(page.next_seq + 1, page.next_seq + 1)]:
            at = bisect_right(seqs, start)
            if at < len(seqs) and seqs[at] < first:
                return seqs[at]
            start = max(start, last)
        return None

    # Totals

    def _totals(self) -> Iterator[str]:
        dest = self._dest
        for when, totals in zip(("", " after a restart"), self._history.totals, strict=False):
            total = totals[dest.router]
            if total.lag_records:
                yield f"lags by {total.lag_records}{when}"
            elif dest.is_kept and total.forwarded not in (expected := self._forwarded()):
                yield f"forwarded_total is {total.forwarded}{when}, expected: {sorted(expected)}"

    def _forwarded(self) -> set[int]:
        """What the total must be: all that is needed is there, or all that is there was seen."""
        is_lossless = self._dest.root not in self._topology.lossy
        if is_lossless and not self._history.deleted.get(self._dest.root):
            return {len(self._wanted())}
        return {len(self._copies)}

    def _ends(self) -> Iterator[str]:
        dest = self._dest
        most = self._history.counts.get(dest.name, 0)
        cap = dest.config.get("cap_records", 0)
        if cap and most > cap:
            yield f"held {most} records, its cap is {cap}"
        if most == cap and dest.config.get("discard") == "reject":
            self._verdict.counts["full"] += 1
        if not dest.is_kept or "ttl_ms" in dest.config:
            return
        ends = [end[dest.name] for end in self._history.ends]
        for end in ends:
            there = sum(last - first + 1 for first, last in end.seqs)
            if there != end.records:
                yield f"count is {end.records}, {there} records are there"
        if any(end != ends[0] for end in ends):
            yield f"a restart makes {ends[1:]} of {ends[0]}"


def _told(pages: Iterable[Page]) -> Told:
    gaps = sorted((page.gap.first, page.gap.last) for page in pages if page.gap is not None)
    told = Told([], [])
    for first, last in gaps:
        if told.lasts and first <= told.lasts[-1] + 1:
            told.lasts[-1] = max(told.lasts[-1], last)
        else:
            told.firsts.append(first)
            told.lasts.append(last)
    return told
