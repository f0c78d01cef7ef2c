"""Quotas: a shard's part of the caps of the whole server, topics and bytes (§11, decision 0029).

What the shard has found at its start is reported before anything is decided. From then on the
engine takes and gives back (`topics.engine.quota`). When bytes are scarce, what is too old goes at
once (`expiry.py`), so that nobody is refused for the sake of what has expired.
"""

from __future__ import annotations

from typing import Final

from topics.actors.link.ledger import ShardLedger
from topics.actors.shard.context import ShardContext
from topics.actors.shard.expiry import Expiry
from topics.actors.shard.service import Service
from topics.engine.quota import ByteQuota, SharedCap

SWEEP_S: Final = 0.2


class Quotas(Service):
    """Attaches the caps that are set to the engine of a shard."""

    def __init__(self, context: ShardContext, ledger: ShardLedger, expiry: Expiry) -> None:
        self._context, self._expiry = context, expiry
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
        """What has expired goes at once, if bytes are scarce. Only inside of a turn."""
        if self._bytes is not None and self._bytes.cap.is_scarce:
            self._expiry.hurry()
