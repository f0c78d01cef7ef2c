"""Append: the records of one write get their seqs (§2).

A decision hands out seqs and `$ts`. The records go into an APPEND frame, or stay in memory
(`ephemeral`). The commit puts them into the index and their key into the dedupe window, and applies
caps.

A write whose idempotency key is known is not decided again: its caller gets the `DedupeEntry`, or
follows the first attempt while that is under way (`InFlightDuplicate`).
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
from topics.engine.replay import Misfit, Replay
from topics.engine.retention import apply_caps, check_room
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
MEMORY_GENERATION_SEQS = 1 << 16  # tags of records in memory are dropped in portions of so many


class Append(Change):
    """Records under way.

    ``resident``: the records, when their class keeps them in memory only. ``ceiling``: up to which
    seq the frames reserve, 0 when they do not; ``ts_ceiling``: the same for `$ts`. ``tags``:
    ``(index, tag)`` of each record that has one. ``due``: of each record when it may be delivered
    (wall ms), 0 for at once; empty when all are. ``followers``: retries of the same key, which the
    caller answers.
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
        # Without a call of `Change.__init__` for each write.
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
        """Seq of the last record."""
        return self.first_seq + self.count - 1

    def commit_records(
        self, table: TopicTable, locator: Locator, now: Now, generation: int
    ) -> None:
        """Make the records readable. ``generation``: LSN at which their log file begins; their tags
        are dropped with it.
        """
        topic = self.topic
        topic.pending -= 1
        if self.sync:
            topic.pending_sync -= 1
        if self.ceiling:
            topic.reserved(self.ceiling)
        if self.ts_ceiling:
            table.ts_reserved(self.ts_ceiling)
        size = self.size
        topic.pending_bytes -= size
        # `Topic.commit_records`, inline.
        first_seq, count, ts = self.first_seq, self.count, self.ts
        assert first_seq > topic.head_seq, "writes are committed in seq order"
        topic.index.add(first_seq, count, locator, size, ts)
        topic.head_seq = first_seq + count - 1
        topic.count += count
        topic.bytes += size
        topic.last_write_ts = ts
        if self.due:
            _delay(topic, self.first_seq, self.due, now)
        if self.key is not None:
            topic.pending_keys.pop(self.key, None)
            window_ms = topic.config.idempotency_window_ms
            topic.dedupe.remember(self.key, self.first_seq, self.count, now.ms, window_ms)
        if locator >= FIRST_MEMORY:
            generation = -1 - self.first_seq // MEMORY_GENERATION_SEQS
        else:
            topic.logged_seq = topic.head_seq
        if self.tags:
            topic.note_tags(self.first_seq, self.tags, generation)
        if topic.capped:
            apply_caps(topic, table.store)

    def undo(self, table: TopicTable, /) -> None:
        """Give seqs, bytes and key back. A streamed append may be decided and not yet under way."""
        self.note_settled()
        topic = self.topic
        assert topic.next_seq == self.last_seq + 1, "the last write is undone first"
        topic.give_back(self.first_seq)
        topic.pending_bytes -= self.size
        if self.key is not None:
            del topic.pending_keys[self.key]
        if self.ceiling:
            topic.forget_reservation(self.ceiling)
        if self.ts_ceiling:
            table.forget_ts_reservation()
        if self.created:
            table.dismiss(topic)


class InFlightDuplicate(NamedTuple):
    """A retry whose first attempt, ``leader``, is under way: it gets the answer of that one."""

    leader: Append


# Deciding


def decide(
    table: TopicTable, name: str, body: AppendBody, now: Now, prefixes: list[str] | None = None
) -> Append | InFlightDuplicate | DedupeEntry:
    """Give the records their seqs (§2), unless their key is known.

    Raises `TopicFull` when they do not fit and the topic rejects, `TopicNotFound` when it is not to
    be made.
    """
    topic = table.by_name.get(name)
    made = topic is None
    key = body.idempotency_key
    if topic is None:
        topic = put_topic.new_topic_for(table, name, body, now, prefixes)
    elif body.config is not None:
        put_topic.check_inline_config(name, body.config)
    if key is not None:
        duplicate = None if made else find_duplicate(topic, key, now)
        if duplicate is not None:
            return duplicate
        key = key if keeps_key(topic, key) else None
    ts = max(now.ts, topic.last_ts)
    due = () if isinstance(body, PlainAppend) else due_times(topic, body, now)
    encoded = encode(body, topic.next_seq, ts, key is not None, due or None)
    flags, count, ext, parts, size = encoded
    if topic.config.discard == "reject":
        check_topic_room(topic, count, size)
    if made or table.byte_quota is not None:
        _take_room(table, topic, size, is_new=made)
    change = Append(topic, topic.next_seq, count, size, ts, key)
    if made:
        _begin_with_topic(table, change, now)
    else:
        begin(change)
    if flags & _TAGS:
        change.tags = _tags_of(body)
    change.due = due
    if topic.config.durability == "ephemeral":
        change.resident = encoded
        keep_in_memory(table, change, topic.reserving_seq, now)
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
    """Give seqs to a write that is rendered run by run, of ``size`` bytes. The topic has no other
    change under way. ``due``: as `due_times` gives it.

    Its frame holds no records: they must be durable in a blob before it is written.
    """
    assert not topic.pending, "a streamed append has its topic to itself"
    check_topic_room(topic, len(body.records), size)
    take_bytes(table, topic, size)
    key, ts = body.idempotency_key, max(now.ts, topic.last_ts)
    if key is not None and not keeps_key(topic, key):
        key = None
    change = Append(topic, topic.next_seq, len(body.records), size, ts, key)
    begin(change)
    change.due = due
    if topic.config.durability == "ephemeral":
        # A reservation under way may fail while the records are still being rendered: only what is
        # reserved durably counts.
        keep_in_memory(table, change, topic.reserved_seq, now)
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
    """Make the topic that a streamed append asks for, before its records. ``size``: their bytes,
    where it matters; room for them is kept until `decide_streamed` or `TopicTable.let_go`.
    """
    topic = put_topic.new_topic_for(table, name, body, now, prefixes)
    check_topic_room(topic, len(body.records), size)
    due_times(topic, body, now)
    change = put_topic.make(table, topic, now)
    if table.byte_quota is not None:
        try:
            table.byte_quota.hold(topic, size)
        except TopicsError:
            change.undo(table)
            table.byte_quota.recharge(topic)
            raise
    return change


def find_duplicate(topic: Topic, key: str, now: Now) -> InFlightDuplicate | DedupeEntry | None:
    """The write that an idempotency key stands for, if it has been used (§0.8)."""
    leader = topic.pending_keys.get(key)
    if leader is not None:
        assert isinstance(leader, Append), "only appends have keys"
        return InFlightDuplicate(leader)
    window_ms = topic.config.idempotency_window_ms
    return topic.dedupe.find(key, now.ms, window_ms, topic.keys_from_seq)


def keeps_key(topic: Topic, key: str) -> bool:
    """Whether the key of a write is kept: with a window of 0 that of a copy alone."""
    return topic.config.idempotency_window_ms > 0 or is_copy_key(key)


def check_topic_room(topic: Topic, count: int, size: int) -> None:
    """Raises `TopicFull` when the topic rejects what it has no room for (§1.1)."""
    pending = topic.next_seq - topic.head_seq - 1 - topic.pending_burnt
    check_room(
        topic.config,
        topic.count + pending + count,
        topic.bytes + topic.pending_bytes + size,
        topic.name,
    )


def take_bytes(table: TopicTable, topic: Topic, size: int) -> None:
    """Charge the topic for a write that is decided now (§11). Raises as `SharedCap.take`."""
    if table.byte_quota is not None:
        table.byte_quota.take(topic, size)


def _take_room(table: TopicTable, topic: Topic, size: int, *, is_new: bool) -> None:
    """The topic's place, if it is new, and the bytes of its write: both or none."""
    if is_new:
        table.admit(topic)
    try:
        take_bytes(table, topic, size)
    except TopicsError:
        if is_new:
            table.dismiss(topic)
        raise


def due_times(topic: Topic, body: AppendBody, now: Now) -> Sequence[int]:
    """When each record may be delivered (wall ms), 0 for at once; empty when all are.

    Raises `InvalidRequest` for a delay on a log, and for a time that is too far ahead.
    """
    if isinstance(body, PlainAppend) or not has_delays(body.records):
        return ()
    if topic.jobs is None:
        raise InvalidRequest("only a record for a queue may have a delay", field="delay_ms")
    due = []
    for index, record in enumerate(body.records):
        at = record.deliver_at if record.deliver_at is not None else now.ts + (record.delay_ms or 0)
        if at > now.ts + DELAY_MS_MAX:
            raise InvalidRequest(
                f"record {index}: a delay has at most {DELAY_MS_MAX} ms", index=index
            )
        due.append(at if at > now.ts else 0)
    return due if any(due) else ()


def _delay(topic: Topic, first_seq: int, due: Sequence[int], now: Now) -> None:
    """Some of the records, of a queue, are delivered later."""
    assert topic.jobs is not None, "only jobs have delays"
    for seq, due_ts in enumerate(due, first_seq):
        if due_ts:
            topic.jobs.delay(seq, due_ts, now)


def begin(change: Append) -> None:
    """The topic gives its next seqs to this write, which is pending from now on."""
    topic = change.topic
    if change.key is not None:
        topic.note_pending_key(change.key, change)
    topic.last_ts = change.ts
    topic.next_seq = next_seq = change.first_seq + change.count
    topic.pending_bytes += change.size
    topic.pending += 1
    if (
        change.sync
        or topic.pending_sync > 0
        or topic.config.durability == "fsync"
        or next_seq > topic.reserved_seq + 1
    ):
        change.sync = True
        topic.pending_sync += 1


def _begin_with_topic(table: TopicTable, change: Append, now: Now) -> None:
    """Make the topic, which is admitted, with its first write. Its frame holds the head, so it is
    encoded before the seqs are handed out.
    """
    change.frames.append(put_topic.frame_of(change.topic, now))
    change.created = change.is_config = change.sync = True
    begin(change)
    change.ts_ceiling = table.reserve_ts(now)


def keep_in_memory(table: TopicTable, change: Append, reserved_seq: int, now: Now) -> None:
    """The log does not hold these records: their seqs are reserved before they are acknowledged.

    ``reserved_seq``: the reservation that is sure to hold when the frames of this change are
    written.
    """
    topic = change.topic
    if change.last_seq > reserved_seq:
        change.ceiling = topic.reserve_above(change.last_seq)
        change.frames.append(seqs_reserved_frame(topic.id, change.ceiling))
    # About once a second such a write waits for a reservation of `$ts`. The log knows every `$ts`
    # that is above the clock.
    if now.ts > table.reserved_ts or (
        now.ts + TS_AHEAD_MS // 2 > table.reserved_ts == table.reserving_ts
    ):
        change.ts_ceiling = table.reserve_ts(now)
        change.frames.append(ts_reserved_frame(now.ts))
    topic.note_resident(change.first_seq, change.last_seq)


def _tags_of(body: AppendBody) -> list[tuple[int, bytes]]:
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
    """The topic, None for a write that is passed over. ``external_size``: bytes of its records in a
    blob; ``generation``: LSN at which the log file begins. Raises `Misfit`.
    """
    _, _, lsn, _, topic_id, first_seq, ts_ms, body_len, count, ext_len, _, flags, _ = header
    table = replay.table
    topic = table.by_id.get(topic_id)
    if topic is None or first_seq <= topic.head_seq:
        if checkpointed:
            return None
        raise Misfit(
            "the topic is not known" if topic is None else f"seq {first_seq} is there already"
        )
    # `Topic.commit_records` and more, inline: a start replays frames by the million.
    size = external_size or (
        blob_bytes(body_len, ext_len, count, flags) if flags else body_len - ext_len - 4 * count
    )
    locator = in_log(lsn)
    topic.index.add(first_seq, count, locator, size, ts_ms)
    topic.next_seq = next_seq = first_seq + count
    topic.head_seq = topic.logged_seq = next_seq - 1
    topic.count += count
    topic.bytes += size
    if ts_ms >= topic.last_ts:  # the checkpoint may hold a later one, of records in memory
        topic.last_write_ts = topic.last_ts = ts_ms
    if first_seq < topic.start_seq:
        trim(topic, len(topic.index) - 1, table.store)
    if flags & _TAGS:
        tagged = table.store.records(locator).tagged(0, count)
        topic.note_tags(first_seq, tagged, generation)
    if flags & _DELAYS:
        note_delays(replay, topic, lsn, first_seq)
    if topic.capped and lsn >= replay.news_from(topic):
        apply_caps(topic, table.store)
    return topic
