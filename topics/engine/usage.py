"""Usage: what the topics of a shard hold, in sums, for the metrics (§8.3).

    a change, an expiry --touch--> touched --begin--> under way --step--> counted
    the end of a lease, of a delay --its time--------^

A shard may hold very many topics, so the sums are kept, with what was counted of each topic last,
and only those that may have changed are counted again. A queue also changes by time: `begin` finds
those whose time has come. A step counts a bounded number of topics. After the last one the sums are
what counting all topics gives, but for what has changed since `begin`.

Keys and records that are too old count until they are dropped.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from topics.engine.queue.timetable import NEVER
from topics.engine.topic import Topic

CLASSES: Final = {name: at for at, name in enumerate(("fsync", "disk", "memory", "ephemeral"))}
STEP_TOPICS: Final = 512  # less than a millisecond
STALE_MIN: Final = 1024  # fewer times that do not count are not swept up


class Sums(NamedTuple):
    """What all topics hold together. ``by_class``: topics, in the order of `CLASSES`."""

    by_class: tuple[int, ...]
    queues: int
    records: int
    bytes: int
    keys: int  # idempotency keys
    leases: int
    delayed: int  # jobs


Counted: TypeAlias = tuple[int, int, int, int, int, int, int]
"""What one topic holds: the index of its class, and the fields of `Sums` behind the first."""

NOTHING: Final[Counted] = (0, 0, 0, 0, 0, 0, 0)


class Usage:
    """The sums over the topics of one shard. It begins with ``topics`` counted."""

    def __init__(self, topics: Iterable[Topic], now_ms: int) -> None:
        self._by_class = [0] * len(CLASSES)
        self._totals = [0] * len(NOTHING[1:])
        self._counted: dict[int, Counted] = {}  # by topic id
        self._touched: set[Topic] = set()
        self._under_way: list[Topic] = []
        # Queues that change by time: a heap of (monotonic ms, topic id), and the entry that counts.
        self._times: list[tuple[int, int]] = []
        self._timed: dict[int, tuple[int, Topic]] = {}
        self.touch = self._touched.add  # called for each change: a topic may hold something else
        for topic in topics:
            self._count(topic, now_ms)

    @property
    def sums(self) -> Sums:
        """What was counted up to the last step."""
        return Sums(tuple(self._by_class), *self._totals)

    def begin_anew(self, topics: Iterable[Topic]) -> None:
        """Take all topics to be counted, and forget what was counted so far."""
        self._by_class, self._totals = [0] * len(CLASSES), [0] * len(NOTHING[1:])
        self._counted.clear()
        self._times.clear()
        self._timed.clear()
        self._under_way = list(topics)

    def begin(self, now_ms: int) -> None:
        """Take what was touched, and queues whose time has come, to be counted."""
        self._under_way += self._touched
        self._touched.clear()
        while self._times and self._times[0][0] <= now_ms:
            at, topic_id = heapq.heappop(self._times)
            known = self._timed.get(topic_id)
            if known is not None and known[0] == at:
                del self._timed[topic_id]
                self._under_way.append(known[1])

    def step(self, now_ms: int) -> bool:
        """Count some; whether there are more."""
        for _ in range(min(STEP_TOPICS, len(self._under_way))):
            self._count(self._under_way.pop(), now_ms)
        return bool(self._under_way)

    def _count(self, topic: Topic, now_ms: int) -> None:
        known = self._counted.get(topic.id)
        if topic.deleted:
            if known is not None:
                del self._counted[topic.id]
                self._by_class[known[0]] -= 1
                self._add(known, NOTHING)
            self._timed.pop(topic.id, None)
            return
        after = _counted(topic, now_ms)
        if after != known:
            self._counted[topic.id] = after
            if known is None or known[0] != after[0]:
                self._by_class[after[0]] += 1
                if known is not None:
                    self._by_class[known[0]] -= 1
            self._add(known or NOTHING, after)
        if topic.jobs is not None:
            self._plan(topic, topic.jobs.next_at)

    def _add(self, before: Counted, after: Counted) -> None:
        totals = self._totals
        _, queue, records, size, *rest = before
        _, queue_now, records_now, size_now, *rest_now = after
        totals[0] += queue_now - queue
        totals[1] += records_now - records
        totals[2] += size_now - size
        if rest != rest_now:  # seldom: keys, leases and delays
            for at, (old, new) in enumerate(zip(rest, rest_now, strict=True), 3):
                totals[at] += new - old

    def _plan(self, topic: Topic, next_at: int) -> None:
        """Count the queue again at ``next_at``.

        A later time than is planned already is found out when that has come, and an earlier one
        leaves the other where it is. Of those there are never many more than queues: a job may be
        delayed by a month.
        """
        planned = self._timed.get(topic.id)
        if next_at < NEVER and (planned is None or next_at < planned[0]):
            self._timed[topic.id] = next_at, topic
            heapq.heappush(self._times, (next_at, topic.id))
            if len(self._times) > 2 * len(self._timed) + STALE_MIN:
                self._times = [(at, topic_id) for topic_id, (at, _) in self._timed.items()]
                heapq.heapify(self._times)


def _counted(topic: Topic, now_ms: int) -> Counted:
    jobs, durability = topic.jobs, CLASSES[topic.committed.durability]
    if jobs is None:
        return durability, 0, topic.count, topic.bytes, len(topic.dedupe), 0, 0
    jobs.advance(now_ms)
    _, leases, _, delayed = jobs.counters(topic.count)
    return durability, 1, topic.count, topic.bytes, len(topic.dedupe), leases, delayed
