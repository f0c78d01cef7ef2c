"""Put topic: creates or configures a topic (§1.1), with a TOPIC frame if anything changes.

The new config applies to writes immediately. It applies to everything that readers can observe as
soon as it is durable.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from topics.engine.changes.change import Change
from topics.engine.changes.reservation import replay_ts
from topics.engine.now import Now
from topics.engine.queue.ledger import keeps_leases
from topics.engine.queue.queue_replay import apply_config, open_ledger
from topics.engine.replay import Replay
from topics.engine.retention import apply_caps, count_beyond, expire
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.errors import Forbidden, TopicNotFound
from topics.formats.api.append_body import AppendBody
from topics.formats.api.topic_config import TopicConfig, TopicConfigPatch, merge
from topics.formats.buffers import Buffer
from topics.formats.disk.frame_bodies import TopicBody, decode_topic, topic_frame
from topics.formats.disk.frames import Frame, FrameHeader
from topics.formats.names import covered
from topics.formats.ranges import union


class PutPlan(NamedTuple):
    """The effect that a PUT would have. ``epoch`` is None if it would create the topic.
    ``dropped`` is the number of records that it would remove.
    """

    config: TopicConfig
    epoch: int | None
    dropped: int


class PutTopic(Change):
    """Creates or configures a topic. ``before`` is the previous config, None for a new topic.
    ``dropped`` is the number of records that the commit has removed.
    """

    __slots__ = ("_now_ts", "before", "config", "created", "dropped", "ts_ceiling")
    is_config = True

    def __init__(
        self, topic: Topic, frames: list[Frame], before: TopicConfig | None, now: Now
    ) -> None:
        super().__init__(topic, frames, True)
        # The config at the time of the decision. Another PUT may change ``topic.config`` before
        # this one is committed.
        self.before, self.created, self.config = before, before is None, topic.config
        self.ts_ceiling = self.dropped = 0
        self._now_ts = now.ts

    @property
    def changes_limits(self) -> bool:
        """Return whether the PUT changed a cap or the maximum age of an existing topic."""
        return self.before is not None and _limits(self.before) != _limits(self.config)

    def commit(self, table: TopicTable, /) -> None:
        """Apply the config to what readers can observe: evict and expire records."""
        # The order matters: the config first, then the caps and the age of this config.
        self.uncount_pending()
        table.ts_reserved(self.ts_ceiling)
        topic, count = self.topic, self.topic.count
        # From here on readers see the new config.
        topic.commit_config(self.config)
        try:
            if topic.capped:
                apply_caps(topic, table.store)
            if self.changes_limits:
                expire(topic, self._now_ts, table.store)
        finally:
            self.dropped = count - topic.count

    def undo(self, table: TopicTable, /) -> None:
        """Restore the previous config, or remove the topic if it was new."""
        self.uncount_pending()
        if self.before is not None:
            self.topic.config = self.before
        if self.ts_ceiling:
            table.drop_ts_reservation()
        if self.created:
            table.undo_admit(self.topic)


def _limits(config: TopicConfig) -> tuple[int, int, int]:
    return config.cap_records, config.cap_bytes, config.ttl_ms


# Decisions


def plan(
    table: TopicTable,
    name: str,
    patch: TopicConfigPatch,
    now: Now,
    prefixes: list[str] | None = None,
) -> PutPlan:
    """Return the effect that `decide` and the commit of its change would have.

    Change nothing. Raise the same errors as `decide`.
    """
    topic = table.by_name.get(name)
    config = merge(name, topic.config if topic else None, patch)
    _check_prefixes(config, prefixes)
    if topic is None:
        # Take and release a slot, which raises the error that the PUT would get.
        if table.topic_cap is not None:
            table.topic_cap.take()
            table.topic_cap.release()
        return PutPlan(config, None, 0)
    if _limits(config) == _limits(topic.config):
        return PutPlan(config, topic.epoch, 0)  # old records expire with or without the PUT
    return PutPlan(config, topic.epoch, count_beyond(topic, config, now.ts, table.store))


def decide(
    table: TopicTable,
    name: str,
    patch: TopicConfigPatch,
    now: Now,
    prefixes: list[str] | None = None,
    *,
    has_slot: bool = False,
) -> PutTopic:
    """Create or configure a topic (§1.1).

    If nothing changes, the change has no frame but still waits for earlier changes. ``has_slot``:
    another shard has already reserved a slot for a new topic.
    """
    topic = table.by_name.get(name)
    config = merge(name, topic.config if topic else None, patch)
    _check_prefixes(config, prefixes)
    if topic is None:
        return make(table, table.new_topic(name, config, now), now, has_slot=has_slot)
    # Writes that are decided from now on use the new config.
    before, topic.config = topic.config, config
    if config.idempotency_window_ms > before.idempotency_window_ms:
        # A key that has expired must not become valid again when the window is extended.
        alive_seq = topic.dedupe.oldest_seq(
            now.ms, before.idempotency_window_ms, topic.head_seq + 1
        )
        topic.keys_from_seq = max(topic.keys_from_seq, alive_seq)
    change = PutTopic(topic, [frame_of(topic, now)] if config != before else [], before, now)
    change.sync = bool(change.frames) or topic.pending_sync > 0
    # A TOPIC frame also reserves `$ts` (see `replay`).
    if change.frames:
        change.ts_ceiling = table.reserve_ts(now)
    change.count_pending()
    # The log does not contain the leases from before this change. They are logged after its commit.
    if topic.jobs is not None and keeps_leases(config) and not keeps_leases(before):
        topic.jobs.unlogged = change
    return change


def make(table: TopicTable, topic: Topic, now: Now, *, has_slot: bool = False) -> PutTopic:
    """Add a new topic to the table, and return the change that logs it.

    Raise the errors of `TopicTable.admit`.
    """
    table.admit(topic, has_slot=has_slot)
    change = PutTopic(topic, [frame_of(topic, now)], None, now)
    change.ts_ceiling = table.reserve_ts(now)
    change.count_pending()
    return change


def new_topic_for(
    table: TopicTable, name: str, body: AppendBody, now: Now, prefixes: list[str] | None
) -> Topic:
    """Return the topic that an append creates, without adding it to the table.

    Raise `TopicNotFound` if the topic must not be created.
    """
    config = merge(name, None, body.config or TopicConfigPatch())
    create = body.create
    if create is None:
        create = config.auto_create
    if not create:
        raise TopicNotFound(name)
    _check_prefixes(config, prefixes)
    return table.new_topic(name, config, now)


def check_inline_config(name: str, config: TopicConfigPatch) -> None:
    """Raise an error for an invalid config, even if it would be ignored because the topic exists
    (§2).
    """
    merge(name, None, config)


def _check_prefixes(config: TopicConfig, prefixes: list[str] | None) -> None:
    """Raise `Forbidden` if the API key does not cover the dead-letter topic."""
    if config.dead_letter is not None and not covered(config.dead_letter, prefixes):
        raise Forbidden("dead_letter is outside the key's prefixes", field="dead_letter")


# The frame and its replay


def frame_of(topic: Topic, now: Now) -> Frame:
    """Return a TOPIC frame with all state of a topic that the log must contain, except for its
    records.
    """
    head_seq = topic.next_seq - 1
    body = TopicBody(
        name=topic.name,
        epoch=topic.epoch,
        config=msgspec.structs.asdict(topic.config),
        head_seq=head_seq,
        last_ts=topic.last_ts,
        start_seq=topic.start_seq,
        floors=topic.floors,
        losses=topic.losses_at_restart(head_seq),
        damaged=topic.damaged,
        trimmed=topic.trimmed,
        keys_from_seq=topic.keys_from_seq,
    )
    return topic_frame(topic.id, topic.reserved_seq, now.ts, body)


def replay(replay: Replay, header: FrameHeader, body: Buffer, _checkpointed: bool) -> None:
    """Replay a TOPIC frame.

    A frame below the LSN of the checkpoint may refer to a topic that the checkpoint does not
    contain, because the topic was deleted before. The topic is created nevertheless, and the replay
    of its TOPIC_DELETED frame removes it again.
    """
    replay_ts(replay, header)
    table = replay.table
    topic = table.by_id.get(header.topic_id)
    # Skip the frame if the checkpoint already contains its effects.
    if topic is not None and header.lsn < replay.covered_lsn(topic):
        return
    held = decode_topic(body)
    config = replay.config(held.config)
    if topic is None:
        topic = Topic(header.topic_id, held.name, held.epoch, config, header.first_seq)
        open_ledger(topic)
        table.add_older(topic)
        # Lost seqs from LOST frames that were replayed before the topic was known.
        topic.damaged = union((), replay.orphans.pop(topic.id, ()))
    topic.config = config
    topic.commit_config(config)
    apply_config(topic)
    # Never lower the values: the checkpoint may contain later ones.
    topic.last_ts = max(topic.last_ts, held.last_ts)
    topic.keys_from_seq = max(topic.keys_from_seq, held.keys_from_seq)
    topic.losses = tuple(held.losses)
    topic.damaged = union(topic.damaged, held.damaged)
    topic.trimmed = union(topic.trimmed, held.trimmed)
    topic.head_seq = max(topic.head_seq, held.head_seq)
    topic.next_seq = topic.head_seq + 1
    replay.raise_floors(topic, held.floors, held.start_seq)
    if topic.capped:
        apply_caps(topic, table.store)
