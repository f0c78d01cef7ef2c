"""Quota: one shard's share of the server-wide caps (§11).

    SharedCap    a cap that all shards share; this shard takes and releases its share of it
    ByteQuota    the amount that each topic of this shard is charged under the byte cap

Each topic is charged for its bytes (``Topic.charge``), and the shard holds the sum of its charges.

    write decided        the charge grows by the size of the records, but not beyond ``cap_bytes``
                         if the topic has one, because the bytes above it are evicted by the commit
    any change settled   the charge falls to ``bytes + pending_bytes``, or to ``cap_bytes`` if that
                         is less and no other config is pending
    write committed      the same; but if a second write of the same size would reach ``cap_bytes``,
                         the charge stays at ``cap_bytes``, so that the next write takes nothing

A charge is never below the bytes that the topic has now, or will have after any of its pending
changes. Only a write raises a charge, and only as far as the cap allows. So the records of all
topics never have more bytes than the cap, regardless of which changes are committed, undone,
evicted or deleted, in any order. A topic that evicts its own records can be written to even while
the server is full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from topics.engine.topic import Topic
from topics.errors import NotReady, Throttled


class SharedCount(Protocol):
    """The amount that this shard holds of a cap that all shards share."""

    def take(self, most: int, amount: int = 1) -> bool:
        """Take ``amount``. Return False and change nothing if all shards together would hold more
        than ``most``. A ``most`` of 0 means that there is no cap.
        """

    def release(self, amount: int = 1) -> None:
        """Release ``amount``."""

    def total(self) -> int:
        """Return the amount that all shards hold together."""


class SharedCap:
    """One cap that all shards share."""

    __slots__ = ("_count", "_message", "_most", "_name", "_replayed")

    def __init__(
        self,
        name: str,
        message: str,
        most: int,
        count: SharedCount,
        replayed: Callable[[], float | None],
    ) -> None:
        """``name`` is reported as ``detail.limit``, and ``message`` is the human-readable text.

        ``most`` is the cap, at least 1. ``replayed`` returns None if the amount of every shard is
        known. Otherwise a shard is still recovering, and ``replayed`` returns the fraction of its
        log that the slowest shard has replayed.
        """
        assert most > 0, "a cap is at least 1"
        self._name, self._message, self._most = name, message, most
        self._count, self._replayed = count, replayed

    def take(self, amount: int = 1) -> None:
        """Take the complete amount or nothing.

        Raise `Throttled` if the cap would be exceeded. Raise `NotReady` while a recovering shard
        may hold an amount that is not known yet.
        """
        replayed = self._replayed()
        if replayed is not None:
            raise NotReady(
                f"a shard is still recovering: {self._name} cannot be checked yet",
                reason="recovering",
                replay_progress=replayed,
            )
        if not self._count.take(self._most, amount):
            raise Throttled(self._message, limit=self._name, max=self._most)

    def take_reserved(self) -> None:
        """Take one unit. Another shard keeps it reserved until this call returns."""
        self._count.take(0)

    def release(self, amount: int = 1) -> None:
        """Release an amount that was taken."""
        self._count.release(amount)

    @property
    def available(self) -> int:
        """Return the amount that can be taken now. Other shards may take it first."""
        return max(self._most - self._count.total(), 0) if self._replayed() is None else 0

    @property
    def is_nearly_full(self) -> bool:
        """Return whether less than an eighth of the cap is left."""
        return self._count.total() > self._most - self._most // 8


class ByteQuota:
    """The charges of the topics of one shard."""

    __slots__ = ("_reserved", "cap")

    def __init__(self, cap: SharedCap) -> None:
        self.cap = cap
        # By topic id: the part of the charge that is held for a later write.
        self._reserved: dict[int, int] = {}

    def take(self, topic: Topic, size: int) -> None:
        """Charge the topic for a write of ``size`` bytes that is decided now.

        Raise the errors of `SharedCap.take`; in that case nothing has changed.
        """
        charge = topic.charge
        # The reserved part of the charge was taken for this write.
        rest = charge - self._reserved.get(topic.id, 0) if self._reserved else charge
        grown, cap_bytes = rest + size, topic.config.cap_bytes
        # Bytes above the cap of the topic are evicted by the commit, so they are not charged.
        if cap_bytes and grown > cap_bytes:
            grown = max(rest, cap_bytes)
        if grown > charge:
            self.cap.take(grown - charge)
        elif grown < charge:
            self.cap.release(charge - grown)
        topic.charge = grown
        if rest < charge:
            del self._reserved[topic.id]

    def reserve(self, topic: Topic, size: int) -> None:
        """Charge a new topic for a write that is decided later. Raise the errors of
        `SharedCap.take`.
        """
        cap_bytes = topic.config.cap_bytes
        held = min(size, cap_bytes) if cap_bytes else size
        self.cap.take(held)
        topic.charge += held
        self._reserved[topic.id] = held

    def release_reserved(self, topic: Topic) -> None:
        """Release the reserved bytes of a topic, because the write for which they were reserved
        will not follow.
        """
        if self._reserved.pop(topic.id, 0):
            self.recharge(topic)

    def recharge(self, topic: Topic, written: int = 0) -> None:
        """Update the charge after a change has been committed or undone, or records were removed.

        ``written`` is the size of the write that has been committed.
        """
        charge, size = topic.charge, topic.bytes + topic.pending_bytes
        config = topic.config
        # A topic near its cap keeps the charge up to the cap, so that its next writes take nothing
        # from the shared cap.
        if 0 < config.cap_bytes < size + written and config is topic.committed:
            size = max(config.cap_bytes, topic.bytes)
        if charge > size:
            size += self._reserved.get(topic.id, 0)
            if charge > size:
                self.cap.release(charge - size)
                topic.charge = size

    def release(self, topic: Topic) -> None:
        """Release the entire charge of a topic that has been removed permanently."""
        self._reserved.pop(topic.id, None)
        if topic.charge:
            self.cap.release(topic.charge)
            topic.charge = 0

    def bytes_left_for(self, topic: Topic) -> int | None:
        """Return the number of bytes that can be written to the topic now, or None if there is no
        bound.
        """
        available, cap_bytes = self.cap.available, topic.config.cap_bytes
        if cap_bytes and cap_bytes - topic.charge <= available:
            return None
        return available
