"""Losses: records that a topic has lost in a restart or through damage, and seqs that it skips
because the source of a router has lost records. Readers get tombstones for them.

    cause    ranges among live records  floor         reason in the tombstone
    restart  ``Topic.losses``           loss_floor    mixed
    damage   ``Topic.damaged``          damage_floor  damaged
    source   ``Topic.trimmed``          trim_floor    source_trim
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import NamedTuple

from topics.engine.removal import begin_at, deleted_in, settle
from topics.engine.store import Store
from topics.engine.topic import Topic
from topics.formats.disk.records import live_runs
from topics.formats.ranges import SeqRange, SeqRun, joined, union


def mark_lost(topic: Topic, lost: SeqRange) -> None:
    """Mark seqs above the head as lost in a restart. The topic continues after them."""
    topic.losses = joined(topic.losses, lost)
    topic.head_seq = lost.last


def skip_trimmed(topic: Topic, skipped: SeqRange) -> None:
    """Skip seqs at the end of the topic, as many as the source of a router has lost.

    Repeating this has no effect, so that a frame can be replayed even if the checkpoint already
    contains its effect.
    """
    is_later = not topic.trimmed or skipped.first > topic.trimmed[-1].last
    ranges = topic.trimmed
    topic.trimmed = joined(ranges, skipped) if is_later else union(ranges, (skipped,))
    topic.head_seq = max(topic.head_seq, skipped.last)
    topic.next_seq = max(topic.next_seq, topic.head_seq + 1)
    begin_at(topic, topic.start_seq if topic.count else max(topic.start_seq, skipped.last + 1))


def mark_damaged(topic: Topic, at: int, store: Store) -> None:
    """Remove a damaged write from the index. Mark its live records as lost, so that readers get a
    tombstone.
    """
    index = topic.index
    first_seq, count, locator, size = index.entry(at)
    if size:
        start = max(topic.start_seq - first_seq, 0)
        live = live_runs(deleted_in(topic, at, store), start, count)
        topic.damaged = union(
            topic.damaged,
            (SeqRange(first_seq + start, first_seq + stop - 1) for start, stop in live),
        )
    if topic.jobs is not None:
        topic.jobs.remove_runs((SeqRun(first_seq, count),))
    topic.count -= index.live_count(at)
    topic.bytes -= size
    index.replace(at, at + 1, (), ())
    store.release((locator,))
    settle(topic, store)


class Loss(NamedTuple):
    """Lost seqs ``first`` to ``last`` among live records. ``reason`` is the reason in the
    tombstone.
    """

    first: int
    last: int
    reason: str


_last_of = attrgetter("last")


def next_loss(topic: Topic, seq: int, last: int) -> Loss | None:
    """Return the first lost range that has seqs from ``seq`` to ``last``, or None."""
    if seq > last:
        return None
    found = [
        Loss(*ranges[at], reason)
        for ranges, reason in (
            (topic.losses, "mixed"),
            (topic.damaged, "damaged"),
            (topic.trimmed, "source_trim"),
        )
        if (at := bisect_left(ranges, seq, key=_last_of)) < len(ranges) and ranges[at].first <= last
    ]
    return min(found, default=None)
