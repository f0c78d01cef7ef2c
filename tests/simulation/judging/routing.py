"""Checks of routers: completeness, order and filters of copies."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from tests.simulation.judging.base import JudgeBase
from tests.simulation.model import DONE, NEVER, Reading, RouterWrite, Topic, origin_of, reachable
from tests.support.model import matches


class RouterChecks(JudgeBase):
    """Checks the copies of routers."""

    def check_routers(self) -> None:
        """Check that copies are complete after all activity ended, and in the order of their
        source.
        """
        routers = self.model.routers
        for name, writes in routers.items():
            ends = {(one.source, one.dest) for one in writes if one.config}
            if len(ends) != 1:
                continue
            source, dest = next(iter(ends))
            into = [
                other for other, those in routers.items() if any(one.dest == dest for one in those)
            ]
            if dest in reachable(self.ways, self.ways.get(dest, ())):
                continue
            topics = self.model.topic(source), self.model.topic(dest)
            chain, copies = (self.final_reading(topic.name) for topic in topics)
            if chain and copies and not any(topic.deletes for topic in topics):
                if into == [name] and self.direct_sources(dest) == [source]:
                    self.check_copies(*topics, chain, copies)
                self.check_router(name, writes, *topics, chain, copies)

    def check_copies(
        self, source: Topic, dest: Topic, chain: list[Reading], copies: list[Reading]
    ) -> None:
        """Check that copies are in the order of the source."""
        origins = [origin_of(one) for reading in chain for one in reading.records]
        stored = [origin_of(one) for reading in copies for one in reading.records]
        once = {one for one, count in Counter(origins).items() if count == 1 and one is not None}
        once &= {one for one, count in Counter(stored).items() if count == 1}
        own = {origin_of(record) for one in dest.appends for record in one.records}
        order = {origin: at for at, origin in enumerate(origins) if origin in once - own}
        placed = [order[one] for one in stored if one in order]
        if not source.redrives and not any(topic.redrives for topic in self.model.topics.values()):
            for one, other in pairwise(placed):
                if other < one:
                    sentence = f"copies of {source.name} are in another order: {origins[one]}"
                    sentence += f" before {origins[other]}"
                    self.report("routers", dest.name, sentence, copies[0].entry, chain[0].entry)
                    break

    def check_router(
        self,
        name: str,
        writes: list[RouterWrite],
        source: Topic,
        dest: Topic,
        chain: list[Reading],
        copies: list[Reading],
    ) -> None:
        """Check that each remaining record of the source was copied, unless its copy may have been
        removed.
        """
        is_kept = all(one.fate == DONE and one.config for one in writes)
        filters = {str(one.config.get("filter")) for one in writes if one.config}
        if not is_kept or len(filters) != 1 or not writes[0].config:
            return
        ways_in = [
            other
            for other, those in self.model.routers.items()
            if any(one.dest == dest.name for one in those)
        ]
        if self.direct_sources(dest.name) == [source.name] and ways_in == [name]:
            self.check_filter(name, writes[0].config.get("filter"), source, dest)
        acked = any(one.what == "ack" for one in dest.settles)
        moves_on = dest.redrives or dest.ever("dead_letter") or acked
        is_damaged = any(one.what in ("damaged", "lost") for one in self.model.deaths)
        if moves_on or is_damaged or "reject" in dest.may("discard"):
            return
        floor = self.head_after(source, chain[0].epoch, writes[0].call.ended)
        # A dest removes its oldest records first.
        is_cut = self.is_lossy(dest) or any(one.gap for one in copies)
        match, is_first = writes[0].config.get("filter"), is_cut
        copied = {origin_of(one) for reading in copies for one in reading.records}
        ever = {one.origin for epoch in dest.epochs.values() for one in epoch.records.values()}
        for reading in chain:
            for record in reading.records:
                known = source.epochs[reading.epoch or 0].records[record["$seq"]]
                is_first = is_first and known.origin not in copied
                if record["$seq"] <= floor or known.since > self.model.quiet or is_first:
                    continue
                if known.origin in ever or not known.origin or not known.is_tag_known:
                    continue
                if matches(match, known.tag) and not any(
                    one.match is not None and one.fits(0, known.tag) for one in dest.removals
                ):
                    sentence = f"{name} has not copied record {known.seq} of {source.name}"
                    self.report("routers", dest.name, sentence, known.entry, copies[-1].entry)

    def check_filter(self, name: str, match: Any, source: Topic, dest: Topic) -> None:
        """Check that no copy is of a record that the filter excludes."""
        tags = {
            known.origin: known.tag
            for incarnation in source.epochs.values()
            for known in incarnation.records.values()
            if known.is_tag_known
        }
        own = {origin_of(record) for one in dest.appends for record in one.records}
        # a redrive of the source copies these without the router
        own |= {
            origin_of(record)
            for one in source.appends
            for record in one.records
            if (record.get("meta") or {}).get("$dead_letter_from") == dest.name
        }
        for incarnation in dest.epochs.values():
            for known in incarnation.records.values():
                if known.since == NEVER or known.origin in own or known.origin not in tags:
                    continue
                if not matches(match, tags[known.origin]):
                    sentence = f"{name} has copied {known.origin} with {tags[known.origin]!r}"
                    self.report("routers", dest.name, sentence, known.entry)

    def head_after(self, topic: Topic, epoch: int | None, moment: int) -> int:
        """Return a head that the topic had at the moment or later. Records above it were appended
        later.
        """
        seqs = [
            reading.head
            for reading in self.readings
            if reading.topic == topic.name
            and reading.epoch == epoch
            and reading.began > moment
            and not reading.is_live
        ]
        seqs += [
            append.seqs[0] - 1
            for append in topic.appends
            if append.seqs and append.call.began > moment and not append.call.answer["deduped"]
        ]
        return min(seqs, default=NEVER)
