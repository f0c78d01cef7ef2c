"""Expiry: removes expired records from topics that no client is accessing (§0.7).

Age limits are applied to a topic before every reply about it, but the expired records of a topic
that no client accesses would stay on the disk forever. So each topic with a TTL is in a timetable.
A bucket of the timetable contains the topics whose first records expire within SWEEP_MS:

    commit --> planned: in a bucket --the bucket ends--> swept --records remain--> planned

So an expired record may remain for up to SWEEP_MS. Its disk space is freed two checkpoints later.
If the disk is full or the cap on total bytes is almost reached, the current bucket is swept before
its end (`expire_soon`).

An iteration of the loop sweeps a bounded number of topics. Topics that are not due cost nothing:
there is no scan, and a shard that has no expiring records does not wake up.

Quotas are a shard's share of the server-wide caps on topics and bytes (§11, decision 0029). A shard
reports the usage that it finds at startup before it serves any request. After that, the engine
takes and releases quota (`topics.engine.quota`). When the cap on total bytes is almost reached,
expired records are removed immediately, so that no write is refused because of expired records.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Final

import trio

from topics.actors.link.ledger import ShardLedger
from topics.actors.shard.context import ShardContext
from topics.actors.shard.deadlines import Deadline
from topics.actors.shard.service import Service
from topics.engine import retention
from topics.engine.changes.change import Change
from topics.engine.quota import ByteQuota, SharedCap
from topics.engine.topic import Topic

SWEEP_MS: Final = 5000
SWEEP_TOPICS: Final = 100  # number of topics that one iteration sweeps, in a few milliseconds
BEGIN_TOPICS: Final = 2000  # number of topics that one iteration plans at startup
WAKE_MAX_S: Final = 60.0  # longest sleep; bounded because the wall clock may be set


class Expiry(Service):
    """Sweeps the topics of one shard."""

    def __init__(self, context: ShardContext) -> None:
        self._context, self._commits, self._engine = context, context.commits, context.engine
        # Keyed by the number of the bucket. A topic may be in several buckets, and only its bucket
        # in `_planned` is valid.
        self._buckets: dict[int, array[int]] = {}  # ids of topics
        self._order: list[int] = []  # heap of the buckets
        # At most one valid bucket for each topic, so that a busy topic is not planned again with
        # each commit.
        self._planned: dict[int, int] = {}  # the valid bucket, by topic id
        self._due: list[int] = []  # ids of topics in opened buckets
        # The next sweep, or None if no topic has records that expire.
        self._next: Deadline | None = None
        # Set by `expire_soon`. The next sweep then also opens the current bucket.
        self._is_requested = False
        self._begins: Iterator[Topic] = iter(())
        context.disk_space.on_disk_full = self.expire_soon

    def on_config(self, change: Change) -> None:
        """Plan the topic, because its new config may make records expire, or expire earlier."""
        if change.topic.committed.ttl_ms:
            self._plan(change.topic)

    def _changed(self, change: Change) -> None:
        """Plan the topic, because it may have received its first record that can expire."""
        change.topic.unfollow(self._changed)
        self._plan(change.topic)

    async def run(self) -> None:
        """Plan the topics that exist at startup."""
        self._begins = iter([*self._engine.by_id.values()])
        self._context.deadlines.call_at(-math.inf, self._begin)

    def _begin(self) -> None:
        # Plan the topics in steps, so that they do not delay the first requests after startup.
        some = [*islice(self._begins, BEGIN_TOPICS)]
        for topic in some:
            if topic.committed.ttl_ms and not topic.deleted:
                self._plan(topic)
        if some:
            self._context.deadlines.call_at(-math.inf, self._begin)

    def expire_soon(self) -> None:
        """Schedule the removal of expired records in a new iteration, because space is needed."""
        if not self._is_requested:
            self._is_requested = True
            self._context.deadlines.call_at(-math.inf, self.sweep)

    # The timetable

    def _plan(self, topic: Topic) -> None:
        due_ts = retention.next_expiry(topic, self._engine.store)
        # If no record will expire, plan the topic again at its next commit.
        if due_ts is None:
            if topic.committed.ttl_ms:
                # A config change may have emptied the topic. Later records may be due before the
                # planned bucket.
                self._planned.pop(topic.id, None)
                topic.follow(self._changed)
            return
        # Never use a past bucket, because a damaged record may be due but impossible to remove.
        # Such a bucket would be swept again immediately.
        bucket = max(due_ts, self._context.now.ts) // SWEEP_MS
        # If the topic is already planned for this bucket or an earlier one, the sweep of that
        # bucket plans it again.
        if bucket >= self._planned.get(topic.id, bucket + 1):
            return
        self._planned[topic.id] = bucket
        ids = self._buckets.get(bucket)
        if ids is None:
            ids = self._buckets[bucket] = array("Q")
            heapq.heappush(self._order, bucket)
            self._wake()
        ids.append(topic.id)

    def _wake(self) -> None:
        """Schedule a sweep at the end of the earliest bucket."""
        if self._next is not None:
            self._next.cancel()
        if not self._order:
            return
        # At the end of the bucket all of its records have expired, so one sweep removes them.
        left_ms = (self._order[0] + 1) * SWEEP_MS - self._context.now.ts
        at = trio.current_time() + min(max(left_ms / 1000, 0.0), WAKE_MAX_S)
        self._next = self._context.deadlines.call_at(at, self.sweep)

    # The sweep

    def sweep(self) -> None:
        """Remove expired records from the next topics. Call this only within an iteration."""
        # If space is needed, ``opens`` is -1, so that the current bucket also counts as ended.
        now, opens = self._context.now.ts, -1 if self._is_requested else 0
        self._is_requested = False
        # Open the buckets that have ended. If space is needed, also open the current bucket.
        while self._order and self._order[0] + 1 + opens <= now // SWEEP_MS:
            bucket = heapq.heappop(self._order)
            for topic_id in self._buckets.pop(bucket):
                if self._planned.get(topic_id) == bucket:
                    del self._planned[topic_id]
                    self._due.append(topic_id)
        # Take the topics from the end of the list, so that no other items are moved.
        for topic_id in self._due[-SWEEP_TOPICS:]:
            topic = self._engine.by_id.get(topic_id)
            if topic is not None:
                self._context.remove_expired(topic)
            else:  # the topic's deletion is pending and may be undone
                topic = next(
                    (it for it in self._commits.deleting_topics() if it.id == topic_id), None
                )
            # Plan the topic again, because records may remain that expire later.
            if topic is not None:
                self._plan(topic)
        del self._due[-SWEEP_TOPICS:]
        if self._due:
            self._context.deadlines.call_at(-math.inf, self.sweep)
        else:
            self._wake()


class Quotas(Service):
    """Attaches the configured caps to the engine of a shard."""

    def __init__(self, context: ShardContext, ledger: ShardLedger, expiry: Expiry) -> None:
        self._context, self._expiry = context, expiry
        limits, topic_cap, self._bytes = context.limits, None, None
        if limits.topics:
            topic_cap = SharedCap(
                "max_topics",
                f"the server has the maximum of {limits.topics} topics",
                limits.topics,
                ledger.topics,
                ledger.replayed,
            )
        if limits.total_bytes:
            byte_cap = SharedCap(
                "max_total_bytes",
                f"the records of all topics may have at most {limits.total_bytes} bytes",
                limits.total_bytes,
                ledger.total_bytes,
                ledger.replayed,
            )
            self._bytes = ByteQuota(byte_cap)
        # Report the usage before any cap is used. Otherwise another shard could take quota that
        # is in use.
        ledger.report(*context.engine.count_charged())
        context.engine.limit(topic_cap, self._bytes)

    async def run(self) -> None:
        """Check with each tick whether the cap on total bytes is almost reached."""
        if self._bytes is not None:
            self._context.deadlines.call_each_tick(self.sweep)

    def sweep(self) -> None:
        """Request a removal of expired records if the cap on total bytes is almost reached."""
        if self._bytes is not None and self._bytes.cap.is_nearly_full:
            self._expiry.expire_soon()
