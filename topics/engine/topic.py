"""State of one topic.

Two heads: ``next_seq`` is what the next write is given, ``head_seq`` the last seq that is as
durable as its class promises. Readers see no more than ``head_seq``; a write that fails on its way
to the disk gives back what it took (`Topic.give_back`).

Two configs: ``config`` is what was decided last and speaks for writes, ``committed`` is durable and
speaks for what may be seen.

Three floors: the seq below which a cap, the TTL, or a restart has taken something. All are at most
``start_seq``, which stands on the first live record, or on ``head_seq + 1``. What a restart took
above live records stands in ``losses``, what was found damaged there when it was to be sealed in
``damaged``; a fourth floor is that of damage.
"""

from __future__ import annotations

from topics.engine.dedupe import DedupeWindow
from topics.engine.locators import Locator
from topics.engine.record_index import RecordIndex
from topics.engine.tags import TagIndex
from topics.formats.api.topic_config import PRIORITY_LIMIT, TopicConfig
from topics.formats.ranges import SeqRange, joined, united

# Seqs are promised to the disk ahead of use, so that none is given twice after a power loss took
# unsynced records.
RESERVE_MIN = 4096
RESERVE_MAX = 1 << 20


class Topic:
    """One incarnation of a topic. ``epoch`` tells it from earlier and later topics of the same
    name.
    """

    __slots__ = (
        "bytes", "cap_floor", "capped", "committed", "config", "count", "damage_floor", "damaged", "dedupe", "deleted", "epoch",
        "floor_due", "head_seq", "id", "index", "keys_from_seq",
        "last_read_ms", "last_read_ts", "last_ts", "last_write_ts", "logged_seq", "loss_floor", "losses", "name",
        "next_seq", "pending", "pending_bytes", "pending_keys", "pending_sync", "reserved_seq", "reserving_seq", "resident",
        "sealed_seq", "start_seq", "tags", "ttl_floor",
    )  # fmt: skip

    def __init__(
        self,
        topic_id: int,
        name: str,
        epoch: int,
        config: TopicConfig,
        reserved_seq: int = RESERVE_MIN,
    ) -> None:
        self.id, self.name, self.epoch = topic_id, name, epoch
        self.config = config
        self.settle_config(config)
        self.head_seq = 0
        self.next_seq = 1
        self.start_seq = 1
        self.cap_floor = self.ttl_floor = self.loss_floor = self.damage_floor = 1
        self.losses: tuple[SeqRange, ...] = ()
        self.damaged: tuple[SeqRange, ...] = ()
        self.resident: tuple[
            SeqRange, ...
        ] = ()  # seqs of records that are kept in memory only: a restart takes them
        self.logged_seq = 0  # no record above it is in the log
        self.sealed_seq = 0  # no record above it is in a segment
        self.floor_due = False  # the log must be told of a floor that it cannot know
        self.tags: dict[int, TagIndex] | None = None  # by log file
        self.count = 0
        self.bytes = 0
        self.index = RecordIndex()
        self.dedupe = DedupeWindow()
        self.keys_from_seq = 0  # idempotency keys of writes before it were forgotten, and stay so when the window grows
        self.last_ts = 0  # $ts never goes back within a topic
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        self.last_read_ms: int | None = None  # the same on the monotonic clock
        self.reserved_seq = (
            reserved_seq  # no seq above it is handed out before a higher reservation is synced
        )
        self.reserving_seq = reserved_seq  # the reservation that is on its way to the disk
        self.pending = 0  # changes decided and not yet committed
        self.pending_sync = 0  # those of them that wait for a sync
        self.pending_bytes = 0  # of records decided and not yet committed
        self.pending_keys: dict[str, object] = {}
        self.deleted = False

    @property
    def earliest_seq(self) -> int:
        """Seq of the first live record; ``head_seq + 1`` when there is none (§1.2)."""
        return self.start_seq

    @property
    def evict_floor(self) -> int:
        """A cursor that wants a seq below it has lost something (§3.3)."""
        return max(self.cap_floor, self.ttl_floor, self.loss_floor, self.damage_floor)

    @property
    def perishable(self) -> bool:
        """Whether `ShardEngine.expire` may have something to do."""
        return self.committed.ttl_ms > 0 or self.floor_due

    def settle_config(self, config: TopicConfig) -> None:
        """This config is durable."""
        self.committed = config
        self.capped = config.cap_records > 0 or config.cap_bytes > 0

    def commit_records(
        self, first_seq: int, count: int, locator: Locator, ts_ms: int, size: int
    ) -> None:
        """Make a write readable."""
        assert first_seq > self.head_seq, "writes are committed in seq order"
        self.index.add(first_seq, count, locator, size, ts_ms)
        self.head_seq = first_seq + count - 1
        self.count += count
        self.bytes += size
        self.last_write_ts = ts_ms

    def give_back(self, first_seq: int) -> None:
        """The write that begins here failed before anyone could see it: its seqs are free again. No
        later one may be under way.
        """
        self.next_seq = first_seq
        self.resident = tuple(
            SeqRange(first, min(last, first_seq - 1))
            for first, last in self.resident
            if first < first_seq
        )

    def reserved(self, ceiling: int) -> None:
        """This reservation is durable."""
        self.reserved_seq = max(self.reserved_seq, ceiling)
        self.reserving_seq = max(self.reserving_seq, ceiling)

    def forget_reservation(self, ceiling: int) -> None:
        """This reservation has failed. Of those before it, only what is durable counts: to reserve
        too much does no harm.
        """
        if self.reserving_seq == ceiling:  # otherwise a higher one is under way
            self.reserving_seq = self.reserved_seq

    def reservation_after(self, last_seq: int) -> int | None:
        """Ceiling to reserve now that ``last_seq`` is going to be used, None while there is enough."""
        step = _step(last_seq)
        return last_seq + step if last_seq + step // 2 > self.reserving_seq else None

    def reserve_above(self, last_seq: int) -> int:
        """Begin to reserve what ``last_seq`` needs; the ceiling."""
        ceiling = last_seq + _step(last_seq)
        self.reserving_seq = max(self.reserving_seq, ceiling)
        return ceiling

    def drop_tags(self, generation: int) -> TagIndex | None:
        """Segments hold what was written to this log file, tags and all. The index, if there was
        one: to be let go.
        """
        return self.tags.pop(generation, None) if self.tags is not None else None

    # What a restart takes

    def note_resident(self, first_seq: int, last_seq: int) -> None:
        """These seqs are handed out to records that are kept in memory only."""
        self.resident = joined(self.resident, SeqRange(first_seq, last_seq))

    def losses_at_restart(self, head_seq: int) -> tuple[SeqRange, ...]:
        """What of the seqs up to ``head_seq`` would be lost if the process ended now."""
        start = self.start_seq
        at_risk = [
            SeqRange(max(first, start), min(last, head_seq))
            for first, last in self.resident
            if first <= head_seq and last >= start
        ]
        return united(self.losses, at_risk)

    # Priority

    def touch(self, now_ts: int, now_ms: int) -> None:
        """A read, for the automatic priority (§0.10)."""
        self.last_read_ts, self.last_read_ms = now_ts, now_ms

    def effective_priority(self, now_ms: int) -> int:
        """The manual priority; otherwise one point less for each second since the last read, from
        500 down to 0.
        """
        if self.config.priority is not None:
            return self.config.priority
        if not self.config.auto_priority or self.last_read_ms is None:
            return 0
        return max(0, PRIORITY_LIMIT // 2 - (now_ms - self.last_read_ms) // 1000)


def _step(last_seq: int) -> int:
    return min(max(last_seq, RESERVE_MIN), RESERVE_MAX)
