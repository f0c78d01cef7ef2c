"""A shard's topics, and how they come back: from a checkpoint, from the extents of segments, and
from the frames of the log.

    restore_engine, restore_topic ...  ->  restore_extent ...  ->  replay_* for each frame  ->
    finish_replay

Without a checkpoint the replay begins with the first frame that there ever was. With one, frames
are replayed over a state that is newer than they are: ``checkpointed`` says that a frame stands
below the checkpoint's position, where it may tell of what is known already, or of a topic that has
gone since. Nothing else may: `Misfit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from topics.engine.changes import Now, floors, runs_of_frame, topic_frame
from topics.engine.dedupe import DedupeEntry
from topics.engine.locators import Locator, in_log
from topics.engine.retention import (
    apply_caps,
    cut_to,
    delete_runs,
    lose,
    lose_damaged,
    settle,
    trim,
)
from topics.engine.store import DeleteFlags, Store
from topics.engine.tags import TagIndex
from topics.engine.topic import Topic
from topics.errors import TopicNotFound
from topics.formats.api.topic_config import TopicConfig
from topics.formats.buffers import Buffer
from topics.formats.disk.records import RecordFlags, blob_bytes
from topics.formats.disk.wal import TS_AHEAD_MS, Frame, FrameHeader
from topics.formats.names import covered
from topics.formats.ranges import SeqRange, seq_ranges, united

_TAGS = int(RecordFlags.TAGS)


class Misfit(Exception):
    """A frame or an extent that cannot follow on what came before it: something is damaged or
    missing.
    """


class TopicTable:
    """Topics of one shard. Ids are unique over all shards and never used again: ``id % shards ==
    shard``.

    ``store`` reaches their records. It must be set before anything is taken from a topic: by caps,
    age, deletes, or a replay.
    """

    store: Store

    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        self.shard, self.shards = shard, shards
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.last_id = shard
        self.last_epoch = 0
        # No record in memory has a `$ts` above it, unless the log or a checkpoint knows its topic
        # to be there.
        self.reserved_ts = self.reserving_ts = 0
        self.delete_flags = (
            DeleteFlags()
        )  # of records that are in no segment; for the store to keep

    def topic(self, name: str) -> Topic:
        """The topic of that name; raises `TopicNotFound`."""
        found = self.topics.get(name)
        if found is None:
            raise TopicNotFound(name)
        return found

    def names(self, prefix: str, after: str | None, prefixes: list[str] | None) -> Iterator[str]:
        """Names of topics in order, those past ``after`` (§1.3)."""
        return iter(sorted(_matching(self.topics, prefix, after, prefixes)))

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

    def _note_tags(
        self, topic: Topic, first_seq: int, tagged: Iterable[tuple[int, bytes]], generation: int
    ) -> None:
        if topic.tags is None:
            topic.tags = {}
        index = topic.tags.get(generation)
        if index is None:
            index = topic.tags[generation] = TagIndex()
        index.add(tagged, first_seq)


class Replay(TopicTable):
    """How topics come back."""

    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        super().__init__(shard, shards)
        # By topic id, of topics that came from a checkpoint: their head, and the position from
        # which on frames are news.
        self._restored: dict[int, tuple[int, int]] = {}

    # Frames

    def replay_append(
        self,
        header: FrameHeader,
        external_size: int = 0,
        generation: int = 0,
        checkpointed: bool = False,
    ) -> Topic | None:
        """A write; None when it is passed over. ``generation``: base of the log file. Raises
        `Misfit`.
        """
        _, _, lsn, _, topic_id, first_seq, ts_ms, body_len, count, ext_len, _, flags, _ = header
        topic = self.by_id.get(topic_id)
        if topic is None or first_seq <= topic.head_seq:
            if not checkpointed:
                raise Misfit(
                    "the topic is not known"
                    if topic is None
                    else f"seq {first_seq} is there already"
                )
            return None
        locator = in_log(lsn)
        # `commit_records` and more, for each of the many frames of a start.
        size = external_size or (
            blob_bytes(body_len, ext_len, count, flags) if flags else body_len - ext_len - 4 * count
        )
        topic.index.add(first_seq, count, locator, size, ts_ms)
        topic.next_seq = next_seq = first_seq + count
        topic.head_seq = topic.logged_seq = next_seq - 1
        topic.count += count
        topic.bytes += size
        if ts_ms >= topic.last_ts:  # a checkpoint may know of later ones, which were in memory
            topic.last_write_ts = topic.last_ts = ts_ms
        if first_seq < topic.start_seq:
            trim(topic, len(topic.index) - 1, self.store)
        if flags & _TAGS:
            self._note_tags(
                topic, first_seq, self.store.records(locator).tagged(0, count), generation
            )
        if topic.capped and lsn >= self._news_from(topic):
            apply_caps(topic, self.store)
        return topic

    def replay_topic(self, header: FrameHeader, body: dict[str, Any]) -> None:
        """A topic made or configured. One that the checkpoint no longer knows comes back until its
        end is replayed too.
        """
        self.replay_ts_reserved(header)
        config = msgspec.convert(body["config"], TopicConfig)
        topic = self.by_id.get(header.topic_id)
        if topic is None:
            topic = Topic(header.topic_id, body["name"], body["epoch"], config, header.first_seq)
            self._add_older(topic)
        elif header.position < self._news_from(topic):
            return
        topic.config = config
        topic.settle_config(config)
        topic.last_ts = max(topic.last_ts, body.get("last_ts", 0))
        topic.keys_from_seq = max(topic.keys_from_seq, body.get("keys_from", 0))
        topic.losses = seq_ranges(body.get("losses", ()))
        topic.damaged = united(topic.damaged, seq_ranges(body.get("damaged", ())))
        topic.head_seq = max(topic.head_seq, body["head"])
        topic.next_seq = topic.head_seq + 1
        self._raise_floors(topic, body.get("floors", (1, 1, 1)), body.get("start", 1))
        if topic.capped:
            apply_caps(topic, self.store)

    def replay_deleted(self, header: FrameHeader, *, checkpointed: bool = False) -> None:
        """A topic removed. Raises `Misfit`."""
        topic = self._known(header, checkpointed)
        if topic is not None:
            self.delete_flags.forget(topic.index.locators())
            self._remove(topic)

    def replay_reserved(self, header: FrameHeader, *, checkpointed: bool = False) -> None:
        """Seqs promised ahead of use. Raises `Misfit`."""
        topic = self._known(header, checkpointed)
        if topic is not None:
            topic.reserved_seq = topic.reserving_seq = max(topic.reserved_seq, header.first_seq)

    def replay_ts_reserved(self, header: FrameHeader) -> None:
        """Times promised ahead of use."""
        self.reserved_ts = max(self.reserved_ts, header.ts_ms + TS_AHEAD_MS)

    def replay_start(self, header: FrameHeader) -> None:
        """A process began: what it found reserved it put into the topics."""
        self.reserved_ts = header.ts_ms + TS_AHEAD_MS

    def replay_delete(
        self, header: FrameHeader, body: Buffer, *, checkpointed: bool = False
    ) -> None:
        """Records deleted; doing it twice does no harm. Raises `Misfit`."""
        topic = self._known(header, checkpointed)
        if topic is None:
            return
        if header.record_count:
            delete_runs(topic, runs_of_frame(body), self.store)
        else:
            cut_to(topic, header.first_seq, self.store)

    def replay_floor(self, header: FrameHeader, body: Any, *, checkpointed: bool = False) -> None:
        """Records gone of themselves. Raises `Misfit`."""
        topic = self._known(header, checkpointed)
        if topic is not None and header.position >= self._news_from(topic):
            self._raise_floors(topic, body, header.first_seq)

    def finish_replay(
        self,
        now: Now,
        watched: Callable[[Iterable[Topic]], Iterable[Topic]] = iter,
        *,
        clean: bool,
        tail_may_be_lost: bool,
    ) -> list[Frame]:
        """After the last frame. Where seqs may have gone with unsynced or resident records, go on
        above the reserved ones; where records in memory have gone, at the reserved `$ts`.

        ``watched`` gives the topics back as they are, and sees how far we are.

        The frames say so to the next replay: they must be synced before the first write.
        """
        frames = []
        for topic in watched(self.topics.values()):
            restored_head, _ = self._restored.get(topic.id, (0, 0))
            topic.head_seq = max(topic.head_seq, restored_head)
            durability = topic.config.durability
            # The frame that made a topic `fsync` was synced together with every write before it,
            # and tells the head.
            at_risk = durability == "ephemeral" or (tail_may_be_lost and durability != "fsync")
            skipped = not clean and at_risk and topic.head_seq < topic.reserved_seq
            if skipped:
                lose(topic, SeqRange(topic.head_seq + 1, topic.reserved_seq))
            topic.next_seq = topic.head_seq + 1
            self._lose_again(topic)
            settle(topic, self.store)
            if skipped:
                # Of others all seqs that were given are known, and with them the last `$ts`.
                if durability == "ephemeral":
                    topic.last_ts = max(topic.last_ts, self.reserved_ts)
                frames.append(topic_frame(topic, now))
            topic.dedupe.expire(now.ms, topic.config.idempotency_window_ms)
        self._restored = {}
        self.reserved_ts = self.reserving_ts = now.ts + TS_AHEAD_MS  # as the MARK that follows says
        return frames

    def _lose_again(self, topic: Topic) -> None:
        """Writes that were found damaged before the stop, and not sealed since, came back with the
        log.
        """
        for first, last in topic.damaged:
            index = topic.index.find(first)
            while index < len(topic.index):
                first_seq, count, _, _ = topic.index.entry(index)
                if first_seq + count - 1 > last:
                    break
                if max(first_seq, topic.start_seq) >= first:
                    lose_damaged(topic, index, self.store)
                else:
                    index += 1

    def _known(self, header: FrameHeader, checkpointed: bool) -> Topic | None:
        topic = self.by_id.get(header.topic_id)
        if topic is None and not checkpointed:
            raise Misfit("the topic is not known")
        return topic

    def _news_from(self, topic: Topic) -> int:
        """Frames of the topic below this position have been applied to it: their caps and settings
        are not applied again.
        """
        return self._restored.get(topic.id, (0, 0))[1]

    def _raise_floors(self, topic: Topic, told: Iterable[int], start_seq: int) -> None:
        cut_to(topic, start_seq, self.store)
        settle(topic, self.store)
        told = (*told, 1)[:4]  # there was none of damage once
        topic.cap_floor, topic.ttl_floor, topic.loss_floor, topic.damage_floor = map(
            max, floors(topic), told
        )

    def _add_older(self, topic: Topic) -> None:
        """A topic that the log tells of: when the checkpoint knows a later one of its name, that
        one keeps the name.
        """
        later = self.topics.get(topic.name)
        self._add(topic)
        if later is not None and later.id > topic.id:
            self.topics[topic.name] = later

    # Checkpoint

    def snapshot_engine(self) -> dict[str, int]:
        """What a checkpoint keeps of the shard itself."""
        return {
            "last_id": self.last_id,
            "last_epoch": self.last_epoch,
            "reserved_ts": self.reserving_ts,
        }

    def snapshot_topics(self) -> Iterator[Topic]:
        """The topics to be kept. Any of them may change, go or come between two steps."""
        for topic_id in list(self.by_id):
            topic = self.by_id.get(topic_id)
            if topic is not None:
                yield topic

    def snapshot_topic(self, topic: Topic, position: int) -> dict[str, Any]:
        """What a checkpoint keeps of a topic, as plain values: what is committed.

        Every frame of the topic below ``position`` is committed, and none from there on.
        """
        return {
            "id": topic.id, "name": topic.name, "epoch": topic.epoch, "config": msgspec.structs.asdict(topic.committed),
            "head": topic.head_seq, "start": topic.start_seq, "floors": floors(topic), "losses": topic.losses_at_restart(topic.head_seq),
            "damaged": topic.damaged,
            "last_ts": topic.last_ts, "last_write_ts": topic.last_write_ts, "reserved": topic.reserved_seq,
            "logged": topic.logged_seq, "position": position, "keys_from": topic.keys_from_seq,
        }  # fmt: skip

    def snapshot_keys(self, topic: Topic, now: Now) -> Iterator[tuple[str, int, int, int] | None]:
        """Idempotency keys that no segment will tell of, because no record of their write is left:
        key, first seq, count, $ts.

        None for a key that need not be kept. Others may run between two steps.
        """
        for key, write in topic.dedupe.items():
            index = topic.index.find(write.first_seq)
            gone = (
                write.first_seq < topic.start_seq
                or index == len(topic.index)
                or topic.index.entry(index)[0] > write.first_seq
            )
            yield (
                (key, write.first_seq, write.record_count, now.ts - (now.ms - write.at_ms))
                if gone
                else None
            )

    def restore_engine(self, kept: dict[str, int]) -> None:
        """Take over what `snapshot_engine` gave."""
        self.last_id = max(self.last_id, kept["last_id"])
        self.last_epoch = max(self.last_epoch, kept["last_epoch"])
        self.reserved_ts = kept.get("reserved_ts", 0)

    def restore_topic(self, kept: dict[str, Any]) -> Topic:
        """Take over what `snapshot_topic` gave, before any extent or frame. Its records come with
        these.
        """
        config = msgspec.convert(kept["config"], TopicConfig)
        topic = Topic(kept["id"], kept["name"], kept["epoch"], config, kept["reserved"])
        topic.start_seq = kept["start"]
        topic.cap_floor, topic.ttl_floor, topic.loss_floor, topic.damage_floor = (
            *kept["floors"],
            1,
        )[:4]
        topic.losses = seq_ranges(kept["losses"])
        topic.damaged = seq_ranges(kept.get("damaged", ()))
        topic.last_ts, topic.last_write_ts = kept["last_ts"], kept["last_write_ts"]
        topic.logged_seq, topic.keys_from_seq = kept["logged"], kept["keys_from"]
        self._restored[topic.id] = kept["head"], kept["position"]
        self._add(topic)
        return topic

    def restore_extent(
        self,
        topic_id: int,
        first_seq: int,
        count: int,
        locator: Locator,
        size: int,
        ts: int,
        dead_count: int,
        dead_bytes: int,
    ) -> bool:
        """An extent that the checkpoint names, after its topic, in the order of seqs. False when
        nothing lives in it: it is not used.

        ``size``: all rendered bytes; ``dead_count`` and ``dead_bytes``: what its flags say. Raises
        `Misfit`.
        """
        topic = self.by_id.get(topic_id)
        if topic is None:
            return False
        if first_seq <= topic.head_seq:
            raise Misfit(f"seq {first_seq} of topic {topic_id} is there already")
        last_seq = first_seq + count - 1
        topic.sealed_seq = last_seq
        topic.logged_seq = max(topic.logged_seq, last_seq)
        if last_seq < topic.start_seq or dead_count >= count:
            topic.head_seq = last_seq
            return False
        frames, written = topic.index, topic.last_write_ts
        topic.commit_records(first_seq, count, locator, ts, size)
        topic.last_write_ts = written
        if dead_count:
            frames.take(len(frames) - 1, dead_count, dead_bytes)
            topic.count -= dead_count
            topic.bytes -= dead_bytes
        trim(topic, len(frames) - 1, self.store)
        return frames.entry(len(frames) - 1)[3] > 0

    def restore_key(
        self, topic: Topic, key: str, first_seq: int, count: int, ts_ms: int, now: Now
    ) -> None:
        """An idempotency key of an earlier write. The oldest comes first."""
        age_ms = max(0, now.ts - ts_ms)
        topic.dedupe.remember(key, DedupeEntry(first_seq, count, now.ms - age_ms), 1 << 62)


def _matching(
    names: Iterable[str], prefix: str, after: str | None, prefixes: list[str] | None
) -> list[str]:
    return [
        name
        for name in names
        if name.startswith(prefix) and (after is None or name > after) and covered(name, prefixes)
    ]
