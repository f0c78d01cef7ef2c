"""Checks that records are stored once: appends, copies, idempotency keys and epochs."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from tests.simulation.history import Call
from tests.simulation.judging.base import TICK_S, JudgeBase
from tests.simulation.model import (
    DONE,
    NEVER,
    REFUSED,
    Append,
    Incarnation,
    Known,
    Origin,
    Topic,
    fate_of,
    reachable,
)


class DuplicateChecks(JudgeBase):
    """Checks appends, keys, copies and epochs."""

    def check_duplicates(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that no record of an append is stored more often than permitted."""
        found: dict[Origin, list[Known]] = defaultdict(list)
        for known in incarnation.records.values():
            if known.origin is not None and known.since < NEVER:
                found[known.origin].append(known)
        for origin, knowns in found.items():
            count_max = self.count_max(topic.name, origin, ()) if len(knowns) > 1 else 1
            if len(knowns) > count_max:
                seqs = [one.seq for one in knowns]
                sentence = (
                    f"{origin} is stored at {seqs}, but at most {int(count_max)} is permitted"
                )
                self.report("once", topic.name, sentence, *(one.entry for one in knowns))
        if self.may_be_moved_back(topic) or topic.name in reachable(
            self.ways, self.ways.get(topic.name, ())
        ):
            return  # copies return with their old stamps
        stamps: dict[str, Known] = {}
        for known in incarnation.records.values():
            stamp = (known.record.get("meta") or {}).get("_topics_router")
            if not isinstance(stamp, dict):
                continue
            router = self.model.routers.get(stamp["key"].rsplit(":", 3)[0], ())
            if all(one.dest != topic.name for one in router):
                continue  # a copy of a copy
            other = stamps.setdefault(stamp["key"], known)
            if other is not known and not self.may_lose_copies(topic):
                sentence = f"{stamp['key']} is stored at {other.seq} and {known.seq}"
                self.report("once", topic.name, sentence, other.entry, known.entry)

    def count_max(self, name: str, origin: Origin, path: tuple[str, ...]) -> float:
        """Return how often the record may be stored in the topic over its lifetime."""
        topic = self.model.topics.get(name)
        if topic is None:
            return 0
        if name in path or len(topic.epochs) > 1 or self.model.topic(name).deletes:
            return NEVER
        count: float = self.append_count(topic, origin)
        for writes in self.model.routers.values():
            for source in {one.source for one in writes if one.dest == name}:
                is_made_again = any(one.config is None for one in writes)
                if is_made_again or self.may_lose_copies(topic):
                    return NEVER
                count += self.count_max(source, origin, (*path, name))
        for other in self.model.topics.values():
            if name in other.may("dead_letter"):
                count += (
                    NEVER
                    if self.may_lose_copies(topic)
                    else self.count_max(other.name, origin, (*path, name))
                )
        return NEVER if self.may_be_moved_back(topic) else count

    def append_count(self, topic: Topic, origin: Origin) -> int:
        """Return how often the append itself may have been executed."""
        appends = [
            one
            for one in self.model.appends[origin[:2]]
            if one.topic == topic.name and one.fate != REFUSED
        ]
        count = sum(one.key is None for one in appends)
        for key in {one.key for one in appends if one.key is not None}:
            calls = [one.call for one in appends if one.key == key]
            is_kept = self.is_key_kept(topic, calls[0], max(calls, key=self.model.until))
            count += 1 if is_kept else len(calls)
        return count

    def is_key_kept(self, topic: Topic, first: Call, last: Call) -> bool:
        """Return whether the idempotency key of the first call must be known to the last one."""
        known = Known(0, born=first.began, acked=first.ended, acked_at=first.ended_at)
        if fate_of(first) != DONE:
            known.acked_at = NEVER
        window_ms = min(topic.may("idempotency_window_ms", first.began, self.model.until(last)))
        age_s = self.model.at(self.model.until(last)) - first.at + self.model.jumped_s()
        return (
            age_s * 1000 < window_ms
            and not self.model.may_lose(topic, known, self.model.until(last))
            and not topic.may_be_deleted(first.began, self.model.until(last))
        )

    def may_know_key(self, topic: Topic, first: Call, last: Call) -> bool:
        """Return whether the idempotency key of the first call may still be known to the
        last one.
        """
        window_ms = max(topic.may("idempotency_window_ms", first.began, last.ended))
        age_s = last.at - self.model.at(self.model.until(first)) - self.model.jumped_s() - TICK_S
        return first.began < last.ended and age_s * 1000 < window_ms

    def check_keys(self, topic: Topic) -> None:
        """Check that a known idempotency key returns the first response again (§0.8)."""
        by_key: dict[str, list[Append]] = defaultdict(list)
        for append in topic.appends:
            if append.key is not None and append.fate != REFUSED:
                by_key[append.key].append(append)
        for key, appends in by_key.items():
            answered = [one for one in appends if one.seqs]
            for one in answered:
                if one.call.answer["deduped"] and not any(
                    other is not one and self.may_know_key(topic, other.call, one.call)
                    for other in appends
                ):
                    sentence = f"the key {key} is deduped, but was not used within its window"
                    self.report("once", topic.name, sentence, one.call.began)
            for one, other in pairwise(answered):
                last = max(one.call, other.call, key=self.model.until)
                if not self.is_key_kept(topic, appends[0].call, last):
                    continue
                if one.seqs != other.seqs:
                    sentence = f"the key {key} has the seqs {[*one.seqs]} and {[*other.seqs]}"
                    self.report("once", topic.name, sentence, one.call.began, other.call.began)
                elif one.call.ended < other.call.began and not other.call.answer["deduped"]:
                    sentence = f"the key {key} is reused but not deduped"
                    self.report("once", topic.name, sentence, one.call.began, other.call.began)

    def check_epochs(self, topic: Topic) -> None:
        """Check that a recreated topic has a new epoch and that no other topic changes its
        epoch.
        """
        damaged = [one for one in self.model.deaths if one.what in ("damaged", "lost")]
        for one, other in pairwise(topic.observed):
            first, last = min(one[0], other[0]), max(one[1], other[1])
            if one[2] != other[2] and not topic.may_be_deleted(first, last) and not damaged:
                sentence = f"the epoch is {other[2]}, it was {one[2]} without a delete in between"
                self.report("epochs", topic.name, sentence, one[0], other[0])
        for began, until, call in topic.deletes:
            if fate_of(call) != DONE:
                continue
            before = {epoch for _, ended, epoch in topic.observed if ended < began}
            for seen, _, epoch in topic.observed:
                if seen > until and epoch in before:
                    sentence = f"epoch {epoch} is returned again after its delete"
                    self.report("epochs", topic.name, sentence, call.began, seen)
            for sure in topic.certain:
                if sure[0] > until and not any(maker >= began for maker in topic.makers):
                    sentence = "it responds after it was deleted"
                    self.report("epochs", topic.name, sentence, call.began, sure[0])
