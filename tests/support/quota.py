"""Caps of the server as one shard sees them, without other shards."""

from __future__ import annotations

from topics.engine.quota import ByteQuota, SharedCap
from topics.engine.shard import ShardEngine


class LocalCount:
    """A count that no other process shares. ``others`` is the amount that other shards hold."""

    def __init__(self) -> None:
        self.own = self.others = 0

    def take(self, most: int, amount: int = 1) -> bool:
        if most and self.total() + amount > most:
            return False
        self.own += amount
        return True

    def release(self, amount: int = 1) -> None:
        assert self.own >= amount
        self.own -= amount

    def total(self) -> int:
        return self.own + self.others


class Caps:
    """Both caps, attached to an engine. ``replayed`` is the progress of another shard that is
    still recovering.
    """

    def __init__(
        self, engine: ShardEngine, max_topics: int = 1000, max_bytes: int = 1 << 40
    ) -> None:
        self.topics, self.bytes = LocalCount(), LocalCount()
        self.replayed: float | None = None
        topic_cap = SharedCap("max_topics", "many", max_topics, self.topics, self._replayed)
        byte_cap = SharedCap("max_total_bytes", "full", max_bytes, self.bytes, self._replayed)
        self.quota = ByteQuota(byte_cap)
        self.topics.own, self.bytes.own = engine.count_charged()
        engine.limit(topic_cap, self.quota)

    def _replayed(self) -> float | None:
        return self.replayed

    @property
    def held(self) -> tuple[int, int]:
        """Return the topics and bytes of this shard."""
        return self.topics.own, self.bytes.own
