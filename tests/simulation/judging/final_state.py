"""Checks of the final reading and of restored backups: counters, moved records and redrives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain as chain_iterables

from tests.simulation.judging.base import JudgeBase
from tests.simulation.model import (
    DONE,
    NEVER,
    Known,
    Origin,
    Reading,
    Topic,
    fate_of,
    origin_of,
    reachable,
    route_of,
)
from tests.simulation.restored import RESTORED


class FinalStateChecks(JudgeBase):
    """Checks the state after all activity ended, and restored backups."""

    def check_final(self) -> None:
        """Check that after all activity ended, counters are exact and moved records are at their
        target.
        """
        for topic in self.model.topics.values():
            chain = self.final_reading(topic.name)
            if not chain or chain[0].epoch is None:
                continue
            seqs = [record["$seq"] for reading in chain for record in reading.records]
            self.check_counters(topic, chain, seqs)
            self.check_moved(topic, chain, set(seqs), lambda origin: len(self.copies[origin]) > 1)

    @cached_property
    def copies(self) -> dict[Origin, list[Known]]:
        """Return all records that were returned or acknowledged, by their origin."""
        found: dict[Origin, list[Known]] = defaultdict(list)
        for topic in self.model.topics.values():
            for incarnation in topic.epochs.values():
                for known in incarnation.records.values():
                    if known.origin and known.since < NEVER:
                        found[known.origin].append(known)
        return found

    def check_backups(self) -> None:
        """Check that a restored backup has every record acknowledged before its request.

        It has no record in two topics, because it was cut while no move was in flight.
        """
        backups: dict[int, dict[str, list[Reading]]] = defaultdict(lambda: defaultdict(list))
        for reading in self.readings:
            if reading.client == RESTORED:
                backups[reading.began][reading.topic].append(reading)
        for chains in backups.values():
            readings = [*chain_iterables(*chains.values())]
            self.check_redriven(readings, readings[0].ended)
            restored = {origin_of(record) for one in readings for record in one.records}
            for name, chain in chains.items():
                seqs = {record["$seq"] for reading in chain for record in reading.records}

                def is_found(origin: Origin, last: int = chain[-1].ended) -> bool:
                    may_be_removed = any(one.removable_from < last for one in self.copies[origin])
                    return origin in restored or may_be_removed  # noqa: B023

                targets = reachable(self.ways, [name])
                if not any(
                    "ephemeral" in self.model.topic(one).may("durability") for one in targets
                ):
                    self.check_moved(self.model.topic(name), chain, seqs, is_found)

    def check_counters(self, topic: Topic, chain: list[Reading], seqs: list[int]) -> None:
        if topic.ever("ttl_ms"):
            return
        states = [one for one in topic.states if one.client == "final"]
        states = [one for one in states if one.began > self.model.quiet]
        answers = [(one.began, one.answer) for one in states]
        for call in self.model.calls:
            if call.client == "final" and route_of(call).kind == "GET topics" and call.answer:
                listed = call.answer.get("topics", ()) if fate_of(call) == DONE else ()
                answers += [(call.began, one) for one in listed if one["topic"] == topic.name]
        for entry, answer in answers:
            if entry < self.model.quiet or answer.get("epoch") != chain[0].epoch:
                continue
            expected = {
                "head_seq": chain[-1].head,
                "count": len(seqs),
                "earliest_seq": seqs[0] if seqs else chain[-1].head + 1,
            }
            for name, value in expected.items():
                if answer[name] != value:
                    sentence = f"{name} is {answer[name]}, but a read returns {value}"
                    self.report("counters", topic.name, sentence, entry, chain[0].entry)
            queue = answer.get("queue")
            if queue is not None:
                jobs = queue["ready"] + queue["in_flight"] + queue.get("delayed", 0)
                is_less = jobs < len(seqs) and not any(one.what == "nack" for one in topic.settles)
                if (jobs > len(seqs) or is_less) and not topic.ever("max_deliveries"):
                    sentence = f"{queue} differ from its {len(seqs)} jobs"
                    self.report("counters", topic.name, sentence, entry, chain[0].entry)

    def check_moved(
        self,
        topic: Topic,
        chain: list[Reading],
        seqs: set[int],
        is_found: Callable[[Origin], bool],
    ) -> None:
        """Check that records that only a move can have removed are in a target of moves."""
        epoch = chain[0].epoch
        assert epoch is not None
        targets = reachable(self.ways, [topic.name]) - {topic.name}
        if topic.ever("ttl_ms"):
            return
        incarnation, last = topic.epochs[epoch], chain[-1].ended
        gaps = [one.gap for one in chain if one.gap is not None]
        for known in incarnation.records.values():
            if known.acked >= chain[0].began or known.seq in seqs or not known.origin:
                continue
            if known.removable_from < last or any(
                gap["gap_from"] <= known.seq <= gap["gap_to"] for gap in gaps
            ):
                continue
            moved = self.moved_from(topic, incarnation, known.seq, known)
            if (
                moved < last
                and not is_found(known.origin)
                and not any(self.is_lossy(self.model.topic(name), moved) for name in targets)
            ):
                sentence = f"job {known.seq} is neither in its queue nor in {sorted(targets)}"
                self.report("queues", topic.name, sentence, known.entry, chain[0].entry)

    def check_redriven(self, readings: Sequence[Reading], last: int = NEVER) -> None:
        """Check that no record is in two of the topics that were read by ``last``.

        This holds for any skipped records and any number of concurrent redrives, unless a failure
        occurred during one of them. Topics that copies of routers may reach are ignored.
        """
        dests = {one.dest for those in self.model.routers.values() for one in those if one.config}
        copied = reachable(self.ways, dests)
        positions: dict[Origin, list[Known]] = defaultdict(list)
        names: dict[Origin, set[str]] = defaultdict(set)
        for reading in readings:
            for record in reading.records if reading.topic not in copied else ():
                origin = origin_of(record)
                if origin is not None and reading.epoch is not None:
                    incarnation = self.incarnation(reading.topic, reading.epoch)
                    positions[origin].append(incarnation.records[record["$seq"]])
                    names[origin].add(reading.topic)
        for origin, knowns in positions.items():
            appends = self.model.appends.get(origin[:2], [])
            if len(knowns) < 2 or len(appends) != 1 or appends[0].fate != DONE:
                continue
            if self.is_moved_once(appends[0].topic, names[origin], last):
                sentence = f"{origin} is in {sorted(names[origin])}, at"
                sentence += f" {[known.seq for known in knowns]}"
                promise = "redrives" if last == NEVER else "backups"
                self.report(promise, "", sentence, *(known.entry for known in knowns))

    def is_moved_once(self, name: str, targets: set[str], last: int) -> bool:
        """Return whether each record of the topic can be in only one of ``targets``.

        All topics on the ways to ``targets`` matter. Redrives that began after ``last`` do not.
        """
        ways = {
            one for one in reachable(self.ways, {name}) if targets & reachable(self.ways, {one})
        }
        for topic in [topic for topic in self.model.topics.values() if topic.name in ways]:
            settings = topic.settings["max_deliveries"], topic.settings["dead_letter"]
            if topic.deletes or len(topic.epochs) > 1 or self.may_lose_copies(topic, 0, last):
                return False
            if any(len(one.writes) > 2 for one in settings):
                return False  # jobs that are being moved may be claimable again
            redrives = [one for one in topic.redrives if one.call.began < last]
            if any(one.fate != DONE or self.may_fail(one.call) for one in redrives):
                return False
        return True
