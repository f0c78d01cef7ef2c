"""Forward: routers append copies to their dests, together with their cursors (§6).

    Forward   copies for one dest, and the cursor of its router; for an `ephemeral` dest the copies
              stay in memory and the log holds the cursor alone
    Advance   no copies: what the source has lost shows in the dest as burnt seqs; or the cursor
              alone, over records that nobody wanted

The changes of all dests that take the same from one source share ONE FORWARD frame
(``formats/disk/copies.py``). It holds copies and cursors, so a crash leaves both or neither: no
record is skipped, and none is forwarded twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from topics.engine.changes import append
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.locators import Locator
from topics.engine.losses import trim_to
from topics.engine.now import Now
from topics.engine.replay import Misfit, Replay
from topics.engine.routing.derivations import Derivation, derivation_of, note_derivation
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.errors import NotReady, Throttled
from topics.formats.disk.copies import (
    Copier,
    ForwardBody,
    Row,
    copies_size,
    forward_frame,
    row_lsn,
    view_of,
)
from topics.formats.disk.frames import Frame, FrameHeader
from topics.formats.disk.records import RecordFlags
from topics.formats.ranges import SeqRange, united

_TAGS = int(RecordFlags.TAGS)


class Taker(NamedTuple):
    """A dest that takes part in a forward, for one router, which is called ``name``. ``total``:
    copies that the router has made before.
    """

    topic: Topic
    router: int
    total: int
    name: str


class Forward(Append):
    """Copies under way. ``reached``: where the router stands when they are committed."""

    __slots__ = ("hop", "reached", "router")

    def __init__(self, taker: Taker, count: int, size: int, ts: int, cursor: int, hop: int) -> None:
        super().__init__(taker.topic, taker.topic.next_seq, count, size, ts, None)
        self.router, self.hop = taker.router, hop
        self.reached = Derivation(cursor, taker.total + count)

    def commit_records(
        self, table: TopicTable, locator: Locator, now: Now, generation: int
    ) -> None:
        """Note where the router stands, and make the copies readable."""
        # In this order: caps may meet damage, and the copies are there nevertheless.
        note_derivation(self.topic, self.router, self.reached)
        super().commit_records(table, locator, now, generation)


class Advance(Change):
    """A cursor that moves on without copies; ``burnt``: seqs of the dest that stand for what the
    source has lost.
    """

    __slots__ = ("burnt", "hop", "reached", "router", "trimmed")

    def __init__(self, taker: Taker, trimmed: int, cursor: int, hop: int) -> None:
        topic = taker.topic
        super().__init__(topic, [], topic.pending_sync > 0)
        self.trimmed, self.hop, self.router = trimmed, hop, taker.router
        self.reached = Derivation(cursor, taker.total)
        self.burnt = SeqRange(topic.next_seq, topic.next_seq + trimmed - 1) if trimmed else None
        if self.burnt is not None:
            topic.next_seq = self.burnt.last + 1
            topic.pending_burnt += trimmed
            self.sync |= topic.config.durability == "fsync" or self.burnt.last > topic.reserved_seq
        self.note_pending()

    def commit(self, _: TopicTable, /) -> None:
        """Move the cursor; readers are told of the burnt seqs."""
        self.note_settled()
        if self.burnt is not None:
            self.topic.pending_burnt -= self.trimmed
            trim_to(self.topic, self.burnt)
        note_derivation(self.topic, self.router, self.reached)

    def undo(self, _: TopicTable, /) -> None:
        """Give the seqs back."""
        self.note_settled()
        if self.burnt is not None:
            self.topic.pending_burnt -= self.trimmed
            assert self.topic.next_seq == self.burnt.last + 1, "the last write is undone first"
            self.topic.give_back(self.burnt.first)


class Forwarded(NamedTuple):
    """What was decided: the frame for all of ``changes``, in the order of its rows, and the takers
    for which the server has no room.
    """

    frame: Frame
    changes: Sequence[Forward | Advance]
    refused: Sequence[Taker] = ()


# Deciding


def forward(
    table: TopicTable,
    takers: Sequence[Taker],
    copier: Copier,
    body: ForwardBody,
    ts: int,
    now: Now,
) -> Forwarded:
    """Append the copies of ``copier`` to the dests of ``takers``, which have room for them and
    whose `copy_ts` is ``ts`` (§6). ``body``: of the frame, rows omitted.
    """
    changes, refused, rows = [], [], []
    tags = [*view_of(copier.render(1, ts)).tagged(0, copier.count)] if copier.flags & _TAGS else ()
    for taker in takers:
        topic = taker.topic
        size = copier.size(topic.next_seq, ts)
        try:
            append.take_bytes(table, topic, size)
        except (Throttled, NotReady):  # another shard was faster
            refused.append(taker)
            continue
        change = Forward(taker, copier.count, size, ts, body.cursor, body.hop)
        append.begin(change)
        change.tags = tags
        first_seq = change.first_seq
        if topic.config.durability == "ephemeral":
            change.resident, first_seq = copier.render(first_seq, ts), 0
            append.keep_in_memory(table, change, topic.reserving_seq, now)
        changes.append(change)
        rows.append(Row(0, taker.router, topic.id, first_seq))
    own = body.own_stamp
    if own is not None:
        names = [taker.name for taker in takers if taker not in refused]
        body = body._replace(own_stamp=own._replace(routers=names))
    frame = forward_frame(ts, copier.count, copier.flags, body._replace(rows=rows))
    return Forwarded(frame, changes, refused)


def copy_ts(topic: Topic, now: Now) -> int:
    """``$ts`` of copies that are decided now."""
    return max(now.ts, topic.last_ts)


def fitting(table: TopicTable, topic: Topic, copier: Copier, ts: int) -> int:
    """How many of these copies, the first ones, the topic and the server have room for (§1.1,
    §11).
    """
    count = room_for(topic, copier.count)
    left = bytes_left(table, topic)
    if left is None or copier.size(topic.next_seq, ts) <= left:
        return count
    return view_of(copier.render(topic.next_seq, ts)).fit(0, count, left) if left > 0 else 0


def room_for(topic: Topic, count: int) -> int:
    """How many of ``count`` records the cap of a topic that rejects has room for."""
    config = topic.config
    if config.discard != "reject" or not config.cap_records:
        return count
    held = topic.count + topic.next_seq - topic.head_seq - 1 - topic.pending_burnt
    return min(count, max(config.cap_records - held, 0))


def bytes_left(table: TopicTable, topic: Topic) -> int | None:
    """Bytes that the topic and the server have room for; None: there is no bound."""
    config, left = topic.config, None
    if config.discard == "reject" and config.cap_bytes:
        left = config.cap_bytes - topic.bytes - topic.pending_bytes
    if table.byte_quota is not None:
        quota = table.byte_quota.room_for(topic)
        if quota is not None and (left is None or quota < left):
            left = quota
    return left


def advance(takers: Sequence[Taker], cursor: int, trimmed: int, hop: int, now: Now) -> Forwarded:
    """Move routers on to ``cursor`` without copies. ``trimmed``: how many seqs the source has lost;
    ``hop``: of the seqs that are burnt for them.
    """
    ts = max(copy_ts(taker.topic, now) for taker in takers)
    changes = [Advance(taker, trimmed, cursor, hop) for taker in takers]
    rows = [
        Row(0, change.router, change.topic.id, 0 if change.burnt is None else change.burnt.first)
        for change in changes
    ]
    body = ForwardBody(cursor, hop, rows, burnt=trimmed)
    return Forwarded(forward_frame(ts, 0, 0, body), changes)


# Replay


def replay(
    replay: Replay,
    header: FrameHeader,
    held: ForwardBody,
    checkpointed: bool,
    generation: int = 0,
) -> None:
    """``generation``: LSN at which the log file begins. Raises `Misfit`."""
    for index, row in enumerate(held.rows):
        lsn = row_lsn(header.lsn, header.ext_len, index)
        copy = header._replace(lsn=lsn, topic_id=row.topic_id, first_seq=row.first_seq)
        topic = replay.topic_of(copy, checkpointed)
        if topic is None:
            continue
        if lsn >= replay.news_from(topic):
            total = derivation_of(topic, row.router, 0).total + header.record_count
            note_derivation(topic, row.router, Derivation(held.cursor, total))
        if held.burnt:
            replay_trim(replay, copy, topic, held.burnt, checkpointed)
        elif row.first_seq:
            size = copies_size(header.record_count, held.tail_bytes, row.first_seq, header.ts_ms)
            append.replay(replay, copy, size, generation, checkpointed)


def replay_trim(
    replay: Replay, header: FrameHeader, topic: Topic, trimmed: int, checkpointed: bool
) -> None:
    """Seqs of a dest were burnt, from the ``first_seq`` of ``header`` on. Raises `Misfit`."""
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
