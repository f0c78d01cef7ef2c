"""The collected data of the judge, its reports, and the predicates that several checks share."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from tests.simulation.history import Call
from tests.simulation.model import NEVER, UNKNOWN, Incarnation, Known, Model, Reading, Topic

REPORTS_MAX = 20  # reports of one promise and topic
REDRIVE_S = 5.0  # the last window of a redrive may be in flight for this time after its response
TICK_S = 0.02


class Broken(NamedTuple):
    """A broken promise: a sentence for people, and the entries of the history that show it."""

    promise: str
    sentence: str
    entries: tuple[int, ...]


class JudgeBase:
    """Collected data, reports and predicates. The other checks inherit from it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.broken: list[Broken] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self.readings: list[Reading] = []
        self.ways = model.ways()
        self._silent: dict[tuple[str, int], int] = {}

    def report(self, promise: str, about: str, sentence: str, *entries: int) -> None:
        """Record a violation. Only the first ones of each kind are kept."""
        self._counts[promise, about] += 1
        if self._counts[promise, about] <= REPORTS_MAX:
            shown = f"{about}: {sentence}" if about else sentence
            self.broken.append(Broken(promise, shown, tuple(sorted({*entries} - {0}))))

    def incarnation(self, name: str, epoch: int) -> Incarnation:
        epochs = self.model.topic(name).epochs
        return epochs.setdefault(epoch, Incarnation(name, epoch))

    def moved_from(
        self, topic: Topic, incarnation: Incarnation, seq: int, known: Known | None = None
    ) -> int:
        """Return the first moment from which a record may have been moved to another topic."""
        tag, is_tag_known = (known.tag, known.is_tag_known) if known else (None, False)
        moments = [one.call.began for one in topic.redrives if one.fits(seq, tag, is_tag_known)]
        limits = [limit for limit in topic.may("max_deliveries") if limit]
        if limits and topic.ever("dead_letter"):
            moments.append(topic.unsure)
            began = sorted(one.began for one in incarnation.deliveries.get(seq, ()))
            moments += began[min(limits) - 1 : min(limits)]
        return min(moments, default=NEVER)

    def may_lose_copies(self, topic: Topic, first: int = 0, last: int = NEVER) -> bool:
        """Return whether the topic may have lost copies of ``first`` or later ones that were
        returned to readers, and may receive them again, by ``last``.
        """
        classes = topic.may("durability", topic.first)
        return any(
            death.what in ("damaged", "lost")
            or "ephemeral" in classes
            or (death.what == "power" and classes != {"fsync"})
            for death in self.model.deaths_of(topic, first, last)
        )

    def may_be_moved_back(self, topic: Topic) -> bool:
        """Return whether records may be moved out of a dead-letter topic."""
        return any(
            other.redrives and topic.name in self.ways.get(other.name, ())
            for other in self.model.topics.values()
        )

    @cached_property
    def failures(self) -> list[tuple[int, int]]:
        """Return the intervals in which processes were down or a disk failed."""
        found = [(death.number, death.until) for death in self.model.deaths]
        found += [(number, number) for number in self.model.front_deaths]
        faults = [one for one in self.model.server_events if one.what == "fault"]
        repaired = [one.number for one in self.model.server_events if one.what == "repaired"]
        for fault in faults:
            until = min((end for end in repaired if end > fault.number), default=NEVER)
            found.append((fault.number, until))
        return found

    def may_fail(self, call: Call) -> bool:
        """Return whether a process was down or a disk failed during the call or shortly
        after it.
        """
        late = self.model.number_at(self.model.at(self.model.until(call)) + REDRIVE_S)
        return any(begin <= late and end >= call.began for begin, end in self.failures)

    def direct_sources(self, name: str) -> list[str]:
        """Return the topics that records may come from in one step."""
        return [one for one, targets in self.ways.items() if name in targets]

    def final_reading(self, name: str) -> list[Reading]:
        """Return the last complete reading of a topic after all activity ended. Return an
        empty list if there is none.
        """
        chain: list[Reading] = []
        complete: list[Reading] = []
        for reading in self.readings:
            is_final = reading.client == "final" and reading.began > self.model.quiet
            if reading.topic != name or not is_final or reading.is_live:
                continue
            if reading.low == 0:
                chain = []
            if chain and (chain[-1].high != reading.low or chain[-1].epoch != reading.epoch):
                chain = []
            elif chain or reading.low == 0:
                chain.append(reading)
            if chain and reading.high >= reading.head:
                complete = [*chain]
        return complete

    def is_lossy(self, topic: Topic, first: int = 0) -> bool:
        """Return whether records of ``first`` or later may be lost, or leave the topic, before a
        client receives them. A client that acks a job has received it.
        """
        has_caps = any(topic.ever(name) for name in ("cap_records", "cap_bytes"))
        return (
            (has_caps and "old" in topic.may("discard", topic.first + 1))
            or topic.ever("ttl_ms")
            or any(until >= first for _, until, _ in topic.deletes)
            or any(removal.until >= first for removal in topic.removals)
            or self.may_lose_copies(topic, first)
        )

    def check_page(self, reading: Reading) -> None:
        """Check that records are in order between the cursors and that a gap precedes them."""
        gap, low, seqs = reading.gap, reading.low, [one["$seq"] for one in reading.records]
        if gap is not None:
            # seqs in between were removed without a report
            if not low < gap["gap_from"] <= gap["gap_to"]:
                sentence = f"the gap {gap['gap_from']} to {gap['gap_to']} follows cursor {low}"
                self.report("readers", reading.topic, sentence, reading.entry)
            low = gap["gap_to"]
        ends = [low, *seqs, reading.high + 1]
        if any(a >= b for a, b in pairwise(ends)) and (seqs or gap):
            sentence = f"between {low} and {reading.high} the seqs are not in order: {seqs}"
            self.report("readers", reading.topic, sentence, reading.entry)
        if reading.high > max(reading.head, low):
            sentence = f"a reader is at {reading.high}, above the head {reading.head}"
            self.report("readers", reading.topic, sentence, reading.entry)
        if reading.nodes and self.model.topic(reading.topic).may("dedupe_node") == {True}:
            own = [one["$seq"] for one in reading.records if one.get("$node") in reading.nodes]
            if own:
                sentence = f"a node receives its own records: {own}"
                self.report("readers", reading.topic, sentence, reading.entry)

    def silent_from(self, topic: Topic, seq: int, known: Known | None = None) -> int:
        """Return the first moment from which a record may be absent without a reported gap."""
        if known is None and (topic.name, seq) in self._silent:
            return self._silent[topic.name, seq]
        born = known.born if known else 0
        tag, is_tag_known = (known.tag, known.is_tag_known) if known else (None, False)
        moments = [
            removal.call.began
            for removal in topic.removals
            if removal.until >= born and removal.fits(seq, tag, is_tag_known)
        ]
        moments += [
            settle.call.began
            for settle in topic.settles
            if settle.what == "ack"
            and settle.until >= born
            and (seq in settle.done or (settle.fate == UNKNOWN and seq in settle.seqs))
        ]
        found = min(moments, default=NEVER)
        if known is None:
            self._silent[topic.name, seq] = found
        return found
