"""The rules of one shard: its topics, and what each command does to them. Pure: the clock comes in, what must happen comes out.

    decide  ->  Change  ->  (the caller makes its frames durable)  ->  commit
                                                                  '->  undo, when that failed

A decision gives out seqs and notes what is on its way; only `ShardEngine.commit` makes it visible. Changes of a topic are committed
in the order in which they were decided. When the log fails, every change that is not yet committed is undone, last first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import cbor2
import msgspec

from topics.engine.dedupe import Remembered
from topics.engine.topic import RESERVE_MIN, Topic
from topics.errors import Forbidden, TopicNotEmpty, TopicNotFound
from topics.formats import records
from topics.formats.names import covered
from topics.formats.records import EncodedRecords, RecordFlags, Rendering
from topics.formats.requests import AppendBody
from topics.formats.topic_config import TopicConfig, TopicConfigPatch, merge
from topics.formats.wal import Frame, FrameHeader, FrameKind


class Now(NamedTuple):
    """Both clocks in milliseconds: ``ts`` is what people read, ``ms`` never steps and measures durations."""

    ts: int
    ms: int


class Change:
    """A decided change of one topic. ``sync``: it may be answered only after a sync of its frames."""

    __slots__ = ("frames", "sync", "topic")

    def __init__(self, topic: Topic, frames: list[Frame], sync: bool) -> None:
        self.topic, self.frames, self.sync = topic, frames, sync


class Append(Change):
    """Records on their way. ``resident`` holds them when the class keeps them in memory only.

    ``ceiling``: up to which seq the frames reserve, 0 when they do not.
    """

    __slots__ = ("ceiling", "count", "created", "first_seq", "followers", "key", "resident", "size", "ts")

    def __init__(self, topic: Topic, first_seq: int, count: int, size: int, ts: int, key: str | None) -> None:
        super().__init__(topic, [], False)
        self.first_seq, self.count, self.size, self.ts, self.key = first_seq, count, size, ts, key
        self.created = False
        self.ceiling = 0
        self.resident: EncodedRecords | None = None
        self.followers: list[Any] = []  # retries of the same key that came meanwhile; the caller answers them

    @property
    def last_seq(self) -> int:
        """Seq of the last record."""
        return self.first_seq + self.count - 1


class Follow(NamedTuple):
    """A retry whose first attempt, ``leader``, is still on its way: it gets that one's answer."""

    leader: Append


class Put(Change):
    """A topic made or configured; ``before`` is the config to return to."""

    __slots__ = ("before", "created")

    def __init__(self, topic: Topic, frames: list[Frame], before: TopicConfig | None) -> None:
        super().__init__(topic, frames, True)
        self.before, self.created = before, before is None


class Delete(Change):
    """A topic that is going."""

    __slots__ = ()


class Reservation(Change):
    """Seqs promised to the disk ahead of use."""

    __slots__ = ("ceiling",)

    def __init__(self, topic: Topic, ceiling: int) -> None:
        super().__init__(topic, [_reserving_frame(topic, ceiling)], True)
        self.ceiling = ceiling


class ShardEngine:
    """Topics of one shard. Ids are unique over all shards and never used again: ``id % shards == shard``."""

    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        self.shard, self.shards = shard, shards
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.last_id = shard
        self.last_epoch = 0

    # Decisions

    def topic(self, name: str) -> Topic:
        """The topic of that name; raises `TopicNotFound`."""
        found = self.topics.get(name)
        if found is None:
            raise TopicNotFound(name)
        return found

    def append(self, name: str, body: AppendBody, now: Now, prefixes: list[str] | None = None) -> Append | Follow | Remembered:
        """Give the records their seqs (§2), unless their key is known: then what it stands for, or whom to follow."""
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
        making = []
        if created:
            self._add(topic)
            making = [_topic_frame(topic, now)]  # before the seqs are handed out: it tells the head
        change = self._begin(topic, body, ts, encoded.blob_bytes)
        if making:
            change.created = change.sync = True
            change.frames += making
        if topic.config.durability == "ephemeral":
            change.resident = encoded
            self._reserve_with(change)
        else:
            flags, count, ext, parts, _ = encoded
            change.frames.append(Frame(FrameKind.APPEND, topic.id, change.first_seq, ts, count, flags, len(ext), parts))
        self._note_pending(change)
        return change

    def append_long(self, topic: Topic, body: AppendBody, rendering: Rendering, size: int, now: Now) -> Append:
        """The same for a write that is rendered run by run, on a topic that has no other change under way.

        Its frame holds no records: they must be durable in a blob before it is written.
        """
        assert not topic.pending, "a long write has its topic to itself"
        change = self._begin(topic, body, max(now.ts, topic.last_ts), size)
        if topic.config.durability != "ephemeral":
            flags, ext = rendering.flags | RecordFlags.EXTERNAL, rendering.ext
            frame = Frame(FrameKind.APPEND, topic.id, change.first_seq, change.ts, change.count, flags, len(ext), (ext,))
            change.frames.append(frame)
        else:
            self._reserve_with(change)
        self._note_pending(change)
        return change

    def known(self, topic: Topic, key: str, now: Now) -> Follow | Remembered | None:
        """What an idempotency key stands for, if it has been used (§0.8)."""
        leader = topic.pending_keys.get(key)
        if leader is not None:
            assert isinstance(leader, Append)
            return Follow(leader)
        return topic.dedupe.find(key, now.ms, topic.config.idempotency_window_ms)

    def _begin(self, topic: Topic, body: AppendBody, ts: int, size: int) -> Append:
        """Hand out the seqs."""
        key = body.idempotency_key if keeps_key(topic, body) else None
        change = Append(topic, topic.next_seq, len(body.records), size, ts, key)
        topic.last_ts = ts
        topic.next_seq += change.count
        if key is not None:
            topic.pending_keys[key] = change
        change.sync = topic.pending_sync > 0 or topic.config.durability == "fsync" or change.last_seq > topic.reserved_seq
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

    def create(self, name: str, body: AppendBody, now: Now, prefixes: list[str] | None = None) -> Put:
        """Make the topic that a long write asks for, before its records."""
        topic = self._create_for(name, body, now, prefixes)
        self._add(topic)
        change = Put(topic, [_topic_frame(topic, now)], None)
        self._note_pending(change)
        return change

    def put(self, name: str, patch: TopicConfigPatch, now: Now, prefixes: list[str] | None = None) -> Put:
        """Create or configure a topic (§1.1). Without a difference there is no frame, but still the wait for earlier ones."""
        topic = self.topics.get(name)
        config = merge(name, topic.config if topic else None, patch)
        _check_prefixes(config, prefixes)
        if topic is None:
            topic = self._new_topic(name, config, now)
            self._add(topic)
            change = Put(topic, [_topic_frame(topic, now)], None)
        else:
            before, topic.config = topic.config, config
            if config.idempotency_window_ms > before.idempotency_window_ms:
                topic.dedupe.expire(now.ms, before.idempotency_window_ms)  # a key whose time was over does not come back
            change = Put(topic, [_topic_frame(topic, now)] if config != before else [], before)
            change.sync = bool(change.frames) or topic.pending_sync > 0
        self._note_pending(change)
        return change

    def delete(self, name: str, if_empty: bool, now: Now) -> Delete | None:
        """Remove a topic with everything in it (§1.4); None when there is none. Raises `TopicNotEmpty`."""
        topic = self.topics.get(name)
        if topic is None:
            return None
        if if_empty and (topic.count or topic.next_seq > topic.head_seq + 1):
            raise TopicNotEmpty(f'topic "{name}" holds records', topic=name, count=topic.count)
        self._remove(topic)
        change = Delete(topic, [Frame(FrameKind.TOPIC_DELETED, topic.id, ts_ms=now.ts)], True)
        self._note_pending(change)
        return change

    # What became of them

    def commit(self, change: Change, place: int, now: Now) -> None:
        """The frames are as durable as the class promises; ``place`` is where an append's records can be found again."""
        topic = change.topic
        if isinstance(change, Reservation):
            topic.reserved_seq = max(topic.reserved_seq, change.ceiling)
            return
        topic.pending -= 1
        if change.sync:
            topic.pending_sync -= 1
        if isinstance(change, Append):
            topic.reserved_seq = max(topic.reserved_seq, change.ceiling)
            topic.commit_records(change.first_seq, change.count, place, change.ts, change.size)
            if change.key is not None:
                topic.pending_keys.pop(change.key, None)
                write = Remembered(change.first_seq, change.count, now.ms)
                topic.dedupe.remember(change.key, write, topic.config.idempotency_window_ms)

    def undo(self, change: Change) -> None:
        """The frames could not be written: as if it had never been asked. Called last change first."""
        topic = change.topic
        if isinstance(change, Append | Put) and change.created:
            self._remove(topic)
        elif isinstance(change, Put) and change.before is not None:
            topic.config = change.before
        elif isinstance(change, Delete):
            self._add(topic)
        topic.forget_pending()

    # Replay of the log

    def replay_append(self, header: FrameHeader, external_size: int = 0) -> Topic | None:
        """A write that the log holds; None when its topic is not known, which only a damaged log shows."""
        _, _, place, _, topic_id, first_seq, ts_ms, body_len, count, ext_len, _, flags, _ = header
        topic = self.by_id.get(topic_id)
        if topic is None or first_seq <= topic.head_seq:
            return None
        size = external_size or records.blob_bytes(body_len, ext_len, count, flags)
        topic.commit_records(first_seq, count, place, ts_ms, size)
        topic.last_ts = ts_ms
        topic.next_seq = topic.head_seq + 1
        return topic

    def replay_key(self, topic: Topic, key: str, header: FrameHeader, now: Now) -> None:
        """The idempotency key of a write that was just replayed."""
        age_ms = max(0, now.ts - header.ts_ms)
        topic.dedupe.remember(key, Remembered(header.first_seq, header.record_count, now.ms - age_ms), 1 << 62)

    def replay_topic(self, header: FrameHeader, body: dict[str, Any]) -> None:
        """A topic made or configured."""
        config = msgspec.convert(body["config"], TopicConfig)
        topic = self.by_id.get(header.topic_id)
        if topic is None:
            topic = Topic(header.topic_id, body["name"], body["epoch"], config, header.first_seq)
            self._add(topic)
        topic.config = config
        topic.head_seq = max(topic.head_seq, body["head"])
        topic.next_seq = topic.head_seq + 1

    def replay_deleted(self, header: FrameHeader) -> bool:
        """A topic removed; False when it is not known."""
        topic = self.by_id.get(header.topic_id)
        if topic is None:
            return False
        self._remove(topic)
        return True

    def replay_reserved(self, header: FrameHeader) -> bool:
        """Seqs promised ahead of use; False when the topic is not known."""
        topic = self.by_id.get(header.topic_id)
        if topic is None:
            return False
        topic.reserved_seq = topic.reserving_seq = max(topic.reserved_seq, header.first_seq)
        return True

    def finish_replay(self, now: Now, *, clean: bool, tail_may_be_lost: bool) -> list[Frame]:
        """After the last frame. Where seqs may have gone with unsynced or resident records, go on above the reserved ones.

        The frames say so to the next replay: they must be synced before the first write.
        """
        frames = []
        for topic in self.topics.values():
            resident = topic.config.durability == "ephemeral"
            if not clean and (resident or tail_may_be_lost) and topic.head_seq < topic.reserved_seq:
                topic.head_seq = topic.reserved_seq
                topic.next_seq = topic.head_seq + 1
                frames.append(_topic_frame(topic, now))
            topic.dedupe.expire(now.ms, topic.config.idempotency_window_ms)
        return frames

    # Checkpoint

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint keeps, as plain values."""
        return {
            "last_id": self.last_id,
            "last_epoch": self.last_epoch,
            "topics": [
                {"id": topic.id, "head": topic.head_seq, "ts": topic.last_ts, "window": topic.config.idempotency_window_ms}
                for topic in self.topics.values()
            ],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Heads of a checkpoint, laid over the replayed log."""
        self.last_id = max(self.last_id, snapshot["last_id"])
        self.last_epoch = max(self.last_epoch, snapshot["last_epoch"])
        for kept in snapshot["topics"]:
            topic = self.by_id.get(kept["id"])
            if topic is not None:
                topic.head_seq = max(topic.head_seq, kept["head"])
                topic.next_seq = topic.head_seq + 1
                topic.last_ts = max(topic.last_ts, kept["ts"])

    # Lists

    def names(self, prefix: str, after: str | None, prefixes: list[str] | None) -> Iterator[str]:
        """Names of topics in order, those past ``after`` (§1.3)."""
        return iter(sorted(_matching(self.topics, prefix, after, prefixes)))

    # Inside

    def _create_for(self, name: str, body: AppendBody, now: Now, prefixes: list[str] | None) -> Topic:
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
        return Topic(self.last_id + self.shards, name, epoch, config, 0 if config.durability == "fsync" else RESERVE_MIN)

    def _add(self, topic: Topic) -> None:
        topic.deleted = False
        self.topics[topic.name] = self.by_id[topic.id] = topic
        self.last_id = max(self.last_id, topic.id)
        self.last_epoch = max(self.last_epoch, topic.epoch)

    def _remove(self, topic: Topic) -> None:
        topic.deleted = True
        del self.by_id[topic.id]
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]

    def _reserve_with(self, change: Append) -> None:
        """The log will not tell of these records after a power loss, so their seqs are reserved before they are acknowledged."""
        topic = change.topic
        ceiling = topic.reservation_after(change.last_seq)
        if ceiling is not None and change.last_seq > topic.reserving_seq:
            topic.reserving_seq = change.ceiling = ceiling
            change.frames.append(_reserving_frame(topic, ceiling))

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


def _check_prefixes(config: TopicConfig, prefixes: list[str] | None) -> None:
    if config.dead_letter is not None and not covered(config.dead_letter, prefixes):
        raise Forbidden("dead_letter is outside the key's prefixes", field="dead_letter")


def _reserving_frame(topic: Topic, ceiling: int) -> Frame:
    return Frame(FrameKind.SEQS_RESERVED, topic.id, ceiling)


def _topic_frame(topic: Topic, now: Now) -> Frame:
    body = cbor2.dumps(
        {"name": topic.name, "epoch": topic.epoch, "config": msgspec.structs.asdict(topic.config), "head": topic.next_seq - 1}
    )
    return Frame(FrameKind.TOPIC, topic.id, topic.reserved_seq, now.ts, ext_len=len(body), parts=(body,))


def _matching(names: Iterable[str], prefix: str, after: str | None, prefixes: list[str] | None) -> list[str]:
    return [name for name in names if name.startswith(prefix) and (after is None or name > after) and covered(name, prefixes)]


__all__ = ["Append", "Change", "Delete", "Follow", "Now", "Put", "Reservation", "ShardEngine", "check_inline_config", "keeps_key"]
