"""Trim: a change that burns seqs, as a router does for records that its source has lost. Its frame
is of the kind ROUTER, without a body.
"""

from __future__ import annotations

from topics.engine.changes.change import Change
from topics.engine.losses import trim_to
from topics.engine.now import Now
from topics.engine.replay import Misfit, Replay
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.disk.frames import Frame, FrameHeader, FrameKind
from topics.formats.ranges import SeqRange


class Trim(Change):
    """The seqs of ``burnt`` are handed out, for no record."""

    __slots__ = ("burnt",)

    def __init__(self, topic: Topic, burnt: SeqRange, ts: int) -> None:
        count = burnt.last + 1 - burnt.first
        frame = Frame(FrameKind.ROUTER, topic.id, burnt.first, ts, count)
        super().__init__(topic, [frame], False)
        self.burnt = burnt
        self.sync = (
            topic.pending_sync > 0
            or topic.config.durability == "fsync"
            or burnt.last > topic.reserved_seq
        )

    @property
    def count(self) -> int:
        """How many seqs it burns."""
        return self.burnt.last + 1 - self.burnt.first

    def commit(self, _: TopicTable, /) -> None:
        """As `Change.commit`."""
        self.note_settled()
        self.topic.pending_burnt -= self.count
        trim_to(self.topic, self.burnt)

    def undo(self, _: TopicTable, /) -> None:
        """As `Change.undo`."""
        self.note_settled()
        self.topic.pending_burnt -= self.count
        self.topic.give_back(self.burnt.first)


def decide(topic: Topic, count: int, now: Now) -> Trim:
    """Burn so many seqs."""
    change = Trim(topic, SeqRange(topic.next_seq, topic.next_seq + count - 1), now.ts)
    topic.next_seq += count
    topic.pending_burnt += count
    change.note_pending()
    return change


def replay(replay: Replay, header: FrameHeader, checkpointed: bool) -> None:
    """Raises `Misfit`."""
    topic, first = replay.topic_of(header, checkpointed), header.first_seq
    if topic is not None and first > topic.head_seq:
        trim_to(topic, SeqRange(first, first + header.record_count - 1))
    elif not checkpointed:
        raise Misfit(f"seq {first} is there already")
