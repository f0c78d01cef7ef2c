"""Forward: a router appends copies to its dest, together with its cursor (§6).

    Forward   copies for one dest and the cursor of its router; for an `ephemeral` dest, the copies
              stay in memory and the log only contains the cursor
    Advance   no copies; either the dest skips seqs for lost records of the source, or only the
              cursor moves, over records that are not forwarded

The changes of all dests that receive the same records from one source share ONE FORWARD frame
(``formats/disk/copies.py``). The frame contains the copies and the cursors, so after a crash the
log has either both or neither. No record is skipped, and no record is forwarded twice.
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
    """A dest that takes part in a forward, for one router with this ``name``.

    ``total`` is the number of copies that the router has made before.
    """

    topic: Topic
    router: int
    total: int
    name: str


class Forward(Append):
    """Copies that are not committed yet. ``reached`` is the progress of the router after the
    commit.
    """

    __slots__ = ("hop", "reached", "router")

    def __init__(self, taker: Taker, count: int, size: int, ts: int, cursor: int, hop: int) -> None:
        super().__init__(taker.topic, taker.topic.next_seq, count, size, ts, None)
        self.router, self.hop = taker.router, hop
        self.reached = Derivation(cursor, taker.total + count)

    def commit_records(
        self, table: TopicTable, locator: Locator, now: Now, generation: int
    ) -> None:
        """Set the progress of the router, and make the copies readable."""
        # The order matters. Applying caps may raise if it reads damaged bytes, but the copies are
        # committed nevertheless.
        note_derivation(self.topic, self.router, self.reached)
        super().commit_records(table, locator, now, generation)


class Advance(Change):
    """Moves a cursor without copies.

    ``burnt`` is the range of skipped seqs in the dest. It represents the lost records of the
    source.
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
        """Set the progress of the router, and report the skipped seqs to readers."""
        self.note_settled()
        if self.burnt is not None:
            self.topic.pending_burnt -= self.trimmed
            trim_to(self.topic, self.burnt)
        note_derivation(self.topic, self.router, self.reached)

    def undo(self, _: TopicTable, /) -> None:
        """Return the skipped seqs to the topic."""
        self.note_settled()
        if self.burnt is not None:
            self.topic.pending_burnt -= self.trimmed
            assert self.topic.next_seq == self.burnt.last + 1, "the latest write is undone first"
            self.topic.give_back(self.burnt.first)


class Forwarded(NamedTuple):
    """The result of a decision.

    ``frame`` is the frame for all of ``changes``, in the order of its rows. ``refused`` has the
    takers whose bytes do not fit into the server-wide quota.
    """

    frame: Frame
    changes: Sequence[Forward | Advance]
    refused: Sequence[Taker] = ()


# Decisions


def forward(
    table: TopicTable,
    takers: Sequence[Taker],
    copier: Copier,
    body: ForwardBody,
    ts: int,
    now: Now,
) -> Forwarded:
    """Append the copies of ``copier`` to the dests of ``takers`` (§6).

    The dests must have capacity for the copies, and the `copy_ts` of each must be ``ts``. ``body``
    is the body of the frame without rows.
    """
    changes, refused, rows = [], [], []
    tags = [*view_of(copier.render(1, ts)).tagged(0, copier.count)] if copier.flags & _TAGS else ()
    for taker in takers:
        topic = taker.topic
        size = copier.size(topic.next_seq, ts)
        try:
            append.take_bytes(table, topic, size)
        except (Throttled, NotReady):  # another shard has used up the quota in the meantime
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
    """Return the `$ts` of copies that are decided now."""
    return max(now.ts, topic.last_ts)


def fitting(table: TopicTable, topic: Topic, copier: Copier, ts: int) -> int:
    """Return how many of these copies, from the first one on, fit into the topic and the server
    (§1.1, §11).
    """
    count = room_for(topic, copier.count)
    left = bytes_left(table, topic)
    if left is None or copier.size(topic.next_seq, ts) <= left:
        return count
    return view_of(copier.render(topic.next_seq, ts)).fit(0, count, left) if left > 0 else 0


def room_for(topic: Topic, count: int) -> int:
    """Return how many of ``count`` records fit under the cap of a topic that rejects writes when
    full.
    """
    config = topic.config
    if config.discard != "reject" or not config.cap_records:
        return count
    held = topic.count + topic.next_seq - topic.head_seq - 1 - topic.pending_burnt
    return min(count, max(config.cap_records - held, 0))


def bytes_left(table: TopicTable, topic: Topic) -> int | None:
    """Return the bytes that still fit into the topic and the server, or None if there is no
    bound.
    """
    config, left = topic.config, None
    if config.discard == "reject" and config.cap_bytes:
        left = config.cap_bytes - topic.bytes - topic.pending_bytes
    if table.byte_quota is not None:
        quota = table.byte_quota.room_for(topic)
        if quota is not None and (left is None or quota < left):
            left = quota
    return left


def advance(takers: Sequence[Taker], cursor: int, trimmed: int, hop: int, now: Now) -> Forwarded:
    """Move the cursors of routers to ``cursor`` without copies.

    ``trimmed`` is the number of seqs that the source has lost, and ``hop`` is the hop of the seqs
    that are skipped for them.
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
    """Replay a FORWARD frame. Raise `Misfit` if it cannot follow on the state.

    ``generation`` is the LSN at which the log file begins.
    """
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
    """Replay seqs that a dest has skipped, from the ``first_seq`` of ``header`` on. Raise `Misfit`
    if they are used already.
    """
    if header.first_seq <= topic.head_seq:
        if not checkpointed:
            raise Misfit(f"seq {header.first_seq} already exists")
        return
    known_to = max(topic.head_seq, replay.restored_head(topic))
    if header.first_seq > known_to + 1:  # the seqs between belonged to records in memory
        topic.losses = united(topic.losses, (SeqRange(known_to + 1, header.first_seq - 1),))
    trim_to(topic, SeqRange(header.first_seq, header.first_seq + trimmed - 1))
    topic.next_seq = topic.head_seq + 1
    topic.last_ts = max(topic.last_ts, header.ts_ms)
