"""Checks of readers: each record or a report of its loss, possible losses, heads and order."""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain as chain_iterables
from itertools import pairwise
from typing import Any

from tests.simulation.judging.base import TICK_S, JudgeBase
from tests.simulation.model import NEVER, Incarnation, Known, Reading, Topic


class ReaderChecks(JudgeBase):
    """Checks what readers receive."""

    def check_readings(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that each reader receives every record or a report of its loss, and no deleted
        record.
        """
        reported: dict[int, Reading] = {}  # lost seqs, and the reading that first reported them
        for reading in sorted(incarnation.readings, key=lambda one: one.ended):
            shown, gap = reading.seqs, reading.gap
            low = max(reading.low, gap["gap_to"]) if gap else reading.low
            before = range(reading.low + 1, gap["gap_from"] if gap else 0)
            for seq in chain_iterables(before, range(low + 1, reading.high + 1)):
                if seq not in shown and not self.may_be_absent(topic, incarnation, seq, reading):
                    self.report_absent(topic, incarnation, seq, reading)
            if gap is not None:
                self.check_gap(topic, incarnation, reading, gap)
                if gap["reason"] != "damaged":
                    for known in incarnation.between(gap["gap_from"], low):
                        reported.setdefault(known.seq, reading)
            for seq in shown:
                if seq in reported and reported[seq].ended < reading.began and not reading.is_live:
                    sentence = f"record {seq} is returned after it was reported as lost"
                    self.report("readers", topic.name, sentence, reported[seq].entry, reading.entry)
                self.check_removed(topic, incarnation.records[seq], reading)
                self.check_age(topic, incarnation.records[seq], reading)

    def may_be_absent(
        self, topic: Topic, incarnation: Incarnation, seq: int, reading: Reading
    ) -> bool:
        """Return whether a reader at this moment may receive neither the record nor a gap
        for it.
        """
        known = incarnation.records.get(seq)
        node = known.record.get("$node", "") if known else ""
        if reading.nodes and node in {"", *reading.nodes}:
            return True
        if known is not None and known.since == NEVER:
            known = None
        removable_from = known.removable_from if known else self.silent_from(topic, seq)
        if min(removable_from, self.moved_from(topic, incarnation, seq, known)) < reading.ended:
            return True
        born = known.born if known else 0
        ttl = [ms for ms in topic.may("ttl_ms", born, reading.ended) if ms]
        if not ttl:
            return False
        age_s = reading.at - (known.born_at if known else 0.0) + self.model.jumped_s()
        return bool(age_s * 1000 > min(ttl))

    def report_absent(
        self, topic: Topic, incarnation: Incarnation, seq: int, reading: Reading
    ) -> None:
        known = incarnation.records.get(seq)
        where = f"a reader of ({reading.low}, {reading.high}]"
        if known is None or known.since == NEVER:
            sentence = f"{where} is not notified of the missing record {seq}"
            self.report("seqs", topic.name, sentence, reading.entry)
            return
        is_acked = "acknowledged" if known.acked < NEVER else "shown"
        sentence = f"{where} gets no record {seq}, which was {is_acked}, and no gap"
        self.report("durability", topic.name, sentence, known.entry, reading.entry)

    def check_gap(
        self, topic: Topic, incarnation: Incarnation, reading: Reading, gap: dict[str, Any]
    ) -> None:
        """Check that each reported loss is a possible loss."""
        last = reading.ended
        caps = [cap for cap in topic.may("cap_records", 0, last) if cap]
        may_evict = (
            caps or any(topic.may("cap_bytes", 0, last)) or any(topic.may("ttl_ms", 0, last))
        )
        is_dest = any(topic.name in targets for targets in self.ways.values())
        if not may_evict and not is_dest and not [*self.model.deaths_of(topic, 0, last)]:
            sentence = f"{gap['gap_from']} to {gap['gap_to']} are reported as lost without a cause"
            self.report("durability", topic.name, sentence, reading.entry)
            return
        for known in incarnation.between(gap["gap_from"], gap["gap_to"]):
            seq = known.seq
            if known.since == NEVER or self.may_be_absent(topic, incarnation, seq, reading):
                continue
            if self.model.may_lose(topic, known, last) or self.may_be_evicted(
                topic, known, reading
            ):
                continue
            is_acked = "acknowledged" if known.acked < NEVER else "shown"
            sentence = f"record {seq}, which was {is_acked}, is reported as lost ({gap['reason']})"
            self.report("durability", topic.name, sentence, known.entry, reading.entry)

    def may_be_evicted(self, topic: Topic, known: Known, reading: Reading) -> bool:
        """Return whether cap or age may have evicted the record by then."""
        born, last = known.born, reading.ended
        if any(topic.may("cap_bytes", born, last)) or any(topic.may("ttl_ms", born, last)):
            return True  # `may_be_absent` handles ttl more exactly, and floors cover the seqs below
        caps = [cap for cap in topic.may("cap_records", born, last) if cap]
        return bool(caps) and (reading.is_live or known.seq + min(caps) <= reading.head)

    def check_removed(self, topic: Topic, known: Known, reading: Reading) -> None:
        """Check that no reader receives a record that was removed before its request."""
        if reading.is_live or known.removed >= reading.began:
            return
        if not self.model.may_undo(topic, known.remover, reading.ended):
            sentence = f"record {known.seq} is returned after it was deleted"
            self.report("deletes", topic.name, sentence, known.remover, reading.entry)

    def check_age(self, topic: Topic, known: Known, reading: Reading) -> None:
        """Check that no reader receives a record that was expired at its request."""
        ttl = topic.may("ttl_ms", known.born, reading.ended)
        if reading.is_live or 0 in ttl or known.acked == NEVER:
            return
        # The ``$ts`` may be ahead of the clock, because it continues from its value before a crash.
        walls = [one.wall - one.at for one in self.model.server_events]
        stamped_at = known.record.get("$ts", 0) / 1000 - min(walls, default=NEVER)
        born_at = max(known.acked_at, stamped_at)
        until_s = born_at + max(ttl) / 1000 + self.model.jumped_s() + TICK_S
        if self.model.at(reading.began) > until_s:
            sentence = f"record {known.seq} is returned after its age limit of {max(ttl)} ms"
            self.report("deletes", topic.name, sentence, known.entry, reading.entry)

    def check_heads(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that later requests return a head that is not lower, and that later appends get
        higher seqs.
        """
        knowns = sorted(
            (one for one in incarnation.records.values() if one.since < NEVER),
            key=lambda one: one.since,
        )
        highest: list[Known] = []
        for known in knowns:
            is_higher = not highest or known.seq > highest[-1].seq
            highest.append(known if is_higher else highest[-1])
        moments = [one.since for one in knowns]

        def expect(began: int, ended: int, seq: int, what: str, entry: int) -> None:
            index = bisect_left(moments, began)
            if not index or highest[index - 1].seq <= seq:
                return
            known = highest[index - 1]
            if not self.model.may_lose(topic, known, ended):
                sentence = f"{what} {seq} after record {known.seq} was known"
                self.report("real time", topic.name, sentence, known.entry, entry)

        for one in incarnation.readings:
            if not one.is_live:
                expect(one.began, one.ended, one.head, "a reader sees the head", one.entry)
        for call in topic.states:
            if call.answer.get("epoch") == incarnation.epoch:
                head = call.answer["head_seq"]
                expect(call.began, call.ended, head, "the state has the head", call.began)
        for append in topic.appends:
            if append.epoch == incarnation.epoch and not append.call.answer.get("deduped"):
                call = append.call
                index = bisect_left(moments, call.began)
                if index and highest[index - 1].seq >= append.seqs[0]:
                    known = highest[index - 1]
                    sentence = f"an append gets seq {append.seqs[0]}"
                    sentence += f" after record {known.seq} was known"
                    self.report("seqs", topic.name, sentence, known.entry, call.began)

    def check_order(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that ``$ts`` never decreases and that the records of a write are contiguous."""
        shown = [one for _, one in sorted(incarnation.records.items()) if "$ts" in one.record]
        for one, other in pairwise(shown):
            if other.record["$ts"] < one.record["$ts"]:
                sentence = f"$ts of record {other.seq} is lower than that of {one.seq}"
                self.report("seqs", topic.name, sentence, one.entry, other.entry)

    def check_power_loss(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that a power loss leaves a prefix of the records of class disk."""
        if any(topic.ever(name) for name in ("cap_records", "cap_bytes", "ttl_ms")):
            return
        before = 0  # records that were absent at an earlier crash may have been lost then
        for death in self.model.deaths:
            born, before = before, death.until
            if death.what != "power" or topic.may("durability", 0, death.noted) != {"disk"}:
                continue
            later = [
                one for one in incarnation.readings if one.began > death.until and not one.is_live
            ]
            shown = {record["$seq"] for one in later for record in one.records}
            known = incarnation.records
            kept = max((seq for seq in shown if known[seq].since < death.noted), default=0)
            for one in later:
                if one.gap is None or one.gap["reason"] != "mixed":
                    continue
                for lost in incarnation.between(one.gap["gap_from"], one.gap["gap_to"]):
                    if (
                        not born < lost.acked < death.noted
                        or lost.removable_from < NEVER
                        or lost.seq >= kept
                    ):
                        continue
                    if self.moved_from(topic, incarnation, lost.seq, lost) == NEVER:
                        sentence = f"a power loss removed {lost.seq} but kept {kept}"
                        self.report("durability", topic.name, sentence, death.noted, one.entry)
