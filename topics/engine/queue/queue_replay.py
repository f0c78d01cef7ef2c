"""Replay of a queue: the ledger of a topic follows the log, then the jobs begin from it.

    APPEND with DELAYS                  delays of its records                note_delays
    LEASE                               rows                                 replay
    DELETE with DEAD_LETTERED           how many were moved                  count_dead_lettered
    TOPIC                               leases count while they are durable  follow_config
    whatever removes records            their rows and delays go             removal.py
    after the last frame                the jobs of now                      begin

Frames below the LSN as of which the checkpoint holds the topic are in its ledger: only what they
remove is removed once more.
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
from topics.engine.replay import Misfit, Replay
from topics.engine.store import Store, Unreadable
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.frame_bodies import DeleteFlags, LeaseOp, decode_lease
from topics.formats.disk.frames import FrameHeader
from topics.formats.disk.records import RecordsView
from topics.formats.ranges import SeqRun

_DEAD_LETTERED = int(DeleteFlags.DEAD_LETTERED)
_OPS = frozenset(LeaseOp)


def ledger_of(topic: Topic) -> Ledger | None:
    """The ledger of a queue during a replay; None for a log."""
    return topic.jobs.ledger if topic.jobs is not None else None


def open_ledger(topic: Topic) -> None:
    """The topic has come back: if it is a queue, its jobs are in a ledger until `begin`."""
    if topic.jobs is not None:
        topic.jobs.ledger = Ledger()


# Frames


def replay(replay: Replay, header: FrameHeader, body: Buffer, checkpointed: bool) -> None:
    """A LEASE frame. Raises `Misfit`."""
    topic = replay.topic_of(header, checkpointed)
    if topic is None or header.lsn < replay.news_from(topic):
        return
    ledger = ledger_of(topic)
    if ledger is None:
        raise Misfit("the topic is no queue")
    if header.flags not in _OPS:
        raise Misfit(f"this program does not know the operation {header.flags}")
    ledger.apply(decode_lease(header, body))


def note_delays(replay: Replay, topic: Topic, lsn: int, first_seq: int) -> None:
    """An APPEND frame whose records have delays."""
    ledger = ledger_of(topic)
    if ledger is not None and lsn >= replay.news_from(topic):
        view = cast("RecordsView", replay.table.store.records(in_log(lsn)))
        ledger.delay(first_seq, view.delays())


def count_dead_lettered(
    replay: Replay, topic: Topic, header: FrameHeader, runs: Iterable[SeqRun]
) -> None:
    """A DELETE frame of these runs."""
    if header.flags & _DEAD_LETTERED and header.lsn >= replay.news_from(topic):
        ledger = ledger_of(topic)
        if ledger is not None:
            ledger.dead_lettered += sum(run.length for run in runs)


def follow_config(topic: Topic) -> None:
    """A TOPIC frame: from here on the log has no leases, or has them all."""
    ledger = ledger_of(topic)
    if ledger is not None and not keeps_leases(topic.config):
        ledger.clear_leases()


# After the last frame


def begin(topic: Topic, store: Store, now: Now, watched: Watched = iter) -> None:
    """The jobs of a queue go on from what the replay has found. ``watched`` passes jobs on, and
    sees the progress.
    """
    jobs, ledger = topic.jobs, ledger_of(topic)
    if jobs is None or ledger is None:
        return
    for known in (sorted(ledger.rows), [*ledger.delays]):
        ledger.forget([*_gone(topic, watched(known), store)])
    config = topic.config

    def is_exhausted(row: JobRow) -> bool:
        return config.dead_letter is not None and 0 < config.max_deliveries <= row.deliveries

    ledger.revive(is_exhausted)
    jobs.begin(now, topic.start_seq, config.dead_letter, watched)


def _gone(topic: Topic, seqs: Iterable[int], store: Store) -> Iterator[int]:
    """Those of these seqs, rising, that have no live record.

    A replay may come to such jobs: their records were in memory only; or a frame of a lease stands
    behind the DELETE frame, or is replayed over a checkpoint without the record.
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
        return None  # which of them live is unknown
