"""Base of all changes: what is decided about one topic, and waits until its frames are durable.

    decide  ->  Change  ->  (the caller makes its frames durable)  ->  commit
                                                                  '->  undo, when that failed

A decision hands out seqs and counts as pending; only `commit` makes it visible to readers. Changes
of one topic are committed in the order of their decisions. When the log fails, every change that is
not committed is undone, the last one first.
"""

from __future__ import annotations

from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.disk.frames import Frame


class Change:
    """A decided change of one topic. ``sync``: it is answered only after a sync of its frames.
    ``is_config``: it makes, configures or deletes the topic.
    """

    __slots__ = ("frames", "sync", "topic")
    is_config: bool = False

    def __init__(self, topic: Topic, frames: list[Frame], sync: bool) -> None:
        self.topic, self.frames, self.sync = topic, frames, sync

    def commit(self, _: TopicTable, /) -> None:
        """Make it visible: its frames are as durable as the class of the topic promises."""
        self.note_settled()

    def undo(self, _: TopicTable, /) -> None:
        """Take it back: its frames could not be written. It gives back what it took, no more."""
        self.note_settled()

    def note_pending(self) -> None:
        """Count it among the changes of its topic that are not committed."""
        self.topic.pending += 1
        if self.sync:
            self.topic.pending_sync += 1

    def note_settled(self) -> None:
        """It is committed or undone."""
        self.topic.pending -= 1
        if self.sync:
            self.topic.pending_sync -= 1
