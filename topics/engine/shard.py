"""The rules of one shard: its topics, and what each command does to them. Pure: the clock comes in,
what must happen comes out.

    decide  ->  Change  ->  (the caller makes its frames durable)  ->  commit
                                                                  '->  undo, when that failed

A decision gives out seqs and notes what is on its way; only `ShardEngine.commit` makes it visible.
Changes of a topic are committed in the order in which they were decided. When the log fails, every
change that is not yet committed is undone, last first.
"""

from __future__ import annotations

from typing import cast

from topics.engine.changes import (
    Append,
    Change,
    Delete,
    DeleteRecords,
    FloorMoved,
    InFlightDuplicate,
    Now,
    Put,
    Reservation,
    delete_frame,
    floor_frame,
    reserving_frame,
    topic_frame,
    ts_reserving_frame,
)
from topics.engine.dedupe import DedupeEntry
from topics.engine.locators import Locator, is_extent, is_in_memory
from topics.engine.record_index import IndexEntry
from topics.engine.replay import Misfit, Replay
from topics.engine.retention import apply_caps, cut_to, delete_runs, first_not_before, fits
from topics.engine.store import Unreadable
from topics.engine.tags import json_prefix
from topics.engine.topic import RESERVE_MIN, Topic
from topics.errors import Forbidden, TopicFull, TopicNotEmpty, TopicNotFound
from topics.formats.api.requests import AppendBody, PlainAppend, TagMatch, json_string
from topics.formats.api.topic_config import TopicConfig, TopicConfigPatch, merge
from topics.formats.disk import records
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.records import RecordFlags, Rendering
from topics.formats.disk.wal import TS_AHEAD_MS, Frame, FrameKind
from topics.formats.names import covered
from topics.formats.ranges import runs_of_seqs

_TAGS = int(RecordFlags.TAGS)
RESIDENT_GENERATION_SEQS = 1 << 16  # tags of records in memory are let go in such portions


class ShardEngine(Replay):
    """Topics of one shard."""

    # Decisions

    def append(
        self, name: str, body: AppendBody, now: Now, prefixes: list[str] | None = None
    ) -> Append | InFlightDuplicate | DedupeEntry:
        """Give the records their seqs (§2), unless their key is known: then what it stands for, or
        whom to follow.

        Raises `TopicFull` when they do not fit and the topic rejects, `TopicNotFound` when it is
        not to be made.
        """
        topic = self.topics.get(name)
        created = topic is None
        check_inline_config(name, body)
        if topic is None:
            topic = self._create_for(name, body, now, prefixes)
        if body.idempotency_key is not None and not created:
            known = self.known(topic, body.idempotency_key, now)
            if known is not None:
                return known
        ts = max(now.ts, topic.last_ts)
        encoded = records.encode(body, topic.next_seq, ts, keeps_key(topic, body))
        if topic.config.discard == "reject":
            _check_room(topic, encoded.record_count, encoded.blob_bytes)
        making = []
        if created:
            self._add(topic)
            making = [topic_frame(topic, now)]  # before the seqs are handed out: it tells the head
        change = self._begin(topic, body, ts, encoded.blob_bytes)
        if making:
            change.created = change.sync = True
            change.frames += making
            change.ts_ceiling = self._reserving_ts(now)
        flags, count, ext, parts, _ = encoded
        if flags & _TAGS:
            change.tags = _tagged(body)
        if topic.config.durability == "ephemeral":
            change.resident = encoded
            self._keep_in_memory(change, topic.reserving_seq, now)
        else:
            change.frames.append(
                Frame(
                    FrameKind.APPEND, topic.id, change.first_seq, ts, count, flags, len(ext), parts
                )
            )
        self._note_pending(change)
        return change

    def append_streamed(
        self, topic: Topic, body: AppendBody, rendering: Rendering, size: int, now: Now
    ) -> Append:
        """The same for a write that is rendered run by run, on a topic that has no other change
        under way.

        Its frame holds no records: they must be durable in a blob before it is written.
        """
        assert not topic.pending, "a long write has its topic to itself"
        _check_room(topic, len(body.records), size)
        change = self._begin(topic, body, max(now.ts, topic.last_ts), size)
        if topic.config.durability != "ephemeral":
            flags, ext = rendering.flags | RecordFlags.EXTERNAL, rendering.ext
            frame = Frame(
                FrameKind.APPEND,
                topic.id,
                change.first_seq,
                change.ts,
                change.count,
                flags,
                len(ext),
                (ext,),
            )
            change.frames.append(frame)
        else:
            # A reservation that is on its way may fail while the records are still being rendered.
            self._keep_in_memory(change, topic.reserved_seq, now)
        if rendering.flags & _TAGS:
            change.tags = _tagged(body)
        self._note_pending(change)
        return change

    def known(self, topic: Topic, key: str, now: Now) -> InFlightDuplicate | DedupeEntry | None:
        """What an idempotency key stands for, if it has been used (§0.8)."""
        leader = topic.pending_keys.get(key)
        if leader is not None:
            assert isinstance(leader, Append)
            return InFlightDuplicate(leader)
        return topic.dedupe.find(key, now.ms, topic.config.idempotency_window_ms)

    def _begin(self, topic: Topic, body: AppendBody, ts: int, size: int) -> Append:
        """Hand out the seqs."""
        key = body.idempotency_key if keeps_key(topic, body) else None
        change = Append(topic, topic.next_seq, len(body.records), size, ts, key)
        topic.last_ts = ts
        topic.next_seq += change.count
        topic.pending_bytes += size
        if key is not None:
            topic.pending_keys[key] = change
        change.sync = (
            topic.pending_sync > 0
            or topic.config.durability == "fsync"
            or change.last_seq > topic.reserved_seq
        )
        return change

    def reserve(self, topic: Topic) -> Reservation | None:
        """The reservation that is due after an append, None for most. No other change waits for it."""
        if topic.config.durability == "fsync":
            return None  # nothing is handed out before its own sync
        ceiling = topic.reservation_after(topic.next_seq - 1)
        if ceiling is None:
            return None
        topic.reserving_seq = ceiling
        return Reservation(topic, ceiling)

    def create(
        self,
        name: str,
        body: AppendBody,
        now: Now,
        prefixes: list[str] | None = None,
        size: int = 0,
    ) -> Put:
        """Make the topic that a long write asks for, before its records. ``size``: their bytes,
        where it matters.
        """
        topic = self._create_for(name, body, now, prefixes)
        _check_room(topic, len(body.records), size)
        self._add(topic)
        change = self._made(topic, now)
        self._note_pending(change)
        return change

    def _made(self, topic: Topic, now: Now) -> Put:
        change = Put(topic, [topic_frame(topic, now)], None)
        change.ts_ceiling = self._reserving_ts(now)
        return change

    def put(
        self, name: str, patch: TopicConfigPatch, now: Now, prefixes: list[str] | None = None
    ) -> Put:
        """Create or configure a topic (§1.1). Without a difference there is no frame, but still the
        wait for earlier ones.
        """
        topic = self.topics.get(name)
        config = merge(name, topic.config if topic else None, patch)
        _check_prefixes(config, prefixes)
        if topic is None:
            topic = self._new_topic(name, config, now)
            self._add(topic)
            change = self._made(topic, now)
        else:
            before, topic.config = topic.config, config
            if config.idempotency_window_ms > before.idempotency_window_ms:
                topic.dedupe.expire(
                    now.ms, before.idempotency_window_ms
                )  # a key whose time was over does not come back
                topic.keys_from_seq = topic.dedupe.oldest_seq(topic.head_seq + 1)
            change = Put(topic, [topic_frame(topic, now)] if config != before else [], before)
            change.sync = bool(change.frames) or topic.pending_sync > 0
            if change.frames:
                change.ts_ceiling = self._reserving_ts(now)
        self._note_pending(change)
        return change

    def delete(self, name: str, if_empty: bool, now: Now) -> Delete | None:
        """Remove a topic with everything in it (§1.4); None when there is none. Raises
        `TopicNotEmpty`.
        """
        topic = self.topics.get(name)
        if topic is None:
            return None
        if if_empty and (topic.count or topic.next_seq > topic.head_seq + 1):
            raise TopicNotEmpty(f'topic "{name}" holds records', topic=name, count=topic.count)
        self._remove(topic)
        change = Delete(topic, [Frame(FrameKind.TOPIC_DELETED, topic.id, ts_ms=now.ts)], True)
        self._note_pending(change)
        return change

    def delete_records(
        self, name: str, before_seq: int | None, match: TagMatch | None, now: Now
    ) -> DeleteRecords:
        """Delete the records below ``before_seq`` that match, of those that are there now (§5).
        Raises `TopicNotFound`.
        """
        topic = self.topic(name)
        bound = topic.head_seq + 1 if before_seq is None else min(before_seq, topic.head_seq + 1)
        runs = None if match is None else runs_of_seqs(self._matching(topic, match, bound))
        change = DeleteRecords(topic, bound, runs, match)
        # What the log does not hold, no replay needs to be told of.
        wanted = topic.start_seq < bound if runs is None else bool(runs)
        if wanted and (runs[0][0] if runs else topic.start_seq) <= topic.logged_seq:
            change.frames.append(delete_frame(change, now))
        change.sync = topic.pending_sync > 0 or (bool(change.frames) and topic.config.durable)
        self._note_pending(change)
        return change

    def delete_must_wait(self, name: str) -> bool:
        """Whether a delete of matching records is to be decided only when nothing else is under way
        on its topic.

        A replay lets what this delete names live until it comes to it. Had another delete taken
        some of that before, caps on the way would count it and evict more than they did at first.
        """
        topic = self.topics.get(name)
        return (
            topic is not None
            and topic.pending > 0
            and (topic.capped or topic.config != topic.committed)
        )

    def _matching(self, topic: Topic, match: TagMatch, bound: int) -> list[int]:
        """Seqs below ``bound`` of the records that match, rising; some of them may be gone."""
        start = topic.start_seq
        seqs = [
            seq
            for tags in (topic.tags or {}).values()
            for seq in tags.find(match)
            if start <= seq < bound
        ]
        for entry in topic.index.from_seq(start):
            if entry.first_seq >= bound or entry.first_seq > topic.sealed_seq:
                break
            if entry.size and is_extent(entry.locator):
                seqs += self._matching_in_extent(entry, match, max(start, entry.first_seq), bound)
        seqs.sort()
        return seqs

    def _matching_in_extent(
        self, entry: IndexEntry, match: TagMatch, start: int, bound: int
    ) -> list[int]:
        try:
            view, dead = (
                cast("ExtentView", self.store.records(entry.locator)),
                self.store.delete_flags(entry.locator),
            )
        except (
            Unreadable
        ):  # its tags are unknown, and the rest of the topic is not to stay because of it
            return []
        found = (
            view.find_tag(json_string(match.text))
            if match.op == "Eq"
            else view.find_prefix(json_prefix(match.text))
        )
        alive = found if dead is None else [index for index in found if dead[index] != 1]
        return [seq for index in alive if start <= (seq := entry.first_seq + index) < bound]

    def expire(self, topic: Topic, now: Now) -> FloorMoved | None:
        """Take what is too old, at once, before anything is answered or decided; the change tells
        the log, if it must know.
        """
        logged = topic.start_seq <= topic.logged_seq
        ttl_ms = topic.committed.ttl_ms
        if ttl_ms and topic.count:
            last = cut_to(topic, first_not_before(topic, now.ts - ttl_ms, self.store), self.store)
            topic.ttl_floor = max(topic.ttl_floor, last + 1)
            topic.floor_due |= last > 0 and logged
        if not topic.floor_due:
            return None
        topic.floor_due = False
        return FloorMoved(topic, [floor_frame(topic)], False)

    # What became of them

    def commit(self, change: Change, locator: Locator, now: Now, generation: int = 0) -> None:
        """The frames are as durable as the class promises. ``place`` is where an append's records
        can be found again, ``generation`` the base of the log file, by which its tags are dropped
        when that is sealed.
        """
        topic = change.topic
        if isinstance(change, Append):  # the usual one, so it comes first
            topic.pending -= 1
            if change.sync:
                topic.pending_sync -= 1
            self._commit_append(topic, change, locator, now, generation)
            return
        if isinstance(change, Reservation):
            topic.reserved(change.ceiling)
            return
        if isinstance(change, FloorMoved):
            return
        topic.pending -= 1
        if change.sync:
            topic.pending_sync -= 1
        if isinstance(change, Put):
            self.reserved_ts = max(self.reserved_ts, change.ts_ceiling)
            topic.settle_config(change.config)
            if topic.capped:
                apply_caps(topic, self.store)
        elif isinstance(change, DeleteRecords):
            self._commit_delete(change)

    def _commit_append(
        self, topic: Topic, change: Append, locator: Locator, now: Now, generation: int
    ) -> None:
        if change.ceiling:
            topic.reserved(change.ceiling)
        if change.ts_ceiling > self.reserved_ts:
            self.reserved_ts = change.ts_ceiling
        size = change.size
        topic.pending_bytes -= size
        topic.commit_records(change.first_seq, change.count, locator, change.ts, size)
        if change.key is not None:
            topic.pending_keys.pop(change.key, None)
            write = DedupeEntry(change.first_seq, change.count, now.ms)
            topic.dedupe.remember(change.key, write, topic.config.idempotency_window_ms)
        if is_in_memory(locator):
            generation = -1 - change.first_seq // RESIDENT_GENERATION_SEQS
        else:
            topic.logged_seq = topic.head_seq
        if change.tags:
            self._note_tags(topic, change.first_seq, change.tags, generation)
        if topic.capped:
            apply_caps(topic, self.store)

    def _commit_delete(self, change: DeleteRecords) -> None:
        topic, before = change.topic, change.topic.count
        if change.runs is None:
            cut_to(topic, change.bound, self.store)
        else:
            delete_runs(topic, change.runs, self.store)
        change.deleted = before - topic.count
        if change.match is not None:
            for tags in (topic.tags or {}).values():
                tags.forget(change.match, change.bound)

    def undo(self, change: Change) -> None:
        """The frames could not be written: as if it had never been asked. Last change first, of
        those that are in the log's hands.

        It gives back what this change took, and no more: a streamed append of the topic may be
        decided and not yet in the log's hands.
        """
        topic = change.topic
        if isinstance(change, FloorMoved):
            topic.floor_due = True  # what was shown as gone stays so: tell the log again
            return
        if isinstance(change, Reservation):
            topic.forget_reservation(change.ceiling)
            return
        topic.pending -= 1
        if change.sync:
            topic.pending_sync -= 1
        if isinstance(change, Append):
            self._undo_append(topic, change)
        elif isinstance(change, Put) and change.before is not None:
            topic.config = change.before
        elif isinstance(change, Delete):
            self._add(topic)
        if isinstance(change, Append | Put):
            if change.ts_ceiling:
                self.reserving_ts = self.reserved_ts
            if change.created:
                self._remove(topic)

    @staticmethod
    def _undo_append(topic: Topic, change: Append) -> None:
        assert topic.next_seq == change.last_seq + 1, "the last write is undone first"
        topic.give_back(change.first_seq)
        topic.pending_bytes -= change.size
        if change.key is not None:
            del topic.pending_keys[change.key]
        if change.ceiling:
            topic.forget_reservation(change.ceiling)

    # Inside

    def _create_for(
        self, name: str, body: AppendBody, now: Now, prefixes: list[str] | None
    ) -> Topic:
        config = merge(name, None, body.config or TopicConfigPatch())
        create = body.create
        if create is None:
            create = config.auto_create
        if not create:
            raise TopicNotFound(name)
        _check_prefixes(config, prefixes)
        return self._new_topic(name, config, now)

    def _new_topic(self, name: str, config: TopicConfig, now: Now) -> Topic:
        epoch = max(self.last_epoch + 1, now.ts)
        return Topic(
            self.last_id + self.shards,
            name,
            epoch,
            config,
            0 if config.durability == "fsync" else RESERVE_MIN,
        )

    def _keep_in_memory(self, change: Append, reserved_seq: int, now: Now) -> None:
        """The log will not tell of these records after a power loss, so their seqs are reserved
        before they are acknowledged.

        ``reserved_seq``: up to where that is sure when this change's frames are written.
        """
        topic = change.topic
        if change.last_seq > reserved_seq:
            change.ceiling = topic.reserve_above(change.last_seq)
            change.frames.append(reserving_frame(topic, change.ceiling))
        # About once a second such a write waits until it is written that its time may be used. A
        # `$ts` above the clock is known to the log.
        if now.ts > self.reserved_ts or (
            now.ts + TS_AHEAD_MS // 2 > self.reserved_ts == self.reserving_ts
        ):
            change.ts_ceiling = self._reserving_ts(now)
            change.frames.append(ts_reserving_frame(now))
        topic.note_resident(change.first_seq, change.last_seq)

    def _reserving_ts(self, now: Now) -> int:
        """Up to where the change's frames, which are of now, reserve `$ts`."""
        ceiling = now.ts + TS_AHEAD_MS
        self.reserving_ts = max(self.reserving_ts, ceiling)
        return ceiling

    def _note_pending(self, change: Change) -> None:
        change.topic.pending += 1
        if change.sync:
            change.topic.pending_sync += 1


def check_inline_config(name: str, body: AppendBody) -> None:
    """A bad config is refused also where it would be ignored (§2: the topic exists)."""
    if body.config is not None:
        merge(name, None, body.config)


def keeps_key(topic: Topic, body: AppendBody) -> bool:
    """Whether the write's key will be remembered."""
    return body.idempotency_key is not None and topic.config.idempotency_window_ms > 0


def check_room(config: TopicConfig, count: int, size: int, name: str) -> None:
    """Raises `TopicFull` when a topic that rejects would hold more than its caps."""
    if config.discard == "reject" and not fits(config, count, size):
        raise TopicFull(
            f'topic "{name}" is full',
            topic=name,
            cap_records=config.cap_records,
            cap_bytes=config.cap_bytes,
        )


def _check_room(topic: Topic, count: int, size: int) -> None:
    if topic.config.discard == "reject":
        pending = topic.next_seq - topic.head_seq - 1
        check_room(
            topic.config,
            topic.count + pending + count,
            topic.bytes + topic.pending_bytes + size,
            topic.name,
        )


def _tagged(body: AppendBody) -> list[tuple[int, bytes]]:
    if isinstance(body, PlainAppend):
        return []
    return [
        (index, json_string(record.tag))
        for index, record in enumerate(body.records)
        if record.tag is not None
    ]


def _check_prefixes(config: TopicConfig, prefixes: list[str] | None) -> None:
    if config.dead_letter is not None and not covered(config.dead_letter, prefixes):
        raise Forbidden("dead_letter is outside the key's prefixes", field="dead_letter")


__all__ = [
    "Append",
    "Change",
    "Delete",
    "DeleteRecords",
    "FloorMoved",
    "InFlightDuplicate",
    "Misfit",
    "Now",
    "Put",
    "Reservation",
    "ShardEngine",
    "check_inline_config",
    "check_room",
    "keeps_key",
]
