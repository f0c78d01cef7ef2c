"""Delete topic: a topic goes with everything in it (§1.4). Its name is free at once, the rest when
the TOPIC_DELETED frame is durable.
"""

from __future__ import annotations

from topics.engine.changes.change import Change
from topics.engine.now import Now
from topics.engine.replay import Replay
from topics.engine.topic_table import TopicTable
from topics.errors import TopicNotEmpty
from topics.formats.buffers import Buffer
from topics.formats.disk.frame_bodies import topic_deleted_frame
from topics.formats.disk.frames import FrameHeader


class DeleteTopic(Change):
    """A topic that goes."""

    __slots__ = ()
    is_config = True

    def commit(self, table: TopicTable, /) -> None:
        """Free its place and its bytes (§11); the caller frees its records."""
        self.note_settled()
        table.vacate(self.topic)

    def undo(self, table: TopicTable, /) -> None:
        """Put the topic back."""
        self.note_settled()
        table.add(self.topic)


def check(table: TopicTable, name: str, if_empty: bool) -> None:
    """Raises `TopicNotEmpty` when `decide` would."""
    topic = table.by_name.get(name)
    if if_empty and topic and (topic.count or topic.next_seq > topic.head_seq + 1):
        raise TopicNotEmpty(f'topic "{name}" holds records', topic=name, count=topic.count)


def decide(table: TopicTable, name: str, if_empty: bool, now: Now) -> DeleteTopic | None:
    """Remove a topic with everything in it (§1.4); None when there is none. Raises
    `TopicNotEmpty`.
    """
    topic = table.by_name.get(name)
    if topic is None:
        return None
    check(table, name, if_empty)
    table.remove(topic)
    change = DeleteTopic(topic, [topic_deleted_frame(topic.id, now.ts)], True)
    change.note_pending()
    return change


def replay(replay: Replay, header: FrameHeader, _body: Buffer, checkpointed: bool) -> None:
    """Raises `Misfit`."""
    topic = replay.topic_of(header, checkpointed)
    if topic is not None:
        replay.table.delete_flags.forget(topic.index.locators())
        replay.table.remove(topic)
