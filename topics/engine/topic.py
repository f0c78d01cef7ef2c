"""Topic: the state of one topic.

Two heads. ``next_seq`` is the seq that the next write gets, ``head_seq`` the last seq that is as
durable as its class promises. Readers see no more than ``head_seq``; a write that fails on its way
to the disk gives its seqs back (`Topic.give_back`).

Two configs. ``config`` is the one decided last and rules writes, ``committed`` is durable and rules
what may be seen.

Five floors: the seq below which a cap, age, a restart, damage or the source of a router has taken
something. All are at most ``start_seq``, the seq of the first live record, or ``head_seq + 1``.
What a restart took above live records is in ``losses``, what was found damaged there in
``damaged``, seqs burnt there for what a router's source has lost in ``trimmed``, until it is a
floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from topics.engine.dedupe import DedupeWindow
from topics.engine.locators import Locator
from topics.engine.priority import NEW_BAND, band_of, recency_priority
from topics.engine.queue.jobs import Jobs
from topics.engine.record_index import RecordIndex
from topics.engine.tags import TagIndex
from topics.formats.api.topic_config import TopicConfig, shared_config
from topics.formats.disk.frame_bodies import Floors
from topics.formats.ranges import SeqRange, joined, united

# How many seqs are reserved at once, ahead of use.
RESERVE_MIN = 4096
RESERVE_MAX = 1 << 20
_NO_PENDING_KEYS: dict[str, object] = {}  # shared by all topics without one: most are idle


class Topic:
    """One incarnation of a topic. ``epoch`` tells it from earlier and later topics of the same
    name.
    """

    __slots__ = (
        *("id", "name", "epoch", "deleted"),
        *("config", "committed", "capped"),
        *("head_seq", "next_seq", "start_seq", "logged_seq", "sealed_seq"),
        *("cap_floor", "ttl_floor", "loss_floor", "damage_floor", "trim_floor", "floor_due"),
        *("losses", "damaged", "trimmed", "resident"),
        *("jobs", "derivations"),
        *("index", "count", "bytes", "tags"),
        *("dedupe", "keys_from_seq"),
        *("last_ts", "last_write_ts", "last_read_ts", "last_read_ms"),
        *("reserved_seq", "reserving_seq"),
        *("pending", "pending_sync", "pending_bytes", "pending_burnt", "pending_keys"),
        *("charge", "followers"),
    )

    def __init__(
        self,
        topic_id: int,
        name: str,
        epoch: int,
        config: TopicConfig,
        reserved_seq: int = RESERVE_MIN,
    ) -> None:
        self.id, self.name, self.epoch = topic_id, name, epoch
        self.deleted = False
        self.config = shared_config(config)
        self.settle_config(self.config)

        self.head_seq = 0
        self.next_seq = 1
        self.start_seq = 1
        self.logged_seq = 0  # no record above it is in the log
        self.sealed_seq = 0  # no record above it is in a segment

        self.cap_floor = self.ttl_floor = self.loss_floor = self.damage_floor = 1
        self.trim_floor = 1
        self.floor_due = False  # the log must be told of a floor that a replay could not find out
        self.losses: tuple[SeqRange, ...] = ()
        self.damaged: tuple[SeqRange, ...] = ()
        self.trimmed: tuple[SeqRange, ...] = ()
        self.resident: tuple[SeqRange, ...] = ()  # records in memory only: a restart takes them

        self.jobs = Jobs() if config.type == "queue" else None
        # By router that feeds the topic: (cursor, total), see `engine.routing.derivations`.
        self.derivations: dict[int, tuple[int, int]] | None = None

        self.index = RecordIndex()
        self.count = 0
        self.bytes = 0
        self.tags: dict[int, TagIndex] | None = None  # by log file

        self.dedupe = DedupeWindow()
        # Keys of earlier writes are forgotten, and stay so when the window grows.
        self.keys_from_seq = 0

        self.last_ts = 0  # $ts never goes back within a topic
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        self.last_read_ms: int | None = None  # the same on the monotonic clock

        # No seq above it is handed out before a higher reservation is synced.
        self.reserved_seq = reserved_seq
        self.reserving_seq = (
            reserved_seq  # the same, reservations on their way to the disk included
        )

        # Changes that are decided and not committed.
        self.pending = 0
        self.pending_sync = 0  # those that wait for a sync
        self.pending_bytes = 0  # of their records
        self.pending_burnt = 0  # seqs that they burn
        self.pending_keys = _NO_PENDING_KEYS  # each with its `Append`

        self.charge = 0  # bytes of the quota that it has taken, see `engine.quota`
        # Told of each committed change: those who have readers, pollers or routers of it.
        self.followers: tuple[Callable[[Any], object], ...] = ()

    # What may be asked

    @property
    def earliest_seq(self) -> int:
        """Seq of the first live record; ``head_seq + 1`` when there is none (§1.2)."""
        return self.start_seq

    @property
    def floors(self) -> Floors:
        """For each cause the seq below which it has taken records."""
        return Floors(
            self.cap_floor, self.ttl_floor, self.loss_floor, self.damage_floor, self.trim_floor
        )

    @property
    def evict_floor(self) -> int:
        """A reader that wants a seq below it has lost something (§3.3)."""
        return max(
            self.cap_floor, self.ttl_floor, self.loss_floor, self.damage_floor, self.trim_floor
        )

    @property
    def is_perishable(self) -> bool:
        """Whether `ShardEngine.expire` may have something to do."""
        return self.committed.ttl_ms > 0 or self.floor_due

    def note_pending_key(self, key: str, change: object) -> None:
        """Note that the key stands for an `Append` that is under way."""
        if self.pending_keys is _NO_PENDING_KEYS:
            self.pending_keys = {}
        self.pending_keys[key] = change

    # Who is told of its changes

    def follow(self, tell: Callable[[Any], object]) -> None:
        """Call ``tell`` with each change of the topic that is committed. Nothing happens the second
        time.
        """
        if tell not in self.followers:
            self.followers += (tell,)

    def unfollow(self, tell: Callable[[Any], object]) -> None:
        """Call ``tell`` no more."""
        self.followers = tuple(each for each in self.followers if each != tell)

    # What is committed or given back

    def settle_config(self, config: TopicConfig) -> None:
        """Note that this config is durable."""
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
        """Free the seqs of the write that begins here: it failed before anyone could see it. No
        later write may be under way.
        """
        self.next_seq = first_seq
        self.resident = tuple(
            SeqRange(first, min(last, first_seq - 1))
            for first, last in self.resident
            if first < first_seq
        )

    def note_tags(
        self, first_seq: int, tagged: Iterable[tuple[int, bytes]], generation: int
    ) -> None:
        """Note ``(index, tag)`` of the records of a write. ``generation``: names its log file."""
        if self.tags is None:
            self.tags = {}
        tags = self.tags.get(generation)
        if tags is None:
            tags = self.tags[generation] = TagIndex()
        tags.add(tagged, first_seq)

    def begin_tags(self, generation: int, first_seq: int) -> None:
        """Find no tags of a log file before ``first_seq`` any more: a segment holds them now."""
        if self.tags is not None and generation in self.tags:
            self.tags[generation].first_seq = first_seq

    def drop_tags(self, generation: int) -> TagIndex | None:
        """Forget the tags of a log file: a segment holds them now. The index, if there was one, for
        the caller to free.
        """
        return self.tags.pop(generation, None) if self.tags is not None else None

    def raise_floors(self, floors: Floors) -> None:
        """Each floor is at least what is told."""
        raised = Floors(*map(max, self.floors, floors))
        self.cap_floor, self.ttl_floor, self.loss_floor = raised.cap, raised.ttl, raised.loss
        self.damage_floor, self.trim_floor = raised.damage, raised.trim

    # Reservations

    def reserved(self, ceiling: int) -> None:
        """Note that this reservation is durable."""
        self.reserved_seq = max(self.reserved_seq, ceiling)
        self.reserving_seq = max(self.reserving_seq, ceiling)

    def forget_reservation(self, ceiling: int) -> None:
        """Note that this reservation failed. Only what is durable counts then: to reserve too much
        does no harm.
        """
        if self.reserving_seq == ceiling:  # otherwise a higher one is under way
            self.reserving_seq = self.reserved_seq

    def reserve_above(self, last_seq: int) -> int:
        """Begin to reserve what ``last_seq`` needs; the ceiling."""
        ceiling = last_seq + min(max(last_seq, RESERVE_MIN), RESERVE_MAX)
        self.reserving_seq = max(self.reserving_seq, ceiling)
        return ceiling

    # What a restart takes

    def note_resident(self, first_seq: int, last_seq: int) -> None:
        """Note that these seqs are those of records in memory only."""
        ranges = self.resident
        if len(ranges) == 1 and first_seq == ranges[0].last + 1:  # the usual case
            self.resident = (SeqRange(ranges[0].first, last_seq),)
        else:
            self.resident = joined(ranges, SeqRange(first_seq, last_seq))

    def losses_at_restart(self, head_seq: int) -> tuple[SeqRange, ...]:
        """Ranges of seqs up to ``head_seq`` that would be lost if the process ended now."""
        start = self.start_seq
        at_risk = [
            SeqRange(max(first, start), min(last, head_seq))
            for first, last in self.resident
            if first <= head_seq and last >= start
        ]
        return united(self.losses, at_risk)

    # Priority

    def touch(self, now_ts: int, now_ms: int) -> None:
        """Note a read, for the automatic priority (§0.10)."""
        self.last_read_ts, self.last_read_ms = now_ts, now_ms

    def effective_priority(self, now_ms: int) -> int:
        """The manual priority; else what the last read leaves (`topics.engine.priority`)."""
        if self.config.priority is not None:
            return self.config.priority
        if not self.config.auto_priority or self.last_read_ms is None:
            return 0
        return recency_priority(now_ms - self.last_read_ms)

    def band(self, now_ms: int) -> int:
        """Which band of appends it belongs to (`topics.engine.priority`)."""
        if self.last_read_ms is None and self.config.priority is None:
            return NEW_BAND
        return band_of(self.effective_priority(now_ms))
