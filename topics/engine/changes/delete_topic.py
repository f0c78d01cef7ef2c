"""Delete topic: deletes a topic with all of its records (§1.4).

The name is available immediately. The slot, the bytes and the records are released when the
TOPIC_DELETED frame is durable.
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
    """The deletion of a topic."""

    __slots__ = ()
    is_config = True

    def commit(self, table: TopicTable, /) -> None:
        """Release the topic's slot and its bytes in the shared caps (§11). The caller frees its
        records.
        """
        self.uncount_pending()
        table.release_caps(self.topic)

    def undo(self, table: TopicTable, /) -> None:
        """Add the topic to the table again."""
        self.uncount_pending()
        table.add(self.topic)


def check(table: TopicTable, name: str, if_empty: bool) -> None:
    """Raise `TopicNotEmpty` if ``if_empty`` is set and the topic has records or pending writes."""
    topic = table.by_name.get(name)
    if if_empty and topic and (topic.count or topic.next_seq > topic.head_seq + 1):
        raise TopicNotEmpty(f'topic "{name}" contains records', topic=name, count=topic.count)


def decide(table: TopicTable, name: str, if_empty: bool, now: Now) -> DeleteTopic | None:
    """Delete a topic with all of its records (§1.4). Return None if it does not exist.

    Raise the same error as `check`.
    """
    topic = table.by_name.get(name)
    if topic is None:
        return None
    check(table, name, if_empty)
    table.remove(topic)
    change = DeleteTopic(topic, [topic_deleted_frame(topic.id, now.ts)], True)
    change.count_pending()
    return change


def replay(replay: Replay, header: FrameHeader, _body: Buffer, checkpointed: bool) -> None:
    """Replay a TOPIC_DELETED frame. Raise `StateMismatch` if the topic is not known."""
    topic = replay.topic_of(header, checkpointed)
    if topic is not None:
        replay.table.delete_flags.drop(topic.index.locators())
        replay.table.remove(topic)
