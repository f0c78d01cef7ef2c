"""Replay: how topics come back from a checkpoint, from extents of segments and from the log.

    restore_shard, restore_topic ...   the checkpoint        snapshot.py
    restore_extent ...                 its segments          snapshot.py
    replay of each frame               the log               changes/*.py
    begin                              the start itself      changes/start.py

Without a checkpoint the replay begins with the first frame that there ever was. With one, frames
are replayed over a state that is newer than they are: ``checkpointed`` says that a frame is below
the LSN of the checkpoint, where it may repeat what is known, or name a topic that is gone. Every
other frame must follow on what came before it: `Misfit`.
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


class Misfit(Exception):
    """A frame or an extent that cannot follow on what came before it: something is damaged or
    missing.
    """


class Doubt(NamedTuple):
    """A topic may have had up to ``seqs`` seqs behind its head, if that has not moved since."""

    head_seq: int
    seqs: int


class Replay:
    """A replay under way, over the topics of one table."""

    __slots__ = ("_configs", "_heads", "_lsn", "_lsns", "doubts", "orphans", "table")

    def __init__(self, table: TopicTable) -> None:
        self.table = table
        self.doubts: dict[int, Doubt] = {}  # by topic
        # Seqs that are lost, by a topic that is not known: the frame that made it is lost, too.
        self.orphans: dict[int, list[SeqRange]] = {}
        # Of topics that came from the checkpoint, by id: their head, and the LSN below which their
        # frames are applied, where that is not ``_lsn``. An orderly stop has one for all.
        self._heads: dict[int, int] = {}
        self._lsns: dict[int, int] = {}
        self._lsn = 0
        # Most topics have the config of many others: each is there once.
        self._configs: dict[tuple[tuple[str, Any], ...], TopicConfig] = {}

    def config(self, fields: Mapping[str, Any]) -> TopicConfig:
        """The config with these fields, as they are on disk."""
        key = tuple(fields.items())
        found = self._configs.get(key)
        if found is None:
            found = self._configs[key] = msgspec.convert(fields, TopicConfig)
        return found

    def note_restored(self, topic: Topic, head_seq: int, lsn: int) -> None:
        """The topic came from the checkpoint, which holds it with the frames below ``lsn``."""
        if not self._heads:
            self._lsn = lsn
        self._heads[topic.id] = head_seq
        if lsn != self._lsn:
            self._lsns[topic.id] = lsn

    def restored_head(self, topic: Topic) -> int:
        """Head of the topic in the checkpoint, 0 for a topic that it does not hold."""
        return self._heads.get(topic.id, 0)

    def news_from(self, topic: Topic) -> int:
        """Frames of the topic below this LSN are applied: their caps and settings are not applied
        again.
        """
        return self._lsns.get(topic.id, self._lsn) if topic.id in self._heads else 0

    def doubt_heads(self, lsn: int, count: int) -> None:
        """Frames at this LSN cannot be read: each topic may have had up to ``count`` seqs there."""
        for topic in self.table.by_id.values():
            if lsn < self.news_from(topic):
                continue
            head_seq = max(topic.head_seq, self.restored_head(topic))
            before = self.doubts.get(topic.id)
            more = before.seqs if before is not None and before.head_seq == head_seq else 0
            self.doubts[topic.id] = Doubt(head_seq, more + count)

    def is_ahead(self, header: FrameHeader) -> bool:
        """Whether a frame is about a topic of the checkpoint and is not below that LSN."""
        topic_id = header.topic_id
        return topic_id in self._heads and header.lsn >= self._lsns.get(topic_id, self._lsn)

    def topic_of(self, header: FrameHeader, checkpointed: bool) -> Topic | None:
        """The topic that a frame is about; None for one that is gone since. Raises `Misfit`."""
        topic = self.table.by_id.get(header.topic_id)
        if topic is None and not checkpointed:
            raise Misfit("the topic is not known")
        return topic

    def raise_floors(self, topic: Topic, floors: Floors, start_seq: int) -> None:
        """The topic begins at ``start_seq``, for the causes that ``floors`` name."""
        cut_to(topic, start_seq, self.table.store)
        settle(topic, self.table.store)
        topic.raise_floors(floors)
