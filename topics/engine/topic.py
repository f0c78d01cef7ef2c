"""Topic: the in-memory state of one topic.

- Two heads. ``next_seq`` is the seq that the next write gets. ``head_seq`` is the last committed
  seq: its record is as durable as its durability class promises. Readers see no records above
  ``head_seq``. If a write fails before it is durable, its seqs are released (`Topic.release_seqs`)
  and the next write gets them.
- Two configs. ``config`` is the result of the latest decision and applies to new writes.
  ``committed`` is the latest durable config and applies to everything that readers can observe,
  such as evictions.
- Five floors, one for each cause of loss: a cap, the maximum age (TTL), a restart, damage, and
  losses of the source of a router. A floor is the seq below which its cause has removed records. No
  floor is above ``start_seq``, which is the seq of the first live record, or ``head_seq + 1`` if
  the topic is empty.
- Three lists of lost ranges above the first live record: ``losses`` (a restart lost them),
  ``damaged`` (their bytes are corrupt) and ``trimmed`` (seqs that were skipped because the source
  of a router has lost records). When the topic later begins above such a range, the range becomes a
  floor (`engine.removal.begin_at`).
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
from topics.formats.ranges import SeqRange, joined, union

# Bounds for the number of seqs that one reservation adds. Seqs are reserved before they are used.
RESERVE_MIN = 4096
RESERVE_MAX = 1 << 20
# Shared by all topics without pending keys, because most topics are idle.
_NO_PENDING_KEYS: dict[str, object] = {}


class Topic:
    """One incarnation of a topic. ``epoch`` distinguishes it from earlier and later topics of the
    same name.
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
        *("pending", "pending_sync", "pending_bytes", "pending_skipped", "pending_keys"),
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
        self.commit_config(self.config)

        self.head_seq = 0
        self.next_seq = 1
        self.start_seq = 1
        self.logged_seq = 0  # no record above this seq is in the log
        self.sealed_seq = 0  # no record above this seq is in a segment

        self.cap_floor = self.ttl_floor = self.loss_floor = self.damage_floor = 1
        self.trim_floor = 1
        # True if the log needs a FLOOR frame, because a replay could not compute the current
        # floors.
        self.floor_due = False
        self.losses: tuple[SeqRange, ...] = ()
        self.damaged: tuple[SeqRange, ...] = ()
        self.trimmed: tuple[SeqRange, ...] = ()
        # Ranges of records that are only in memory. A restart loses these records.
        self.resident: tuple[SeqRange, ...] = ()

        self.jobs = Jobs() if config.type == "queue" else None
        # The (cursor, total) of each router that appends to this topic, by router id. See
        # `engine.routing.derivations`.
        self.derivations: dict[int, tuple[int, int]] | None = None

        self.index = RecordIndex()
        self.count = 0
        self.bytes = 0
        # The tag index of each log file that is not sealed, by the LSN at which the file begins.
        # Tags of records in memory have negative keys.
        self.tags: dict[int, TagIndex] | None = None

        self.dedupe = DedupeWindow()
        # Idempotency keys of writes below this seq have expired. They stay expired even if the
        # window is extended.
        self.keys_from_seq = 0

        self.last_ts = 0  # `$ts` never decreases within a topic
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        self.last_read_ms: int | None = None  # time of the last read on the monotonic clock

        # The durable reservation. A write with a seq above it is acknowledged only after a sync.
        self.reserved_seq = reserved_seq
        # The same, including reservations that are not durable yet.
        self.reserving_seq = reserved_seq

        # Number of changes that have been decided, but neither committed nor undone.
        self.pending = 0
        self.pending_sync = 0  # number of pending changes that wait for a sync
        self.pending_bytes = 0  # bytes of the records of pending changes
        self.pending_skipped = 0  # number of seqs that pending changes skip
        self.pending_keys = _NO_PENDING_KEYS  # by idempotency key: the `Append` that uses it

        self.charge = 0  # number of bytes for which the topic is charged, see `engine.quota`
        # Functions that are called with each committed change, such as those of feeds, long polls
        # and routers.
        self.followers: tuple[Callable[[Any], object], ...] = ()

    # Queries

    @property
    def earliest_seq(self) -> int:
        """Return the seq of the first live record, or ``head_seq + 1`` if the topic is empty
        (§1.2).
        """
        return self.start_seq

    @property
    def floors(self) -> Floors:
        """Return the floor of each cause: the seq below which the cause has removed records."""
        return Floors(
            self.cap_floor, self.ttl_floor, self.loss_floor, self.damage_floor, self.trim_floor
        )

    @property
    def evict_floor(self) -> int:
        """Return the highest floor. A reader that needs a seq below it has lost records (§3.3)."""
        return max(
            self.cap_floor, self.ttl_floor, self.loss_floor, self.damage_floor, self.trim_floor
        )

    @property
    def may_expire(self) -> bool:
        """Return whether `ShardEngine.expire` may have an effect."""
        return self.committed.ttl_ms > 0 or self.floor_due

    def note_pending_key(self, key: str, change: object) -> None:
        """Record that ``change``, an `Append` that is not committed yet, uses this idempotency
        key.
        """
        if self.pending_keys is _NO_PENDING_KEYS:
            self.pending_keys = {}
        self.pending_keys[key] = change

    # Notification of committed changes

    def follow(self, notify: Callable[[Any], object]) -> None:
        """Call ``notify`` with each committed change of the topic. Registering a function twice has
        no effect.
        """
        if notify not in self.followers:
            self.followers += (notify,)

    def unfollow(self, notify: Callable[[Any], object]) -> None:
        """Stop calling ``notify``."""
        self.followers = tuple(each for each in self.followers if each != notify)

    # Commit and rollback

    def commit_config(self, config: TopicConfig) -> None:
        """Record that this config is durable."""
        self.committed = config
        self.capped = config.cap_records > 0 or config.cap_bytes > 0

    def commit_records(
        self, first_seq: int, count: int, locator: Locator, ts_ms: int, size: int
    ) -> None:
        """Make the records of a write readable. ``size`` is the number of their rendered bytes."""
        assert first_seq > self.head_seq, "writes are committed in seq order"
        self.index.add(first_seq, count, locator, size, ts_ms)
        self.head_seq = first_seq + count - 1
        self.count += count
        self.bytes += size
        self.last_write_ts = ts_ms

    def release_seqs(self, first_seq: int) -> None:
        """Release the seqs of a failed write that begins at ``first_seq``. No reader has seen them.

        Writes are undone from the newest to the oldest, so no later write may be pending.
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
        """Add ``(index, tag)`` of the records of a write to the tag index of its log file.

        ``generation`` identifies the log file.
        """
        if self.tags is None:
            self.tags = {}
        tags = self.tags.get(generation)
        if tags is None:
            tags = self.tags[generation] = TagIndex()
        tags.add(tagged, first_seq)

    def begin_tags(self, generation: int, first_seq: int) -> None:
        """Ignore the tags of a log file before ``first_seq``, because a segment contains them
        now.
        """
        if self.tags is not None and generation in self.tags:
            self.tags[generation].first_seq = first_seq

    def drop_tags(self, generation: int) -> TagIndex | None:
        """Remove the tag index of a log file, because a segment contains its tags now.

        Return the index, or None if there was none. The caller frees it in steps
        (`TagIndex.free_step`).
        """
        return self.tags.pop(generation, None) if self.tags is not None else None

    def raise_floors(self, floors: Floors) -> None:
        """Raise each floor to at least the given floor."""
        raised = Floors(*map(max, self.floors, floors))
        self.cap_floor, self.ttl_floor, self.loss_floor = raised.cap, raised.ttl, raised.loss
        self.damage_floor, self.trim_floor = raised.damage, raised.trim

    # Reservations

    def reserved(self, ceiling: int) -> None:
        """Record that the reservation of the seqs up to ``ceiling`` is durable."""
        self.reserved_seq = max(self.reserved_seq, ceiling)
        self.reserving_seq = max(self.reserving_seq, ceiling)

    def drop_reservation(self, ceiling: int) -> None:
        """Record that the reservation up to ``ceiling`` failed, and fall back to the durable
        reservation.

        If an earlier reservation is still in flight, the topic reserves more than it needs, which
        is harmless.
        """
        if self.reserving_seq == ceiling:  # otherwise a higher reservation is in flight
            self.reserving_seq = self.reserved_seq

    def reserve_above(self, last_seq: int) -> int:
        """Start a reservation that covers ``last_seq`` and the seqs after it. Return its
        ceiling.
        """
        ceiling = last_seq + min(max(last_seq, RESERVE_MIN), RESERVE_MAX)
        self.reserving_seq = max(self.reserving_seq, ceiling)
        return ceiling

    # Losses at a restart

    def note_resident(self, first_seq: int, last_seq: int) -> None:
        """Record that the seqs ``first_seq`` to ``last_seq`` are in memory only."""
        ranges = self.resident
        if len(ranges) == 1 and first_seq == ranges[0].last + 1:  # the usual case
            self.resident = (SeqRange(ranges[0].first, last_seq),)
        else:
            self.resident = joined(ranges, SeqRange(first_seq, last_seq))

    def losses_at_restart(self, head_seq: int) -> tuple[SeqRange, ...]:
        """Return the lost ranges that the topic would have after a restart.

        These are the existing ``losses``, and the ranges of live records up to ``head_seq`` that
        are only in memory.
        """
        start = self.start_seq
        at_risk = [
            SeqRange(max(first, start), min(last, head_seq))
            for first, last in self.resident
            if first <= head_seq and last >= start
        ]
        return union(self.losses, at_risk)

    # Priority

    def touch(self, now_ts: int, now_ms: int) -> None:
        """Record the time of a read, for the automatic priority (§0.10)."""
        self.last_read_ts, self.last_read_ms = now_ts, now_ms

    def effective_priority(self, now_ms: int) -> int:
        """Return the manual priority if there is one, else the automatic one.

        The automatic priority depends on the time since the last read (`topics.engine.priority`).
        """
        if self.config.priority is not None:
            return self.config.priority
        if not self.config.auto_priority or self.last_read_ms is None:
            return 0
        return recency_priority(now_ms - self.last_read_ms)

    def band(self, now_ms: int) -> int:
        """Return the priority band of the topic's appends (`topics.engine.priority`)."""
        if self.last_read_ms is None and self.config.priority is None:
            return NEW_BAND
        return band_of(self.effective_priority(now_ms))
