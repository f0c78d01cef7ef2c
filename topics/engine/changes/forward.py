"""Forward: a router appends copies to its dest and moves its cursor (§6).

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
from topics.engine.losses import skip_trimmed
from topics.engine.now import Now
from topics.engine.replay import Replay, StateMismatch
from topics.engine.routing.derivations import Derivation, derivation_of, set_derivation
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
from topics.formats.ranges import SeqRange, union

_TAGS = int(RecordFlags.TAGS)


class ForwardDest(NamedTuple):
    """A dest of a forward. ``router`` and ``name`` are the id and the name of the router that
    appends to it.

    ``total`` is the number of copies that the router has appended so far.
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

    def __init__(
        self, forward_dest: ForwardDest, count: int, size: int, ts: int, cursor: int, hop: int
    ) -> None:
        # Copies have no idempotency key. The cursor in the same frame prevents duplicates.
        super().__init__(forward_dest.topic, forward_dest.topic.next_seq, count, size, ts, None)
        self.router, self.hop = forward_dest.router, hop
        # Until the commit, replies to other forwards contain the old cursor.
        self.reached = Derivation(cursor, forward_dest.total + count)

    def commit_records(
        self, table: TopicTable, locator: Locator, now: Now, generation: int
    ) -> None:
        """Set the progress of the router, and make the copies readable."""
        # The order matters. Applying caps may raise if it reads damaged bytes, but the copies are
        # committed nevertheless.
        set_derivation(self.topic, self.router, self.reached)
        super().commit_records(table, locator, now, generation)


class Advance(Change):
    """Moves the cursor of a router without copying records.

    ``skipped`` is the range of skipped seqs in the dest. It represents the lost records of the
    source.
    """

    __slots__ = ("hop", "reached", "router", "skipped", "trimmed")

    def __init__(self, forward_dest: ForwardDest, trimmed: int, cursor: int, hop: int) -> None:
        topic = forward_dest.topic
        super().__init__(topic, [], topic.pending_sync > 0)
        self.trimmed, self.hop, self.router = trimmed, hop, forward_dest.router
        self.reached = Derivation(cursor, forward_dest.total)
        # The dest skips as many seqs as the source has lost, so that its readers get a tombstone
        # for them.
        self.skipped = SeqRange(topic.next_seq, topic.next_seq + trimmed - 1) if trimmed else None
        if self.skipped is not None:
            # The skipped seqs are assigned like the seqs of records, and released by `undo`.
            topic.next_seq = self.skipped.last + 1
            topic.pending_skipped += trimmed
            # A skipped seq above the durable reservation could be assigned again after a crash.
            self.sync |= (
                topic.config.durability == "fsync" or self.skipped.last > topic.reserved_seq
            )
        self.count_pending()

    def commit(self, _: TopicTable, /) -> None:
        """Set the progress of the router, and report the skipped seqs to readers."""
        self.uncount_pending()
        if self.skipped is not None:
            self.topic.pending_skipped -= self.trimmed
            skip_trimmed(self.topic, self.skipped)
        set_derivation(self.topic, self.router, self.reached)

    def undo(self, _: TopicTable, /) -> None:
        """Release the skipped seqs."""
        self.uncount_pending()
        if self.skipped is not None:
            self.topic.pending_skipped -= self.trimmed
            # Changes of a topic are undone in reverse order, as in `Append.undo`.
            assert self.topic.next_seq == self.skipped.last + 1, "the latest write is undone first"
            self.topic.release_seqs(self.skipped.first)


class Forwarded(NamedTuple):
    """The result of a decision.

    ``frame`` is the frame for all of ``changes``, in the order of its rows. ``refused`` has the
    dests whose copies do not fit into the server-wide quota.
    """

    frame: Frame
    changes: Sequence[Forward | Advance]
    refused: Sequence[ForwardDest] = ()


# Decisions


def forward(
    table: TopicTable,
    forward_dests: Sequence[ForwardDest],
    copier: Copier,
    body: ForwardBody,
    ts: int,
    now: Now,
) -> Forwarded:
    """Append the copies of ``copier`` to ``forward_dests`` (§6).

    The dests must have capacity for the copies, and the `copy_ts` of each must be ``ts``. ``body``
    is the body of the frame without rows.

    A quota that is used up raises no error. Dests that it refuses are in ``refused``, and are not
    changed.
    """
    changes, refused, rows = [], [], []
    # Tags do not depend on the seqs, so they are read once for all dests.
    tags = [*view_of(copier.render(1, ts)).tagged(0, copier.count)] if copier.flags & _TAGS else ()
    for forward_dest in forward_dests:
        topic = forward_dest.topic
        # The size depends on the number of digits of the seqs, so it differs between dests.
        size = copier.size(topic.next_seq, ts)
        try:
            append.charge_bytes(table, topic, size)
        except (Throttled, NotReady):  # another shard has used up the quota in the meantime
            refused.append(forward_dest)
            continue
        change = Forward(forward_dest, copier.count, size, ts, body.cursor, body.hop)
        # Copies are assigned seqs in the same way as written records.
        append.begin(change)
        change.tags = tags
        first_seq = change.first_seq
        # The row of an ephemeral dest has the first seq 0: the log contains its cursor, but no
        # copies.
        if topic.config.durability == "ephemeral":
            change.resident, first_seq = copier.render(first_seq, ts), 0
            append.reserve_for_memory(table, change, topic.reserving_seq, now)
        changes.append(change)
        rows.append(Row(0, forward_dest.router, topic.id, first_seq))
    own = body.own_stamp
    if own is not None:
        # The names of the routers that take part, in the order of the rows.
        names = [forward_dest.name for forward_dest in forward_dests if forward_dest not in refused]
        body = body._replace(own_stamp=own._replace(routers=names))
    frame = forward_frame(ts, copier.count, copier.flags, body._replace(rows=rows))
    return Forwarded(frame, changes, refused)


def copy_ts(topic: Topic, now: Now) -> int:
    """Return the `$ts` of copies that are decided now."""
    return max(now.ts, topic.last_ts)


def count_fitting(table: TopicTable, topic: Topic, copier: Copier, ts: int) -> int:
    """Return how many of these copies, from the first one on, fit into the topic and the server
    (§1.1, §11).
    """
    count = records_left(topic, copier.count)
    left = bytes_left(table, topic)
    # If all copies fit, none needs to be rendered here.
    if left is None or copier.size(topic.next_seq, ts) <= left:
        return count
    return view_of(copier.render(topic.next_seq, ts)).fit(0, count, left) if left > 0 else 0


def records_left(topic: Topic, count: int) -> int:
    """Return how many of ``count`` records fit under the cap of a topic that rejects writes when
    full.
    """
    config = topic.config
    if config.discard != "reject" or not config.cap_records:
        return count
    # As in `append.check_topic_capacity`: pending records count, and skipped seqs do not.
    held = topic.count + topic.next_seq - topic.head_seq - 1 - topic.pending_skipped
    return min(count, max(config.cap_records - held, 0))


def bytes_left(table: TopicTable, topic: Topic) -> int | None:
    """Return the bytes that still fit into the topic and the server, or None if there is no
    bound.
    """
    config, left = topic.config, None
    # A topic that evicts always has space. Its caps apply at the commit.
    if config.discard == "reject" and config.cap_bytes:
        left = config.cap_bytes - topic.bytes - topic.pending_bytes
    if table.byte_quota is not None:
        quota = table.byte_quota.bytes_left_for(topic)
        if quota is not None and (left is None or quota < left):
            left = quota
    return left


def advance(
    forward_dests: Sequence[ForwardDest], cursor: int, trimmed: int, hop: int, now: Now
) -> Forwarded:
    """Move the cursors of routers to ``cursor`` without copying records.

    ``trimmed`` is the number of seqs that the source has lost, and ``hop`` is the hop of the seqs
    that are skipped for them.
    """
    # One frame has one time, which must not decrease in any of the dests.
    ts = max(copy_ts(forward_dest.topic, now) for forward_dest in forward_dests)
    changes = [Advance(forward_dest, trimmed, cursor, hop) for forward_dest in forward_dests]
    rows = [
        Row(
            0, change.router, change.topic.id, 0 if change.skipped is None else change.skipped.first
        )
        for change in changes
    ]
    body = ForwardBody(cursor, hop, rows, skipped=trimmed)
    return Forwarded(forward_frame(ts, 0, 0, body), changes)


# Replay


def replay(
    replay: Replay,
    header: FrameHeader,
    held: ForwardBody,
    checkpointed: bool,
    generation: int = 0,
) -> None:
    """Replay a FORWARD frame. Raise `StateMismatch` if it does not fit the current state.

    ``generation`` is the LSN at which the log file begins.
    """
    # Each row is replayed as a write to its own topic. The row's LSN is the locator of the copies.
    for index, row in enumerate(held.rows):
        lsn = row_lsn(header.lsn, header.ext_len, index)
        copy = header._replace(lsn=lsn, topic_id=row.topic_id, first_seq=row.first_seq)
        topic = replay.topic_of(copy, checkpointed)
        if topic is None:
            continue
        # The checkpoint of the topic contains the cursor already if its LSN is higher.
        if lsn >= replay.covered_lsn(topic):
            total = derivation_of(topic, row.router, 0).total + header.record_count
            set_derivation(topic, row.router, Derivation(held.cursor, total))
        if held.skipped:
            replay_trim(replay, copy, topic, held.skipped, checkpointed)
        # If the first seq is 0, the copies were in memory and are lost. The reservation in the log
        # covers their seqs.
        elif row.first_seq:
            size = copies_size(header.record_count, held.tail_bytes, row.first_seq, header.ts_ms)
            append.replay(replay, copy, size, generation, checkpointed)


def replay_trim(
    replay: Replay, header: FrameHeader, topic: Topic, trimmed: int, checkpointed: bool
) -> None:
    """Replay seqs that a dest has skipped, from the ``first_seq`` of ``header`` on. Raise
    `StateMismatch` if these seqs already exist.
    """
    # The checkpoint may contain the skip already.
    if header.first_seq <= topic.head_seq:
        if not checkpointed:
            raise StateMismatch(f"seq {header.first_seq} already exists")
        return
    known_to = max(topic.head_seq, replay.restored_head(topic))
    if header.first_seq > known_to + 1:  # the seqs in between belonged to records in memory
        topic.losses = union(topic.losses, (SeqRange(known_to + 1, header.first_seq - 1),))
    skip_trimmed(topic, SeqRange(header.first_seq, header.first_seq + trimmed - 1))
    topic.next_seq = topic.head_seq + 1
    topic.last_ts = max(topic.last_ts, header.ts_ms)
