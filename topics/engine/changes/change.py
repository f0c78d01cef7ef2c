"""Base class of all changes. A change is a decision about one topic that waits until its frames are
durable.

    decide  ->  Change  ->  (the caller makes its frames durable)  ->  commit
                                                                  '->  undo, if that failed

A decision assigns seqs, and its change counts as pending. Only `commit` makes the change visible to
readers. Changes of one topic are committed in the order of their decisions. If the log fails, all
changes that have not been committed are undone, from the newest to the oldest.
"""

from __future__ import annotations

from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.disk.frames import Frame


class Change:
    """A decided change of one topic.

    ``sync``: the change is acknowledged only after a sync of its frames. ``is_config``: the change
    creates, configures or deletes the topic.
    """

    __slots__ = ("frames", "sync", "topic")
    is_config: bool = False

    def __init__(self, topic: Topic, frames: list[Frame], sync: bool) -> None:
        self.topic, self.frames, self.sync = topic, frames, sync

    def commit(self, _: TopicTable, /) -> None:
        """Make the change visible. Its frames are as durable as the topic's class promises."""
        self.uncount_pending()

    def undo(self, _: TopicTable, /) -> None:
        """Roll back the change, because its frames could not be written. Other changes are not
        affected.
        """
        self.uncount_pending()

    def count_pending(self) -> None:
        """Count the change as pending for its topic."""
        self.topic.pending += 1
        if self.sync:
            self.topic.pending_sync += 1

    def uncount_pending(self) -> None:
        """Count the change as committed or undone."""
        self.topic.pending -= 1
        if self.sync:
            self.topic.pending_sync -= 1
