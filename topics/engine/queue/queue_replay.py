"""Replay of a queue: applies the frames of the log to the ledger of a topic, then creates its jobs.

    frame or event                 effect on the ledger                       function
    APPEND with DELAYS             adds the delays of its records             note_delays
    LEASE                          replaces rows                              replay
    DELETE with DEAD_LETTERED      counts the moved jobs                      count_dead_lettered
    TOPIC                          drops leases if they are not durable       apply_config
    any removal of records         drops their rows and delays                removal.py
    end of the log                 creates the states of the jobs             begin

The checkpoint contains the effects of all frames below the LSN of the topic. Such frames are not
applied to the ledger again, except for their removals.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import cast

from topics.engine.locators import in_log
from topics.engine.now import Now
from topics.engine.queue.jobs import Watched
from topics.engine.queue.ledger import JobRow, Ledger, keeps_leases
from topics.engine.removal import deleted_in
from topics.engine.replay import Replay, StateMismatch
from topics.engine.store import Store, Unreadable
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.frame_bodies import DeleteFrameFlags, LeaseOp, decode_lease
from topics.formats.disk.frames import FrameHeader
from topics.formats.disk.records import RecordsView
from topics.formats.ranges import SeqRun

_DEAD_LETTERED = int(DeleteFrameFlags.DEAD_LETTERED)
_OPS = frozenset(LeaseOp)


def ledger_of(topic: Topic) -> Ledger | None:
    """Return the ledger of a queue during a replay, or None for a topic that is not a queue."""
    return topic.jobs.ledger if topic.jobs is not None else None


def open_ledger(topic: Topic) -> None:
    """Create the ledger of a restored topic if it is a queue. It is used until `begin`."""
    if topic.jobs is not None:
        topic.jobs.ledger = Ledger()


# Frames


def replay(replay: Replay, header: FrameHeader, body: Buffer, checkpointed: bool) -> None:
    """Replay a LEASE frame. Raise `StateMismatch` if the frame cannot belong to the topic."""
    topic = replay.topic_of(header, checkpointed)
    if topic is None or header.lsn < replay.covered_lsn(topic):
        return
    ledger = ledger_of(topic)
    if ledger is None:
        raise StateMismatch("the topic is not a queue")
    if header.flags not in _OPS:
        raise StateMismatch(f"the operation {header.flags} is unknown to this program")
    ledger.apply(decode_lease(header, body))


def note_delays(replay: Replay, topic: Topic, lsn: int, first_seq: int) -> None:
    """Replay the delays of an APPEND frame whose records have delays."""
    ledger = ledger_of(topic)
    if ledger is not None and lsn >= replay.covered_lsn(topic):
        view = cast("RecordsView", replay.table.store.records(in_log(lsn)))
        ledger.delay(first_seq, view.delays())


def count_dead_lettered(
    replay: Replay, topic: Topic, header: FrameHeader, runs: Iterable[SeqRun]
) -> None:
    """Count the jobs of a DELETE frame if they were moved to the dead-letter topic."""
    if header.flags & _DEAD_LETTERED and header.lsn >= replay.covered_lsn(topic):
        ledger = ledger_of(topic)
        if ledger is not None:
            ledger.dead_lettered += sum(run.length for run in runs)


def apply_config(topic: Topic) -> None:
    """Replay a TOPIC frame: drop the leases if the log contains no leases from here on."""
    ledger = ledger_of(topic)
    if ledger is not None and not keeps_leases(topic.config):
        ledger.clear_leases()


# After the last frame


def begin(topic: Topic, store: Store, now: Now, watched: Watched = iter) -> None:
    """Create the states of a queue's jobs from its ledger.

    ``watched`` wraps an iterable of jobs and counts its items, to report the progress of startup.
    """
    jobs, ledger = topic.jobs, ledger_of(topic)
    if jobs is None or ledger is None:
        return
    # Drop jobs without a live record before the remaining jobs become claimable.
    for known in (sorted(ledger.rows), [*ledger.delays]):
        ledger.remove([*_seqs_without_record(topic, watched(known), store)])
    config = topic.config

    def is_exhausted(row: JobRow) -> bool:
        return config.dead_letter is not None and 0 < config.max_deliveries <= row.deliveries

    ledger.revive(is_exhausted)
    jobs.begin(now, topic.start_seq, config.dead_letter, watched)


def _seqs_without_record(topic: Topic, seqs: Iterable[int], store: Store) -> Iterator[int]:
    """Yield the seqs that have no live record. ``seqs`` must be in ascending order.

    The ledger contains such a job if its record was only in memory, if a LEASE frame of the job
    follows the DELETE frame, or if a LEASE frame is replayed over a checkpoint that no longer
    contains the record.
    """
    index, first, end = topic.index, 0, 0
    deleted: Buffer | None = None
    for seq in seqs:
        if seq >= end:
            at = index.find(seq)
            if at == len(index):
                first, end = sys.maxsize, sys.maxsize
            else:
                first, count, _, size = index.entry(at)
                end = first + count
                deleted = _deleted(topic, at, store) if size else b"\1" * count
        is_live = seq >= max(first, topic.start_seq) and (
            deleted is None or deleted[seq - first] != 1
        )
        if not is_live:
            yield seq


def _deleted(topic: Topic, at: int, store: Store) -> Buffer | None:
    try:
        return deleted_in(topic, at, store)
    except Unreadable:
        return None  # it is unknown which records are live, so treat all as live
