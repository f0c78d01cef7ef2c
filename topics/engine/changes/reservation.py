"""Reservation: seqs and `$ts` promised to the disk ahead of use.

A power loss takes unsynced records, and no seq may be given twice: a start goes on above what was
reserved. A kill takes what was in memory alone, an orderly stop nothing: so a process that was only
killed leaves no hole, which a start above the ceiling in every case would. To sync the head with
each acknowledgement is class ``fsync``, which needs no reservation. Seqs are reserved by topic,
`$ts` for all topics of the shard that keep records in memory.

    SEQS_RESERVED   after the append that comes near the end of the last reservation
    TS_RESERVED     with records in memory, about once a second
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
    """Seqs up to ``ceiling`` are reserved. It does not count as pending: nobody waits for it."""

    __slots__ = ("ceiling",)

    def __init__(self, topic: Topic, ceiling: int) -> None:
        super().__init__(topic, [seqs_reserved_frame(topic.id, ceiling)], True)
        self.ceiling = ceiling

    def commit(self, _: TopicTable, /) -> None:
        """Let the ceiling hold."""
        self.topic.reserved(self.ceiling)

    def undo(self, _: TopicTable, /) -> None:
        """Go back to what is reserved durably."""
        self.topic.forget_reservation(self.ceiling)


def decide(topic: Topic) -> Reservation | None:
    """The reservation that is due after an append, None for most. No other change waits for it."""
    if topic.config.durability == "fsync":
        return None  # no seq is acknowledged before its own sync
    last_seq = topic.next_seq - 1
    if last_seq + min(max(last_seq, RESERVE_MIN), RESERVE_MAX) // 2 <= topic.reserving_seq:
        return None
    return Reservation(topic, topic.reserve_above(last_seq))


def replay_seqs(replay: Replay, header: FrameHeader, _body: Buffer, checkpointed: bool) -> None:
    """A SEQS_RESERVED frame. Raises `Misfit`."""
    topic = replay.topic_of(header, checkpointed)
    if topic is not None:
        topic.reserved_seq = topic.reserving_seq = max(topic.reserved_seq, header.first_seq)


def replay_ts(
    replay: Replay, header: FrameHeader, _body: Buffer = b"", _checkpointed: bool = False
) -> None:
    """A TS_RESERVED frame, or another that reserves `$ts` too."""
    replay.table.ts_reserved(header.ts_ms + TS_AHEAD_MS)
