"""Losses: what a restart or damage takes from a topic. Its readers are told."""

from __future__ import annotations

from topics.engine.removal import deleted_in, settle
from topics.engine.store import Store
from topics.engine.topic import Topic
from topics.formats.disk.records import live_runs
from topics.formats.ranges import SeqRange, SeqRun, joined, united


def lose(topic: Topic, lost: SeqRange) -> None:
    """A restart took these seqs, the last of the topic; it goes on behind them."""
    topic.losses = joined(topic.losses, lost)
    topic.head_seq = lost.last


def lose_damaged(topic: Topic, at: int, store: Store) -> None:
    """A write is damaged: it leaves the index, and readers are told of what lived in it."""
    index = topic.index
    first_seq, count, locator, size = index.entry(at)
    if size:
        start = max(topic.start_seq - first_seq, 0)
        live = live_runs(deleted_in(topic, at, store), start, count)
        topic.damaged = united(
            topic.damaged,
            (SeqRange(first_seq + start, first_seq + stop - 1) for start, stop in live),
        )
    if topic.jobs is not None:
        topic.jobs.forget_runs((SeqRun(first_seq, count),))
    topic.count -= index.live_count(at)
    topic.bytes -= size
    index.replace(at, at + 1, (), ())
    store.release((locator,))
    settle(topic, store)
