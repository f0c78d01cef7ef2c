"""Replay: restores topics from a checkpoint, from the extents of segments and from the log.

    restore_shard, restore_topic ...   the checkpoint        snapshot.py
    restore_extent ...                 its segments          snapshot.py
    replay of each frame               the log               changes/*.py
    decide                             end of the replay     changes/start.py

If there is no checkpoint, the replay begins with the first frame that was ever written. If there is
one, some frames are replayed over a state that is newer than they are. ``checkpointed`` marks a
frame below the LSN of the checkpoint. Such a frame may repeat known changes, or refer to a topic
that has since been deleted. Every other frame must fit the state before it. Otherwise
`StateMismatch` is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from topics.engine.removal import cut_to, settle
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.frame_bodies import Floors
from topics.formats.disk.frames import FrameHeader
from topics.formats.ranges import SeqRange


class StateMismatch(Exception):
    """A frame or an extent does not fit the state before it, because data is corrupt or missing."""


class UncertainHead(NamedTuple):
    """Up to ``seqs`` seqs may have been lost after ``head_seq``.

    This only applies if ``head_seq`` is still the head of the topic after the replay.
    """

    head_seq: int
    seqs: int


class Replay:
    """A replay in progress, over the topics of one table."""

    __slots__ = ("_configs", "_heads", "_lsn", "_lsns", "orphans", "table", "uncertain_heads")

    def __init__(self, table: TopicTable) -> None:
        self.table = table
        self.uncertain_heads: dict[int, UncertainHead] = {}  # by topic id
        # Lost seqs of unknown topics, by topic id. The frame that created such a topic is also
        # lost.
        self.orphans: dict[int, list[SeqRange]] = {}
        # For each topic in the checkpoint, by topic id: its head, and the LSN below which the
        # checkpoint contains the effects of its frames. The LSN is only stored if it is not
        # ``_lsn``, because the checkpoint of a clean shutdown has one LSN for all topics.
        self._heads: dict[int, int] = {}
        self._lsns: dict[int, int] = {}
        self._lsn = 0
        # Many topics have equal configs, so each config is stored once.
        self._configs: dict[tuple[tuple[str, Any], ...], TopicConfig] = {}

    def config(self, fields: Mapping[str, Any]) -> TopicConfig:
        """Return the config with these fields, which are in the format on disk."""
        key = tuple(fields.items())
        found = self._configs.get(key)
        if found is None:
            found = self._configs[key] = msgspec.convert(fields, TopicConfig)
        return found

    def note_restored(self, topic: Topic, head_seq: int, lsn: int) -> None:
        """Record that the checkpoint contains the topic, with the effects of its frames below
        ``lsn``.
        """
        if not self._heads:
            self._lsn = lsn
        self._heads[topic.id] = head_seq
        if lsn != self._lsn:
            self._lsns[topic.id] = lsn

    def restored_head(self, topic: Topic) -> int:
        """Return the head of the topic in the checkpoint, or 0 if the checkpoint does not contain
        it.
        """
        return self._heads.get(topic.id, 0)

    def covered_lsn(self, topic: Topic) -> int:
        """Return the LSN below which the checkpoint contains the effects of the topic's frames.

        The caps and settings of frames below it are not applied again. The LSN is 0 if the
        checkpoint does not contain the topic.
        """
        return self._lsns.get(topic.id, self._lsn) if topic.id in self._heads else 0

    def mark_heads_uncertain(self, lsn: int, count: int) -> None:
        """Record that frames at this LSN cannot be read.

        Each topic may have lost up to ``count`` seqs in them.
        """
        for topic in self.table.by_id.values():
            if lsn < self.covered_lsn(topic):
                continue
            head_seq = max(topic.head_seq, self.restored_head(topic))
            before = self.uncertain_heads.get(topic.id)
            more = before.seqs if before is not None and before.head_seq == head_seq else 0
            self.uncertain_heads[topic.id] = UncertainHead(head_seq, more + count)

    def is_newer(self, header: FrameHeader) -> bool:
        """Return whether a frame belongs to a topic of the checkpoint and is newer than the
        checkpoint.
        """
        topic_id = header.topic_id
        return topic_id in self._heads and header.lsn >= self._lsns.get(topic_id, self._lsn)

    def topic_of(self, header: FrameHeader, checkpointed: bool) -> Topic | None:
        """Return the topic of a frame, or None if the topic has since been deleted. Raise
        `StateMismatch` if the topic is unknown and the frame is not ``checkpointed``.
        """
        topic = self.table.by_id.get(header.topic_id)
        if topic is None and not checkpointed:
            raise StateMismatch("unknown topic")
        return topic

    def raise_floors(self, topic: Topic, floors: Floors, start_seq: int) -> None:
        """Move the start of the topic to ``start_seq``, and raise its floors."""
        cut_to(topic, start_seq, self.table.store)
        settle(topic, self.table.store)
        topic.raise_floors(floors)
