"""Forward: a router's copies are appended to its dest, together with the router's cursor (§6).

    Forward     copies: a ROUTER frame with the rows of `formats.disk.copies` and the cursor; for an
                `ephemeral` dest the copies stay in memory and the frame holds the cursor alone
    Advance     no copies: what the source has lost shows in the dest as burnt seqs; or the cursor
                alone, over records that nobody wanted
    LogPayload  records that no log holds are written into the source's log, for rows to name them

A frame holds copies and cursor, so a crash leaves both or neither: no record is skipped, and none
is forwarded twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from topics.engine.changes import append
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.locators import Locator
from topics.engine.losses import trim_to
from topics.engine.now import Now
from topics.engine.replay import Misfit, Replay
from topics.engine.routing.derivations import Derivation, note_derivation
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.buffers import Buffer
from topics.formats.disk.copies import (
    CopiesBody,
    CopyRow,
    Stamp,
    copies_frame,
    decode_copies,
    payload_frame,
    view_of,
)
from topics.formats.disk.frames import Frame, FrameHeader
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.formats.disk.rendering import EncodedRecords
from topics.formats.ranges import SeqRange, united

_TAGS = int(RecordFlags.TAGS)


class Forward(Append):
    """Copies under way. ``reached``: where the router stands when they are committed; ``rows``:
    what the frame names; ``view``: the copies as readers get them; ``locator``: where they are,
    once they are committed.
    """

    __slots__ = ("hop", "locator", "reached", "router", "rows", "view")

    def __init__(
        self, topic: Topic, encoded: EncodedRecords, ts: int, router: int, reached: Derivation
    ) -> None:
        super().__init__(topic, topic.next_seq, encoded.record_count, encoded.blob_bytes, ts, None)
        self.router, self.reached, self.hop = router, reached, 0
        self.rows: Sequence[CopyRow] = ()
        self.view: RecordsView = view_of(encoded)
        self.locator: Locator | None = None

    def commit_records(
        self, table: TopicTable, locator: Locator, now: Now, generation: int
    ) -> None:
        """As `Append.commit_records`."""
        self.locator = locator
        # First: the caps of the topic may meet damage, and the copies are there nevertheless.
        note_derivation(self.topic, self.router, self.reached)
        super().commit_records(table, locator, now, generation)


class Advance(Change):
    """A cursor that moves on without copies; ``burnt``: seqs of the dest that stand for what the
    source has lost.
    """

    __slots__ = ("burnt", "hop", "reached", "router", "trimmed")

    def __init__(
        self, topic: Topic, burnt: SeqRange | None, router: int, reached: Derivation, hop: int
    ) -> None:
        super().__init__(topic, [], False)
        self.hop = hop
        self.burnt, self.router, self.reached = burnt, router, reached
        self.trimmed = 0 if burnt is None else burnt.last + 1 - burnt.first

    def commit(self, _: TopicTable, /) -> None:
        """As `Change.commit`."""
        self.note_settled()
        if self.burnt is not None:
            self.topic.pending_burnt -= self.trimmed
            trim_to(self.topic, self.burnt)
        note_derivation(self.topic, self.router, self.reached)

    def undo(self, _: TopicTable, /) -> None:
        """As `Change.undo`."""
        self.note_settled()
        if self.burnt is not None:
            self.topic.pending_burnt -= self.trimmed
            assert self.topic.next_seq == self.burnt.last + 1, "the last write is undone first"
            self.topic.give_back(self.burnt.first)


class LogPayload(Change):
    """Records for rows to name. ``lsn``: of their frame, once it is submitted."""

    __slots__ = ("lsn",)

    def __init__(self, topic: Topic, frame: Frame) -> None:
        super().__init__(topic, [frame], False)
        self.lsn = 0

    def commit(self, _: TopicTable, /) -> None:
        """As `Change.commit`."""
        self.note_settled()

    def undo(self, _: TopicTable, /) -> None:
        """As `Change.undo`."""
        self.note_settled()


# Deciding


def forward(
    table: TopicTable,
    topic: Topic,
    router: int,
    reached: Derivation,
    encoded: EncodedRecords,
    rows: Sequence[CopyRow],
    stamps: Sequence[Stamp],
    hop: int,
    now: Now,
) -> Forward:
    """As `ShardEngine.forward`. ``encoded``: rendered for the next seqs of the topic and for
    `copy_ts`.
    """
    append.take_bytes(table, topic, encoded.blob_bytes)
    ts = copy_ts(topic, now)
    change = Forward(topic, encoded, ts, router, reached)
    change.hop = hop
    append.begin(change)
    is_resident = topic.config.durability == "ephemeral"
    body = CopiesBody(
        router=router,
        cursor=reached.cursor,
        total=reached.total,
        hop=hop,
        size=0 if is_resident else encoded.blob_bytes,
        trimmed=0,
        stamps=() if is_resident else stamps,
        rows=() if is_resident else rows,
    )
    if encoded.flags & _TAGS:
        change.tags = [*change.view.tagged(0, change.count)]
    if is_resident:
        change.frames.append(copies_frame(topic.id, 0, ts, 0, 0, body))
        change.resident = encoded
        append.keep_in_memory(table, change, topic.reserving_seq, now)
    else:
        change.rows = rows
        frame = copies_frame(topic.id, change.first_seq, ts, change.count, encoded.flags, body)
        change.frames.append(frame)
    change.note_pending()
    return change


def copy_ts(topic: Topic, now: Now) -> int:
    """``$ts`` of copies that are decided now."""
    return max(now.ts, topic.last_ts)


def fitting(table: TopicTable, topic: Topic, encoded: EncodedRecords) -> int:
    """How many of these records, the first ones, the topic and the server have room for (§1.1,
    §11).
    """
    config, count = topic.config, encoded.record_count
    if config.discard == "reject":
        if config.cap_records:
            held = topic.count + topic.next_seq - topic.head_seq - 1 - topic.pending_burnt
            count = min(count, max(config.cap_records - held, 0))
        if config.cap_bytes:
            room = config.cap_bytes - topic.bytes - topic.pending_bytes
            count = _fit(encoded, count, room)
    if table.byte_quota is not None:
        left = table.byte_quota.room_for(topic)
        if left is not None and left < encoded.blob_bytes:
            count = _fit(encoded, count, left)
    return count


def _fit(encoded: EncodedRecords, count: int, room: int) -> int:
    return view_of(encoded).fit(0, count, room) if room > 0 else 0


def advance(
    topic: Topic, router: int, reached: Derivation, trimmed: int, now: Now, hop: int = 0
) -> Advance:
    """As `ShardEngine.advance`."""
    burnt = SeqRange(topic.next_seq, topic.next_seq + trimmed - 1) if trimmed else None
    change = Advance(topic, burnt, router, reached, hop)
    body = CopiesBody(
        router=router,
        cursor=reached.cursor,
        total=reached.total,
        hop=hop,
        size=0,
        trimmed=trimmed,
        stamps=(),
        rows=(),
    )
    change.sync = topic.pending_sync > 0
    if burnt is not None:
        topic.next_seq = burnt.last + 1
        topic.pending_burnt += trimmed
        change.sync |= topic.config.durability == "fsync" or burnt.last > topic.reserved_seq
    first_seq = burnt.first if burnt is not None else 0
    change.frames.append(copies_frame(topic.id, first_seq, copy_ts(topic, now), 0, 0, body))
    change.note_pending()
    return change


def log_payload(topic: Topic, first_seq: int, ts: int, encoded: EncodedRecords) -> LogPayload:
    """As `ShardEngine.log_payload`."""
    change = LogPayload(topic, payload_frame(topic.id, first_seq, ts, encoded))
    change.sync = topic.pending_sync > 0
    change.note_pending()
    return change


# Replay


def replay(
    replay: Replay, header: FrameHeader, body: Buffer, checkpointed: bool, generation: int = 0
) -> None:
    """``generation``: LSN at which the log file begins. Raises `Misfit`."""
    topic = replay.topic_of(header, checkpointed)
    if topic is None:
        return
    held = decode_copies(header, body)
    if header.lsn >= replay.news_from(topic):
        note_derivation(topic, held.router, Derivation(held.cursor, held.total))
    if held.trimmed:
        _replay_trim(replay, topic, header, held.trimmed, checkpointed)
    elif header.record_count:
        append.replay(replay, header, held.size, generation, checkpointed)


def _replay_trim(
    replay: Replay, topic: Topic, header: FrameHeader, trimmed: int, checkpointed: bool
) -> None:
    if header.first_seq <= topic.head_seq:
        if not checkpointed:
            raise Misfit(f"seq {header.first_seq} is there already")
        return
    known_to = max(topic.head_seq, replay.restored_head(topic))
    if header.first_seq > known_to + 1:  # records in memory were between
        topic.losses = united(topic.losses, (SeqRange(known_to + 1, header.first_seq - 1),))
    trim_to(topic, SeqRange(header.first_seq, header.first_seq + trimmed - 1))
    topic.next_seq = topic.head_seq + 1
    topic.last_ts = max(topic.last_ts, header.ts_ms)


def replay_payload(
    _replay: Replay, _header: FrameHeader, _body: Buffer, _checkpointed: bool
) -> None:
    """Only rows name a payload."""
