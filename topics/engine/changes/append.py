"""Append: assigns seqs to the records of one write (§2).

The decision assigns seqs and `$ts`. The records are stored in an APPEND frame, or only in memory
(`ephemeral`). The commit adds the records to the index and their idempotency key to the dedupe
window, and applies caps.

A write whose idempotency key is known is not decided again. If the first attempt is committed, the
caller gets its `DedupeEntry`. If the first attempt is in flight, the caller waits for it
(`InFlightDuplicate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from topics.engine.changes import put_topic
from topics.engine.changes.change import Change
from topics.engine.dedupe import DedupeEntry
from topics.engine.locators import FIRST_MEMORY, Locator, in_log
from topics.engine.moved_keys import is_copy_key
from topics.engine.now import Now
from topics.engine.queue.queue_replay import note_delays
from topics.engine.removal import trim
from topics.engine.replay import Replay, StateMismatch
from topics.engine.retention import apply_caps, check_capacity
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.errors import InvalidRequest, TopicsError
from topics.formats.api.append_body import AppendBody, PlainAppend, has_delays
from topics.formats.api.limits import DELAY_MS_MAX
from topics.formats.disk.frame_bodies import (
    TS_AHEAD_MS,
    append_frame,
    external_append_frame,
    seqs_reserved_frame,
    ts_reserved_frame,
)
from topics.formats.disk.frames import Frame, FrameHeader
from topics.formats.disk.records import RecordFlags, blob_bytes
from topics.formats.disk.rendering import EncodedRecords, Rendering, encode
from topics.formats.json_text import json_string

_TAGS, _DELAYS = int(RecordFlags.TAGS), int(RecordFlags.DELAYS)
# For records in memory: number of seqs whose tags share one index and are dropped together.
MEMORY_GENERATION_SEQS = 1 << 16


class Append(Change):
    """One write whose records are not committed yet.

    - ``resident``: the records, if the durability class of the topic keeps them in memory only.
    - ``ceiling``: the seq up to which the frames reserve seqs; 0 if they reserve none.
      ``ts_ceiling``: the same for `$ts`.
    - ``tags``: ``(index, tag)`` of each record that has a tag.
    - ``due``: the delivery time of each record (wall ms), 0 for immediate delivery; empty if no
      record has a delay.
    - ``followers``: retries with the same key. The caller replies to them together with this write.
    """

    __slots__ = (
        "ceiling",
        "count",
        "created",
        "due",
        "first_seq",
        "followers",
        "is_config",
        "key",
        "resident",
        "size",
        "tags",
        "ts",
        "ts_ceiling",
    )

    def __init__(
        self, topic: Topic, first_seq: int, count: int, size: int, ts: int, key: str | None
    ) -> None:
        # `Change.__init__` is not called, because this constructor runs for each write.
        self.topic, self.sync = topic, False
        self.frames: list[Frame] = []
        self.first_seq, self.count, self.size, self.ts, self.key = first_seq, count, size, ts, key
        self.created = self.is_config = False
        self.ceiling = self.ts_ceiling = 0
        self.resident: EncodedRecords | None = None
        self.tags: Sequence[tuple[int, bytes]] = ()
        self.due: Sequence[int] = ()
        self.followers: list[Any] = []

    @property
    def last_seq(self) -> int:
        """Return the seq of the last record."""
        return self.first_seq + self.count - 1

    def commit_records(
        self, table: TopicTable, locator: Locator, now: Now, generation: int
    ) -> None:
        """Make the records readable.

        ``generation`` is the LSN at which their log file begins. Their tags are dropped together
        with the other tags of this file.
        """
        topic = self.topic
        # The frames of this change are committed. So undo what `begin` has counted as pending,
        # and use the reservations that the frames contain.
        topic.pending -= 1
        if self.sync:
            topic.pending_sync -= 1
        if self.ceiling:
            topic.reserved(self.ceiling)
        if self.ts_ceiling:
            table.ts_reserved(self.ts_ceiling)
        size = self.size
        topic.pending_bytes -= size
        # This is `Topic.commit_records`, inlined for speed.
        first_seq, count, ts = self.first_seq, self.count, self.ts
        assert first_seq > topic.head_seq, "writes are committed in seq order"
        topic.index.add(first_seq, count, locator, size, ts)
        topic.head_seq = first_seq + count - 1
        topic.count += count
        topic.bytes += size
        topic.last_write_ts = ts
        # Delays start at the commit and not at the decision, because a job must not become due
        # before it is readable.
        if self.due:
            _delay(topic, self.first_seq, self.due, now)
        # Move the key from the keys in flight to the dedupe window in one step, so that
        # `find_duplicate` finds it in one of them at any time.
        if self.key is not None:
            topic.pending_keys.pop(self.key, None)
            window_ms = topic.config.idempotency_window_ms
            topic.dedupe.add(self.key, self.first_seq, self.count, now.ms, window_ms)
        # Records in memory belong to no log file. A negative generation cannot collide with an
        # LSN.
        if locator >= FIRST_MEMORY:
            generation = -1 - self.first_seq // MEMORY_GENERATION_SEQS
        else:
            topic.logged_seq = topic.head_seq
        if self.tags:
            topic.note_tags(self.first_seq, self.tags, generation)
        # Caps apply to committed records only. If they were applied earlier, a write that is undone
        # later would have evicted records for nothing.
        if topic.capped:
            apply_caps(topic, table.store)

    def undo(self, table: TopicTable, /) -> None:
        """Release the seqs, the bytes and the idempotency key of the write.

        This may also be called for a streamed append that has been decided but whose frame has not
        been queued yet.
        """
        self.uncount_pending()
        topic = self.topic
        assert topic.next_seq == self.last_seq + 1, "the latest write is undone first"
        # Release in the reverse order of the decision. Pending changes of a topic form a stack
        # here, because the seqs of a later write follow the seqs of this one.
        topic.release_seqs(self.first_seq)
        topic.pending_bytes -= self.size
        if self.key is not None:
            del topic.pending_keys[self.key]
        if self.ceiling:
            topic.drop_reservation(self.ceiling)
        if self.ts_ceiling:
            table.drop_ts_reservation()
        # This write created the topic. If the write is undone, the topic must not exist or be
        # counted.
        if self.created:
            table.undo_admit(topic)


class InFlightDuplicate(NamedTuple):
    """A retry whose first attempt, ``leader``, is in flight. The retry gets the same response."""

    leader: Append


# Decisions


def decide(
    table: TopicTable, name: str, body: AppendBody, now: Now, prefixes: list[str] | None = None
) -> Append | InFlightDuplicate | DedupeEntry:
    """Assign seqs to the records (§2), unless their idempotency key is known.

    Raise `TopicFull` if the records do not fit and the topic rejects writes when it is full. Raise
    `TopicNotFound` if the topic does not exist and is not to be created.

    Raise `InvalidRequest` for delays that are not allowed, and the errors of `SharedCap.take` if
    a quota is used up. After an error, the topic and the quotas are unchanged.
    """
    topic = table.by_name.get(name)
    made = topic is None
    key = body.idempotency_key
    if topic is None:
        topic = put_topic.new_topic_for(table, name, body, now, prefixes)
    elif body.config is not None:
        put_topic.check_inline_config(name, body.config)
    # Look up the key before any check of capacity, because a retry gets the first response even
    # if the topic is full by now. A topic that is created here has no keys.
    if key is not None:
        duplicate = None if made else find_duplicate(topic, key, now)
        if duplicate is not None:
            return duplicate
        key = key if keeps_key(topic, key) else None
    # `$ts` never decreases within a topic, even if the wall clock is set back.
    ts = max(now.ts, topic.last_ts)
    due = () if isinstance(body, PlainAppend) else due_times(topic, body, now)
    encoded = encode(body, topic.next_seq, ts, key is not None, due or None)
    flags, count, ext, parts, size = encoded
    # All steps that may raise precede `begin`, which assigns the seqs. So a refused write changes
    # nothing, and the following write gets the same seqs.
    if topic.config.discard == "reject":
        check_topic_capacity(topic, count, size)
    if made or table.byte_quota is not None:
        _charge(table, topic, size, is_new=made)
    change = Append(topic, topic.next_seq, count, size, ts, key)
    if made:
        _create_with_topic(table, change, now)
    else:
        begin(change)
    if flags & _TAGS:
        change.tags = _tags_of(body)
    change.due = due
    # Records of an ephemeral topic stay in memory. Their frames contain only reservations.
    if topic.config.durability == "ephemeral":
        change.resident = encoded
        reserve_for_memory(table, change, topic.reserving_seq, now)
    else:
        first_seq = change.first_seq
        frame = append_frame(topic.id, first_seq, ts, count, flags, len(ext), parts)
        change.frames.append(frame)
    return change


def decide_streamed(
    table: TopicTable,
    topic: Topic,
    body: AppendBody,
    rendering: Rendering,
    size: int,
    now: Now,
    due: Sequence[int] = (),
) -> Append:
    """Assign seqs to a streamed append, whose records are rendered later, in several steps.

    ``size`` is the number of bytes of the rendered records, and ``due`` is the result of
    `due_times`. No other change of the topic may be pending. The frame contains no records. The
    caller must make the records durable in a blob before it writes the frame.

    Raise `TopicFull`, and the errors of `SharedCap.take`. In those cases no seqs are assigned.
    """
    assert not topic.pending, "the topic has no other pending change"
    check_topic_capacity(topic, len(body.records), size)
    charge_bytes(table, topic, size)
    key, ts = body.idempotency_key, max(now.ts, topic.last_ts)
    if key is not None and not keeps_key(topic, key):
        key = None
    change = Append(topic, topic.next_seq, len(body.records), size, ts, key)
    begin(change)
    change.due = due
    if topic.config.durability == "ephemeral":
        # A reservation in flight may still fail while the records are being rendered. So rely only
        # on the durable reservation.
        reserve_for_memory(table, change, topic.reserved_seq, now)
    else:
        frame = external_append_frame(
            topic.id, change.first_seq, change.ts, change.count, rendering.flags, rendering.ext
        )
        change.frames.append(frame)
    if rendering.flags & _TAGS:
        change.tags = _tags_of(body)
    return change


def make_topic(
    table: TopicTable,
    name: str,
    body: AppendBody,
    now: Now,
    prefixes: list[str] | None = None,
    size: int = 0,
) -> put_topic.PutTopic:
    """Create the topic for a streamed append, before its records are rendered.

    ``size`` is the number of bytes of the records. If a byte quota applies, these bytes are
    reserved until `decide_streamed` or `TopicTable.release_reserved_bytes` is called.
    """
    topic = put_topic.new_topic_for(table, name, body, now, prefixes)
    # Check the capacity, the delays and the quota before the records are rendered, because
    # rendering may take seconds, and the client should get an error before that.
    check_topic_capacity(topic, len(body.records), size)
    due_times(topic, body, now)
    change = put_topic.make(table, topic, now)
    if table.byte_quota is not None:
        try:
            table.byte_quota.reserve(topic, size)
        except TopicsError:
            change.undo(table)
            table.byte_quota.recharge(topic)
            raise
    return change


def find_duplicate(topic: Topic, key: str, now: Now) -> InFlightDuplicate | DedupeEntry | None:
    """Return the earlier write that used this idempotency key, if it is still known (§0.8)."""
    # If the first attempt is in flight, its outcome is unknown. So this retry must wait for it and
    # must not be written.
    leader = topic.pending_keys.get(key)
    if leader is not None:
        assert isinstance(leader, Append), "only appends have keys"
        return InFlightDuplicate(leader)
    window_ms = topic.config.idempotency_window_ms
    return topic.dedupe.find(key, now.ms, window_ms, topic.keys_from_seq)


def keeps_key(topic: Topic, key: str) -> bool:
    """Return whether the key of a write is stored. With a window of 0, only keys of copies are
    stored.
    """
    return topic.config.idempotency_window_ms > 0 or is_copy_key(key)


def check_topic_capacity(topic: Topic, count: int, size: int) -> None:
    """Raise `TopicFull` if the topic rejects writes when it is full and these records do not fit
    (§1.1).
    """
    # Also count the records of pending writes. Otherwise several writes of one loop iteration
    # could exceed the cap together. Skipped seqs have no records.
    pending = topic.next_seq - topic.head_seq - 1 - topic.pending_skipped
    check_capacity(
        topic.config,
        topic.count + pending + count,
        topic.bytes + topic.pending_bytes + size,
        topic.name,
    )


def charge_bytes(table: TopicTable, topic: Topic, size: int) -> None:
    """Charge the topic for a write that is decided now (§11). Raise the errors of
    `SharedCap.take`.
    """
    if table.byte_quota is not None:
        table.byte_quota.take(topic, size)


def _charge(table: TopicTable, topic: Topic, size: int, *, is_new: bool) -> None:
    """Count the topic if it is new, and charge it for its write. Do both or neither."""
    if is_new:
        table.admit(topic)
    # Admit the topic before it is charged, because a charge must belong to an admitted topic. If
    # the charge is refused, `undo_admit` removes the topic again.
    try:
        charge_bytes(table, topic, size)
    except TopicsError:
        if is_new:
            table.undo_admit(topic)
        raise


def due_times(topic: Topic, body: AppendBody, now: Now) -> Sequence[int]:
    """Return the delivery time of each record (wall ms), 0 for immediate delivery.

    Return an empty sequence if no record has a delay. Raise `InvalidRequest` for a delay in a topic
    that is not a queue, and for a time that is too far in the future.
    """
    if isinstance(body, PlainAppend) or not has_delays(body.records):
        return ()
    if topic.jobs is None:
        raise InvalidRequest("only a record of a queue may have a delay", field="delay_ms")
    due = []
    for index, record in enumerate(body.records):
        # `deliver_at` is a wall time in ms. `delay_ms` counts from now.
        at = record.deliver_at if record.deliver_at is not None else now.ts + (record.delay_ms or 0)
        if at > now.ts + DELAY_MS_MAX:
            raise InvalidRequest(
                f"record {index}: the delay exceeds {DELAY_MS_MAX} ms", index=index
            )
        due.append(at if at > now.ts else 0)
    return due if any(due) else ()


def _delay(topic: Topic, first_seq: int, due: Sequence[int], now: Now) -> None:
    """Add the delays of committed records to the jobs of the queue."""
    assert topic.jobs is not None, "only jobs have delays"
    for seq, due_ts in enumerate(due, first_seq):
        if due_ts:
            topic.jobs.delay(seq, due_ts, now)


def begin(change: Append) -> None:
    """Assign the next seqs of the topic to this write, and count it as pending."""
    topic = change.topic
    if change.key is not None:
        topic.note_pending_key(change.key, change)
    topic.last_ts = change.ts
    # The next decision of this topic uses the new ``next_seq``, although nothing is committed.
    # This allows several writes of a topic to share one group of the log.
    topic.next_seq = next_seq = change.first_seq + change.count
    topic.pending_bytes += change.size
    topic.pending += 1
    # The write waits for a sync if its seqs are above the durable reservation. It also waits if an
    # earlier change of the topic does, because changes are committed in order.
    if (
        change.sync
        or topic.pending_sync > 0
        or topic.config.durability == "fsync"
        or next_seq > topic.reserved_seq + 1
    ):
        change.sync = True
        topic.pending_sync += 1


def _create_with_topic(table: TopicTable, change: Append, now: Now) -> None:
    """Create the topic, which is admitted already, together with its first write.

    The TOPIC frame contains the head of the topic, so it is encoded before seqs are assigned.
    """
    change.frames.append(put_topic.frame_of(change.topic, now))
    change.created = change.is_config = change.sync = True
    begin(change)
    change.ts_ceiling = table.reserve_ts(now)


def reserve_for_memory(table: TopicTable, change: Append, reserved_seq: int, now: Now) -> None:
    """Reserve the seqs and the `$ts` of records in memory before they are acknowledged.

    The log does not contain these records, so a restart could otherwise assign their seqs again.
    ``reserved_seq`` is the last seq that is certainly reserved when the frames of this change are
    written.
    """
    topic = change.topic
    if change.last_seq > reserved_seq:
        change.ceiling = topic.reserve_above(change.last_seq)
        change.frames.append(seqs_reserved_frame(topic.id, change.ceiling))
    # About once a second such a write reserves `$ts` and waits for the sync. Comparing the clock is
    # sufficient, because the log already covers every `$ts` that is later than the clock.
    if now.ts > table.reserved_ts or (
        now.ts + TS_AHEAD_MS // 2 > table.reserved_ts == table.reserving_ts
    ):
        change.ts_ceiling = table.reserve_ts(now)
        change.frames.append(ts_reserved_frame(now.ts))
    topic.note_resident(change.first_seq, change.last_seq)


def _tags_of(body: AppendBody) -> list[tuple[int, bytes]]:
    """Return ``(index, tag)`` of the records that have a tag, each tag as a JSON string."""
    if isinstance(body, PlainAppend):
        return []
    return [
        (index, json_string(record.tag))
        for index, record in enumerate(body.records)
        if record.tag is not None
    ]


# Replay


def replay(
    replay: Replay,
    header: FrameHeader,
    external_size: int = 0,
    generation: int = 0,
    checkpointed: bool = False,
) -> Topic | None:
    """Replay an APPEND frame. Return the topic, or None if the write is skipped.

    ``external_size`` is the number of bytes of the records if they are in a blob. ``generation`` is
    the LSN at which the log file begins. Raise `StateMismatch` if the frame does not fit the
    current state.

    ``checkpointed`` is as in `topics.engine.replay`: the checkpoint may contain the write
    already, or the deletion of its topic.
    """
    _, _, lsn, _, topic_id, first_seq, ts_ms, body_len, count, ext_len, _, flags, _ = header
    table = replay.table
    topic = table.by_id.get(topic_id)
    # A seq that the topic already has is normal below the LSN of the checkpoint, where the state
    # is newer than the frames. Above it, a frame was written twice or a topic is missing, and the
    # log is damaged.
    if topic is None or first_seq <= topic.head_seq:
        if checkpointed:
            return None
        raise StateMismatch("unknown topic" if topic is None else f"seq {first_seq} already exists")
    # This inlines `Topic.commit_records` and other functions, because startup replays millions of
    # frames.
    size = external_size or (
        blob_bytes(body_len, ext_len, count, flags) if flags else body_len - ext_len - 4 * count
    )
    locator = in_log(lsn)
    topic.index.add(first_seq, count, locator, size, ts_ms)
    topic.next_seq = next_seq = first_seq + count
    topic.head_seq = topic.logged_seq = next_seq - 1
    topic.count += count
    topic.bytes += size
    if ts_ms >= topic.last_ts:  # the checkpoint may contain a later `$ts` from records in memory
        topic.last_write_ts = topic.last_ts = ts_ms
    # According to the checkpoint, all records below `start_seq` were removed. This frame may
    # contain some of them.
    if first_seq < topic.start_seq:
        trim(topic, len(topic.index) - 1, table.store)
    if flags & _TAGS:
        tagged = table.store.records(locator).tagged(0, count)
        topic.note_tags(first_seq, tagged, generation)
    if flags & _DELAYS:
        note_delays(replay, topic, lsn, first_seq)
    # A checkpoint already contains the evictions up to its LSN. Applying the caps to older frames
    # would use the config and the counts of a later time.
    if topic.capped and lsn >= replay.covered_lsn(topic):
        apply_caps(topic, table.store)
    return topic
