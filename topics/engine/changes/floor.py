"""Floor moved: records went by age or cap, and the log is told where the topic begins (§0.7).

What is too old goes at once. There is a FLOOR frame when a replay could not find out by itself.
"""

from __future__ import annotations

from topics.engine.changes.change import Change
from topics.engine.now import Now
from topics.engine.replay import Replay
from topics.engine.retention import expire
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.buffers import Buffer
from topics.formats.disk.frame_bodies import decode_floors, floor_frame
from topics.formats.disk.frames import FrameHeader


class FloorMoved(Change):
    """Records went of themselves. It does not count as pending: nobody waits for it."""

    __slots__ = ()

    def commit(self, _: TopicTable, /) -> None:
        """Do nothing: the records are gone."""

    def undo(self, _: TopicTable, /) -> None:
        """Tell the log again: what was shown as gone stays so."""
        self.topic.floor_due = True


def decide(table: TopicTable, topic: Topic, now: Now) -> FloorMoved | None:
    """Remove what is too old, before anything is answered or decided. The change tells the log, if
    it must know.
    """
    expire(topic, now.ts, table.store)
    if not topic.floor_due:
        return None
    topic.floor_due = False
    return FloorMoved(topic, [floor_frame(topic.id, topic.start_seq, topic.floors)], False)


def replay(replay: Replay, header: FrameHeader, body: Buffer, checkpointed: bool) -> None:
    """Raises `Misfit`."""
    topic = replay.topic_of(header, checkpointed)
    if topic is None or header.lsn < replay.news_from(topic):
        return
    floors = decode_floors(body)
    if floors.cap < topic.cap_floor <= header.first_seq:
        # A write before this frame was committed after it: its cap found these records gone.
        topic.cap_floor = floors.cap
    replay.raise_floors(topic, floors, header.first_seq)
