"""Floor moved: logs where a topic begins, after records were removed by age or by a cap (§0.7).

Expired records are removed immediately. A FLOOR frame is written only if a replay could not compute
the floors from the other frames.
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
    """Logs the floors of a topic. It does not count as pending, because no caller waits for it."""

    __slots__ = ()

    def commit(self, _: TopicTable, /) -> None:
        """Do nothing, because the records are removed already."""

    def undo(self, _: TopicTable, /) -> None:
        """Schedule another FLOOR frame, because readers may have seen the floors already."""
        self.topic.floor_due = True


def decide(table: TopicTable, topic: Topic, now: Now) -> FloorMoved | None:
    """Remove expired records. The caller must call this before it serves a request or decides a
    change.

    Return a change if the floors must be logged, else None.
    """
    expire(topic, now.ts, table.store)
    if not topic.floor_due:
        return None
    topic.floor_due = False
    return FloorMoved(topic, [floor_frame(topic.id, topic.start_seq, topic.floors)], False)


def replay(replay: Replay, header: FrameHeader, body: Buffer, checkpointed: bool) -> None:
    """Replay a FLOOR frame. Raise `StateMismatch` if the topic is not known."""
    topic = replay.topic_of(header, checkpointed)
    if topic is None or header.lsn < replay.covered_lsn(topic):
        return
    floors = decode_floors(body)
    if floors.cap < topic.cap_floor <= header.first_seq:
        # The frame of a write precedes this frame, but the write was committed later. When the cap
        # was applied for the write, these records had already been removed. The replay has removed
        # them because of the cap, so correct the cap floor.
        topic.cap_floor = floors.cap
    replay.raise_floors(topic, floors, header.first_seq)
