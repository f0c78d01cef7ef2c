"""Quota: what the topics of one shard take of the caps of the whole server (§11).

    SharedCap    one cap of all shards, of which this shard takes and gives back its part
    ByteQuota    the bytes of topics under such a cap

Each topic is charged for its bytes (``Topic.charge``), and the shard holds the sum of its charges.

    write decided        the charge grows by the size of its records, up to ``cap_bytes`` where the
                         topic has one: what is above that goes as soon as the write is committed
    anything settled     the charge falls to ``bytes + pending_bytes``, or to ``cap_bytes`` if that
                         is less and no other config is under way
    write committed      the same, but where a second one of its size would reach ``cap_bytes`` the
                         room up to there is kept: it need not be found again for each write

A charge is never below what the topic holds now, or will hold after any of its pending changes.
Only a write lets it grow, and only as far as the cap allows. So the records of all topics never
have more bytes than the cap, whatever is committed, undone, evicted or deleted, in any order; and
a topic that trims itself goes on while the server is full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from topics.engine.topic import Topic
from topics.errors import NotReady, Throttled


class Count(Protocol):
    """What this shard holds, among all shards."""

    def take(self, most: int, amount: int = 1) -> bool:
        """Hold ``amount`` more; False, and nothing is taken, when all shards together would hold
        more than ``most``. 0: no cap.
        """

    def give_back(self, amount: int = 1) -> None:
        """Hold ``amount`` less."""

    def total(self) -> int:
        """What all shards hold together."""


class SharedCap:
    """One cap of all shards."""

    __slots__ = ("_count", "_message", "_most", "_name", "_replayed")

    def __init__(
        self,
        name: str,
        message: str,
        most: int,
        count: Count,
        replayed: Callable[[], float | None],
    ) -> None:
        """``name`` is told as ``detail.limit``, ``message`` to humans. ``most``: at least 1.
        ``replayed``: the share of its log that the last shard has replayed which has not said what
        it holds; None when all have.
        """
        assert most > 0, "0 is no cap"
        self._name, self._message, self._most = name, message, most
        self._count, self._replayed = count, replayed

    def take(self, amount: int = 1) -> None:
        """Take all of it or nothing. Raises `Throttled` when there is no room, `NotReady` while a
        shard that recovers may hold more than is known.
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
        """Take one that another shard keeps for it until this is done."""
        self._count.take(0)

    def give_back(self, amount: int = 1) -> None:
        """Give back what was taken."""
        self._count.give_back(amount)

    @property
    def room(self) -> int:
        """How much can be taken now; others may be faster."""
        return max(self._most - self._count.total(), 0) if self._replayed() is None else 0

    @property
    def is_scarce(self) -> bool:
        """Less than an eighth of the cap is left."""
        return self._count.total() > self._most - self._most // 8


class ByteQuota:
    """The charges of the topics of one shard."""

    __slots__ = ("_held", "cap")

    def __init__(self, cap: SharedCap) -> None:
        self.cap = cap
        self._held: dict[int, int] = {}  # by topic id: part of its charge, for a write to come

    def take(self, topic: Topic, size: int) -> None:
        """Charge the topic for a write of ``size`` bytes that is decided now. Raises as
        `SharedCap.take`; then nothing has changed.
        """
        charge = topic.charge
        rest = charge - self._held.get(topic.id, 0) if self._held else charge
        grown, cap_bytes = rest + size, topic.config.cap_bytes
        if cap_bytes and grown > cap_bytes:
            grown = max(rest, cap_bytes)
        if grown > charge:
            self.cap.take(grown - charge)
        elif grown < charge:
            self.cap.give_back(charge - grown)
        topic.charge = grown
        if rest < charge:
            del self._held[topic.id]

    def hold(self, topic: Topic, size: int) -> None:
        """Charge a new topic for a write that is decided later. Raises as `SharedCap.take`."""
        cap_bytes = topic.config.cap_bytes
        held = min(size, cap_bytes) if cap_bytes else size
        self.cap.take(held)
        topic.charge += held
        self._held[topic.id] = held

    def let_go(self, topic: Topic) -> None:
        """No write comes that would use what is held."""
        if self._held.pop(topic.id, 0):
            self.recharge(topic)

    def recharge(self, topic: Topic, written: int = 0) -> None:
        """A change of the topic is committed or undone, or records went. ``written``: the size of
        the write that was committed.
        """
        charge, size = topic.charge, topic.bytes + topic.pending_bytes
        config = topic.config
        if 0 < config.cap_bytes < size + written and config is topic.committed:
            size = max(config.cap_bytes, topic.bytes)
        if charge > size:
            size += self._held.get(topic.id, 0)
            if charge > size:
                self.cap.give_back(charge - size)
                topic.charge = size

    def release(self, topic: Topic) -> None:
        """The topic is gone for good."""
        self._held.pop(topic.id, None)
        if topic.charge:
            self.cap.give_back(topic.charge)
            topic.charge = 0

    def room_for(self, topic: Topic) -> int | None:
        """How many bytes of records the topic may take now; None: as many as one likes."""
        room, cap_bytes = self.cap.room, topic.config.cap_bytes
        if cap_bytes and cap_bytes - topic.charge <= room:
            return None
        return room
