"""Delete records: deletes the records below a seq, the records with a tag, or both (§5).

The decision selects the matching records that exist at this moment. It writes a DELETE frame if
the log contains any of them. Replaying the frame a second time has no effect.

A delete of many records is decided in slices, so that no iteration of the shard loop takes long.
Each slice is a change with its own DELETE frame, and ``rest`` describes the remaining part. The
request fixes the bound of the delete: it removes no record at ``bound`` or above. If the process is
killed between two slices, only the lowest seqs are deleted and no response is sent.

Alternatives that were rejected: deleting 1.5 M of 3 M records in one step blocked the shard for
6.6 s. A frame with the condition instead of runs would require the tags of records that no longer
exist during the replay. One frame for all slices would have to record the progress.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from topics.engine.changes.change import Change
from topics.engine.locators import is_extent
from topics.engine.now import Now
from topics.engine.queue.queue_replay import count_dead_lettered
from topics.engine.record_index import IndexEntry
from topics.engine.removal import cut_to, delete_runs
from topics.engine.replay import Replay
from topics.engine.store import Store, Unreadable
from topics.engine.tags import json_prefix
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.api.diff_body import TagMatch
from topics.formats.buffers import Buffer
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.frame_bodies import decode_runs, delete_below_frame, delete_runs_frame
from topics.formats.disk.frames import Frame, FrameHeader
from topics.formats.json_text import json_string
from topics.formats.ranges import SeqRun, runs_of_seqs

# Bounds of one slice, which takes a few milliseconds to decide and to commit.
SLICE_RECORDS: Final = 2048  # maximum number of matching records
RUN_SHARE: Final = 8  # if all records of a window match, this number of records counts as one
# If all records below a seq are deleted: maximum number of index entries, and of seqs of a queue.
SLICE_ENTRIES: Final = 4096
SLICE_JOBS: Final = 4096
SLICE_SEARCH_MAX: Final = 16_384  # approximate maximum number of examined tags and deleted records
# Number of seqs that are examined together. The number doubles until all of them match.
WINDOW_MIN_SEQS: Final = 2048
WINDOW_MAX_SEQS: Final = 65_536  # equal to the maximum number of seqs in an extent
# Cost of a tag lookup in an extent, in the unit of `SLICE_SEARCH_MAX`.
EXTENT_SEARCH_COST: Final = 64


class RemainingDelete(NamedTuple):
    """The remaining part of a delete: the matching records from ``first`` on and below
    ``bound``.
    """

    topic: Topic
    first: int
    bound: int
    match: TagMatch | None


class DeleteRecords(Change):
    """One slice of a delete: the records in ``runs``, or all records below ``bound`` if ``runs`` is
    None.

    ``deleted`` is the number of deleted records, known after the commit. ``rest`` describes the
    next slice, or is None if there is none.
    """

    __slots__ = ("bound", "deleted", "first", "match", "rest", "runs")

    def __init__(
        self,
        topic: Topic,
        bound: int,
        runs: Sequence[SeqRun] | None,
        match: TagMatch | None,
        first: int = 0,
    ) -> None:
        super().__init__(topic, [], False)
        self.first, self.bound, self.runs, self.match = first, bound, runs, match
        self.rest: RemainingDelete | None = None
        self.deleted = 0

    def commit(self, table: TopicTable, /) -> None:
        """Flag the records as deleted, or remove them from the index."""
        self.uncount_pending()
        # The difference between the counts is exact, even if some of the records have been removed
        # since the decision.
        topic, before = self.topic, self.topic.count
        if self.runs is None:
            cut_to(topic, self.bound, table.store)
        else:
            delete_runs(topic, self.runs, table.store)
        self.deleted = before - topic.count
        # Tags of deleted records are removed, so that a later delete does not find them again.
        if self.match is not None:
            for tags in (topic.tags or {}).values():
                tags.remove(self.match, self.first, self.bound)

    def frame(self, now: Now) -> Frame:
        """Return the DELETE frame."""
        if self.runs is None:
            return delete_below_frame(self.topic.id, self.bound, now.ts)
        return delete_runs_frame(self.topic.id, self.runs, now.ts)


# Decisions


def remaining_delete(
    table: TopicTable, name: str, before_seq: int | None, match: TagMatch | None
) -> RemainingDelete:
    """Return the records that a delete requested now may remove (§5).

    These are the existing records below ``before_seq`` that match. Raise `TopicNotFound` if the
    topic does not exist.
    """
    topic = table.topic(name)
    # Fix the bound now. Records that are written later are not part of this delete.
    bound = topic.head_seq + 1 if before_seq is None else min(before_seq, topic.head_seq + 1)
    return RemainingDelete(topic, topic.start_seq, bound, match)


def decide(table: TopicTable, rest: RemainingDelete, now: Now) -> DeleteRecords:
    """Delete the first slice of ``rest``. The ``rest`` of the returned change is the remaining
    part.

    The topic must still exist, and the previous slice must be committed.
    """
    topic, first, bound, match = rest
    runs = None
    # If there is no filter, the slice removes all records below a seq and has no runs.
    if match is None:
        stop = _cut_slice(topic, bound)
        is_any = topic.start_seq < stop
    else:
        seqs, stop = matching_slice(topic, match, first, bound, table.store)
        runs = runs_of_seqs(seqs)
        is_any = bool(runs)
    change = DeleteRecords(topic, stop, runs, match, first)
    # The rest begins where this slice ends, even if nothing was found. The caller decides it after
    # the commit of this slice.
    if stop < bound:
        change.rest = RemainingDelete(topic, stop, bound, match)
    # The log needs no frame if it contains none of the records. Records above `logged_seq` are only
    # in memory, and the runs are in ascending order.
    if is_any and (runs[0].first if runs else topic.start_seq) <= topic.logged_seq:
        change.frames.append(change.frame(now))
    # A delete is as durable as a write of the topic. An earlier change that waits for a sync must
    # be committed first.
    change.sync = topic.pending_sync > 0 or (bool(change.frames) and topic.config.durable)
    change.count_pending()
    return change


def must_wait(table: TopicTable, name: str) -> bool:
    """Return whether a delete of matching records must wait until its topic has no pending changes.

    Startup clears the delete flags of all records in the DELETE frames to be replayed, so that the
    replay finds these records live. If such a frame also contained records that a pending change
    removes before it, these records would also be live again. The caps that are applied before the
    frame would count them, and would evict more records than in the original run.
    """
    topic = table.by_name.get(name)
    return (
        topic is not None
        and topic.pending > 0
        and (topic.capped or topic.config != topic.committed)
    )


def _cut_slice(topic: Topic, bound: int) -> int:
    """Return the end of the next slice (exclusive) of a delete of all records below ``bound``."""
    index = topic.index
    # The bounds limit the work of the commit, not only of the decision.
    if len(index) > SLICE_ENTRIES:
        bound = min(bound, index.entry(SLICE_ENTRIES)[0])
    if topic.jobs is not None and topic.count > SLICE_JOBS:
        bound = min(bound, topic.start_seq + SLICE_JOBS)
    return bound


def matching_slice(
    topic: Topic, match: TagMatch, first: int, bound: int, store: Store
) -> tuple[list[int], int]:
    """Return the matching seqs of one slice and the seq at which the next slice begins.

    The seqs are from ``first`` on and below ``bound``, in ascending order. Some of them may belong
    to deleted records.
    """
    seqs: list[int] = []
    at, window, records_left, total_cost = (
        max(first, topic.start_seq),
        WINDOW_MIN_SEQS,
        SLICE_RECORDS,
        0,
    )
    # Three bounds: the end of the delete, the records of a slice and the cost of the search.
    while at < bound and records_left > 0 and total_cost < SLICE_SEARCH_MAX:
        found, stop, cost = _matching(topic, match, at, min(at + window, bound), store)
        # If all records of the window match, they become one run, which is cheaper than single
        # records. Otherwise cut the result at the limit, and search a wider window next.
        if len(found) == stop - at:
            records_left -= -(-len(found) // RUN_SHARE)
            window = WINDOW_MIN_SEQS
        else:
            if len(found) > records_left:
                stop = found[records_left]
                del found[records_left:]
            records_left -= len(found)
            window = min(2 * window, WINDOW_MAX_SEQS)
        seqs += found
        at, total_cost = stop, total_cost + cost
    return seqs, at


def _matching(
    topic: Topic, match: TagMatch, first: int, stop: int, store: Store
) -> tuple[list[int], int, int]:
    """Return matching seqs, the seq up to which they are complete, and the cost of the search.

    The seqs are from ``first`` on, in ascending order. The search ends at ``stop`` or earlier.
    """
    seqs: list[int] = []
    total_cost = 0
    # Extents have their own tag index. The log and memory share the indexes in `topic.tags`.
    if first <= topic.sealed_seq:
        for entry in topic.index.from_seq(first):
            if entry.first_seq >= stop:
                break
            # If the search has become too expensive, end the slice before this entry, so that the
            # result is complete up to this point.
            if total_cost > SLICE_SEARCH_MAX:
                stop = entry.first_seq
                break
            if entry.size and is_extent(entry.locator):
                found, cost = _matching_in_extent(entry, match, first, stop, store)
                seqs, total_cost = seqs + found, total_cost + cost
    for tags in (topic.tags or {}).values():
        found, cost = tags.find(match, first, stop)
        seqs, total_cost = seqs + found, total_cost + cost
    seqs.sort()
    return seqs, stop, total_cost


def _matching_in_extent(
    entry: IndexEntry, match: TagMatch, first: int, stop: int, store: Store
) -> tuple[list[int], int]:
    """Return the seqs of the live records of an extent that match, and the cost of the search."""
    try:
        view = cast("ExtentView", store.records(entry.locator))
        flags = store.delete_flags(entry.locator)
    except Unreadable:
        # The tags of the extent cannot be read. Skip it, so that the delete can continue with the
        # rest of the topic.
        return [], EXTENT_SEARCH_COST
    first_seq = entry.first_seq
    begin, end = max(first - first_seq, 0), min(stop - first_seq, entry.record_count)
    if match.op == "Eq":
        found = view.find_tag(json_string(match.text))
        found = found[bisect_left(found, begin) : bisect_left(found, end)]
    else:
        found = view.with_prefix(json_prefix(match.text), begin, end)
    live = found if flags is None else [index for index in found if flags[index] != 1]
    return [first_seq + index for index in live], EXTENT_SEARCH_COST + len(found) - len(live)


# Replay


def replay(replay: Replay, header: FrameHeader, body: Buffer, checkpointed: bool) -> None:
    """Replay a DELETE frame. Raise `StateMismatch` if it does not fit the current state."""
    topic = replay.topic_of(header, checkpointed)
    if topic is None:
        # According to the checkpoint, the topic was deleted later.
        return
    if header.record_count:
        runs = tuple(decode_runs(body))
        delete_runs(topic, runs, replay.table.store)
        count_dead_lettered(replay, topic, header, runs)
    else:
        cut_to(topic, header.first_seq, replay.table.store)
