"""Reservation: seqs and `$ts` that are reserved durably before they are used.

A power loss removes unsynced records, but no seq may be assigned twice. So topics continue above
their reserved seqs after a power loss. After a kill, only topics with records in memory do so,
because the kernel still has all other records. After a clean shutdown, no topic does. This avoids
unnecessary gaps in the seqs. Topics of class ``fsync`` need no reservation, because each of their
writes is synced before it is acknowledged. Seqs are reserved for each topic, and `$ts` for all
topics of the shard that keep records in memory.

    frame           when it is written
    SEQS_RESERVED   after an append whose seqs are near the end of the last reservation
    TS_RESERVED     about once a second, while clients append to topics with records in memory
"""

from __future__ import annotations

from topics.engine.changes.change import Change
from topics.engine.replay import Replay
from topics.engine.topic import RESERVE_MAX, RESERVE_MIN, Topic
from topics.engine.topic_table import TopicTable
from topics.formats.buffers import Buffer
from topics.formats.disk.frame_bodies import TS_AHEAD_MS, seqs_reserved_frame
from topics.formats.disk.frames import FrameHeader


class Reservation(Change):
    """Reserves the seqs up to ``ceiling``. It does not count as pending, because no caller waits
    for it.
    """

    __slots__ = ("ceiling",)

    def __init__(self, topic: Topic, ceiling: int) -> None:
        super().__init__(topic, [seqs_reserved_frame(topic.id, ceiling)], True)
        self.ceiling = ceiling

    def commit(self, _: TopicTable, /) -> None:
        """Apply the reservation."""
        self.topic.reserved(self.ceiling)

    def undo(self, _: TopicTable, /) -> None:
        """Fall back to the durable reservation."""
        self.topic.drop_reservation(self.ceiling)


def decide(topic: Topic) -> Reservation | None:
    """Return the reservation that is due after an append, or None. No other change waits for it."""
    if topic.config.durability == "fsync":
        return None  # no seq is acknowledged before its own sync
    last_seq = topic.next_seq - 1
    if last_seq + min(max(last_seq, RESERVE_MIN), RESERVE_MAX) // 2 <= topic.reserving_seq:
        return None
    return Reservation(topic, topic.reserve_above(last_seq))


def replay_seqs(replay: Replay, header: FrameHeader, _body: Buffer, checkpointed: bool) -> None:
    """Replay a SEQS_RESERVED frame. Raise `StateMismatch` if the topic is not known."""
    topic = replay.topic_of(header, checkpointed)
    if topic is not None:
        topic.reserved_seq = topic.reserving_seq = max(topic.reserved_seq, header.first_seq)


def replay_ts(
    replay: Replay, header: FrameHeader, _body: Buffer = b"", _checkpointed: bool = False
) -> None:
    """Replay a TS_RESERVED frame, or another frame that also reserves `$ts`."""
    replay.table.ts_reserved(header.ts_ms + TS_AHEAD_MS)
