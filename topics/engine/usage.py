"""Usage: the sums over all topics of a shard for the metrics (§8.3), such as records, bytes and
leases.

    a change, an expiry --touch--> touched --begin--> pending --step--> counted
    the end of a lease or of a delay --its time-------^

A shard may have very many topics. So the sums are kept, together with the last figures of each
topic, and only topics that may have changed are counted again. A queue also changes with time, so
`begin` adds the queues whose planned time has been reached. A step counts a bounded number of
topics. After the last step, the sums are the result of counting all topics, except for changes
since `begin`.

Expired keys and expired records count until they are dropped.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from topics.engine.queue.timer_queue import NEVER
from topics.engine.topic import Topic

CLASSES: Final = {name: at for at, name in enumerate(("fsync", "disk", "memory", "ephemeral"))}
STEP_TOPICS: Final = 512  # number of topics per step, which takes less than a millisecond
STALE_MIN: Final = 1024  # a heap with fewer stale times is not rebuilt


class UsageSums(NamedTuple):
    """The sums over all topics. ``by_class`` contains the number of topics of each class, in the
    order of `CLASSES`.
    """

    by_class: tuple[int, ...]
    queues: int
    records: int
    bytes: int
    keys: int  # number of idempotency keys
    leases: int
    delayed: int  # number of delayed jobs


Counted: TypeAlias = tuple[int, int, int, int, int, int, int]
"""The figures of one topic: the index of its class, and the fields of `UsageSums` after the
first."""

NO_USAGE: Final[Counted] = (0, 0, 0, 0, 0, 0, 0)


class Usage:
    """The sums over the topics of one shard. The constructor counts all ``topics``."""

    def __init__(self, topics: Iterable[Topic], now_ms: int) -> None:
        self._by_class = [0] * len(CLASSES)
        self._totals = [0] * len(NO_USAGE[1:])
        self._counted: dict[int, Counted] = {}  # by topic id
        self._touched: set[Topic] = set()
        self._in_progress: list[Topic] = []
        # Queues that change with time. ``_times`` is a heap of (monotonic ms, topic id). ``_timed``
        # has the current time and the topic by topic id. Other entries of the heap are stale.
        self._times: list[tuple[int, int]] = []
        self._timed: dict[int, tuple[int, Topic]] = {}
        # Called for each change, because the figures of the topic may change.
        self.touch = self._touched.add
        for topic in topics:
            self._count(topic, now_ms)

    @property
    def sums(self) -> UsageSums:
        """Return the sums as of the last step."""
        return UsageSums(tuple(self._by_class), *self._totals)

    def reset(self, topics: Iterable[Topic]) -> None:
        """Discard the sums, and schedule all topics to be counted."""
        self._by_class, self._totals = [0] * len(CLASSES), [0] * len(NO_USAGE[1:])
        self._counted.clear()
        self._times.clear()
        self._timed.clear()
        self._in_progress = list(topics)

    def begin(self, now_ms: int) -> None:
        """Schedule the changed topics, and the queues whose planned time has been reached, to be
        counted.
        """
        self._in_progress += self._touched
        self._touched.clear()
        while self._times and self._times[0][0] <= now_ms:
            at, topic_id = heapq.heappop(self._times)
            known = self._timed.get(topic_id)
            if known is not None and known[0] == at:
                del self._timed[topic_id]
                self._in_progress.append(known[1])

    def step(self, now_ms: int) -> bool:
        """Count some of the scheduled topics. Return whether there are more."""
        for _ in range(min(STEP_TOPICS, len(self._in_progress))):
            self._count(self._in_progress.pop(), now_ms)
        return bool(self._in_progress)

    def _count(self, topic: Topic, now_ms: int) -> None:
        """Count one topic, and update the sums by the difference."""
        known = self._counted.get(topic.id)
        if topic.deleted:
            if known is not None:
                del self._counted[topic.id]
                self._by_class[known[0]] -= 1
                self._add(known, NO_USAGE)
            self._timed.pop(topic.id, None)
            return
        after = _counted(topic, now_ms)
        if after != known:
            self._counted[topic.id] = after
            if known is None or known[0] != after[0]:
                self._by_class[after[0]] += 1
                if known is not None:
                    self._by_class[known[0]] -= 1
            self._add(known or NO_USAGE, after)
        if topic.jobs is not None:
            self._plan(topic, topic.jobs.next_at)

    def _add(self, before: Counted, after: Counted) -> None:
        """Replace the figures of a topic in the sums."""
        totals = self._totals
        _, queue, records, size, *rest = before
        _, queue_now, records_now, size_now, *rest_now = after
        totals[0] += queue_now - queue
        totals[1] += records_now - records
        totals[2] += size_now - size
        if rest != rest_now:  # rare: keys, leases and delays
            for at, (old, new) in enumerate(zip(rest, rest_now, strict=True), 3):
                totals[at] += new - old

    def _plan(self, topic: Topic, next_at: int) -> None:
        """Schedule the queue to be counted again at ``next_at``.

        If an earlier time is already scheduled, it is kept. The later time is scheduled when the
        earlier time is reached. If a later time is scheduled, its entry becomes stale. The heap is
        rebuilt if it has many more entries than queues, because a stale entry may stay for a month,
        which is the longest delay.
        """
        planned = self._timed.get(topic.id)
        if next_at < NEVER and (planned is None or next_at < planned[0]):
            self._timed[topic.id] = next_at, topic
            heapq.heappush(self._times, (next_at, topic.id))
            if len(self._times) > 2 * len(self._timed) + STALE_MIN:
                self._times = [(at, topic_id) for topic_id, (at, _) in self._timed.items()]
                heapq.heapify(self._times)


def _counted(topic: Topic, now_ms: int) -> Counted:
    """Return the current figures of a topic."""
    jobs, durability = topic.jobs, CLASSES[topic.committed.durability]
    if jobs is None:
        return durability, 0, topic.count, topic.bytes, len(topic.dedupe), 0, 0
    jobs.advance(now_ms)
    _, leases, _, delayed = jobs.counters(topic.count)
    return durability, 1, topic.count, topic.bytes, len(topic.dedupe), leases, delayed
