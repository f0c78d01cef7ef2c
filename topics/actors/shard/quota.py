"""Quotas: a shard's part of the caps of the whole server, topics and bytes (§11, decision 0029).

What the shard has found at its start is reported before anything is decided. From then on the
engine takes and gives back (`topics.engine.quota`). Records that are too old leave their topic when
somebody asks for it; when bytes are scarce, topics with a TTL are looked at without being asked
for, so that nobody is refused for the sake of what has expired.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import length_hint
from typing import Final

from topics.actors.link.shard_ledger import ShardLedger
from topics.actors.shard.context import ShardContext
from topics.actors.shard.service import Service
from topics.engine.quota import ByteQuota, SharedCap
from topics.engine.topic import Topic

SWEEP_S: Final = 0.2
SWEEP_TOPICS: Final = 200  # with a TTL, of one go
SWEEP_LOOKS: Final = 4096  # topics of one go, with or without: some milliseconds


class Quotas(Service):
    """Attaches the caps that are set to the engine of a shard."""

    def __init__(self, context: ShardContext, ledger: ShardLedger) -> None:
        self._context = context
        self._topics_left: Iterator[Topic] = iter(())
        limits, topic_cap, self._bytes = context.limits, None, None
        if limits.topics:
            topic_cap = SharedCap(
                "max_topics",
                f"there are {limits.topics} topics",
                limits.topics,
                ledger.topics,
                ledger.replayed,
            )
        if limits.total_bytes:
            byte_cap = SharedCap(
                "max_total_bytes",
                f"the records of all topics may have {limits.total_bytes} bytes",
                limits.total_bytes,
                ledger.total_bytes,
                ledger.replayed,
            )
            self._bytes = ByteQuota(byte_cap)
        ledger.report(*context.engine.count_held())
        context.engine.limit(topic_cap, self._bytes)

    async def run(self) -> None:
        """Look for what has expired, whenever bytes are scarce."""
        if self._bytes is not None:
            self._context.deadlines.call_every(SWEEP_S, self.sweep)

    def sweep(self) -> None:
        """Look at the next topics with a TTL, if bytes are scarce. Only inside of a turn."""
        if self._bytes is None or not self._bytes.is_scarce:
            self._topics_left = iter(())
            return
        looks = islice(self._topics_left, SWEEP_LOOKS)
        perishable = (topic for topic in looks if topic.is_perishable and not topic.deleted)
        for topic in islice(perishable, SWEEP_TOPICS):
            self._context.freshen(topic)
        if not length_hint(self._topics_left):
            self._topics_left = iter([*self._context.engine.topics.values()])
