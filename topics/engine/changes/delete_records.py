"""Delete records: what is below a seq, what has a tag, or both (§5).

Which seqs go is decided at once, of those that are there now. The log is told by a DELETE frame if
it holds any of them; to replay that twice does no harm.

A delete that takes many records is decided slice by slice, so that no turn of the shard is long:
each slice is a change with a DELETE frame of its own, and ``rest`` says what is left. What the
whole delete may take is fixed when it is asked for: nothing at ``bound`` or behind it. In one piece
1.5 M of 3 M records stopped their shard for 6.6 s. A frame with predicate and bound instead of runs
would need the tags of records that are gone by the replay; one frame for all, committed in slices,
would have to say how far. A kill between two slices leaves a part, the lowest seqs, unanswered.
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

# Of one slice, which takes a few milliseconds to decide and to commit.
SLICE_RECORDS: Final = 2048  # that match
RUN_SHARE: Final = 8  # so many count as one, where a whole window of them matches
SLICE_ENTRIES: Final = 4096  # of the index, when all records below a seq go
SLICE_JOBS: Final = 4096  # seqs of a queue, likewise
SLICE_LOOKS: Final = 16_384  # tags and deleted records that are looked at, about
# Seqs that are looked at together: twice as many each time, while few of them match.
WINDOW_MIN_SEQS: Final = 2048
WINDOW_MAX_SEQS: Final = 65_536  # as many as an extent has at most
EXTENT_LOOKS: Final = 64  # what it costs to find a tag in an extent


class Rest(NamedTuple):
    """What is left of a delete: the records from ``first`` on and below ``bound`` that match."""

    topic: Topic
    first: int
    bound: int
    match: TagMatch | None


class DeleteRecords(Change):
    """Records that go: those in ``runs``, or all below ``bound`` when that is None. ``deleted``:
    how many they were, known after the commit. ``rest``: what the next slice goes on with.
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
        self.rest: Rest | None = None
        self.deleted = 0

    def commit(self, table: TopicTable, /) -> None:
        """Flag the records, or cut them off the index."""
        self.note_settled()
        topic, before = self.topic, self.topic.count
        if self.runs is None:
            cut_to(topic, self.bound, table.store)
        else:
            delete_runs(topic, self.runs, table.store)
        self.deleted = before - topic.count
        if self.match is not None:
            for tags in (topic.tags or {}).values():
                tags.forget(self.match, self.first, self.bound)

    def frame(self, now: Now) -> Frame:
        """The DELETE frame."""
        if self.runs is None:
            return delete_below_frame(self.topic.id, self.bound, now.ts)
        return delete_runs_frame(self.topic.id, self.runs, now.ts)


# Deciding


def asked(table: TopicTable, name: str, before_seq: int | None, match: TagMatch | None) -> Rest:
    """What a delete of now is about: the records below ``before_seq`` that match, of those that are
    there (§5). Raises `TopicNotFound`.
    """
    topic = table.topic(name)
    bound = topic.head_seq + 1 if before_seq is None else min(before_seq, topic.head_seq + 1)
    return Rest(topic, topic.start_seq, bound, match)


def decide(table: TopicTable, rest: Rest, now: Now) -> DeleteRecords:
    """Delete the first slice of ``rest``; ``rest`` of the change is what is left then. The topic
    still stands, and the slice before this one is committed.
    """
    topic, first, bound, match = rest
    runs = None
    if match is None:
        stop = _cut_slice(topic, bound)
        is_any = topic.start_seq < stop
    else:
        seqs, stop = matching_slice(topic, match, first, bound, table.store)
        runs = runs_of_seqs(seqs)
        is_any = bool(runs)
    change = DeleteRecords(topic, stop, runs, match, first)
    if stop < bound:
        change.rest = Rest(topic, stop, bound, match)
    # No replay needs to be told of what the log does not hold.
    if is_any and (runs[0].first if runs else topic.start_seq) <= topic.logged_seq:
        change.frames.append(change.frame(now))
    change.sync = topic.pending_sync > 0 or (bool(change.frames) and topic.config.durable)
    change.note_pending()
    return change


def must_wait(table: TopicTable, name: str) -> bool:
    """Whether a delete of matching records is decided only when its topic has no other change under
    way.

    A replay lets what this delete names live until it comes to it. Had another delete taken some of
    that before, caps on the way would count it and evict more than they did at first.
    """
    topic = table.by_name.get(name)
    return (
        topic is not None
        and topic.pending > 0
        and (topic.capped or topic.config != topic.committed)
    )


def _cut_slice(topic: Topic, bound: int) -> int:
    """The seq below which one slice cuts, of a topic of which all below ``bound`` goes."""
    index = topic.index
    if len(index) > SLICE_ENTRIES:
        bound = min(bound, index.entry(SLICE_ENTRIES)[0])
    if topic.jobs is not None and topic.count > SLICE_JOBS:
        bound = min(bound, topic.start_seq + SLICE_JOBS)
    return bound


def matching_slice(
    topic: Topic, match: TagMatch, first: int, bound: int, store: Store
) -> tuple[list[int], int]:
    """Seqs of one slice, from ``first`` on and below ``bound``, rising; some of them may be gone.
    And the seq where the next slice begins.
    """
    seqs: list[int] = []
    at, window, room, looked = max(first, topic.start_seq), WINDOW_MIN_SEQS, SLICE_RECORDS, 0
    while at < bound and room > 0 and looked < SLICE_LOOKS:
        found, stop, looks = _matching(topic, match, at, min(at + window, bound), store)
        if len(found) == stop - at:
            room -= -(-len(found) // RUN_SHARE)
            window = WINDOW_MIN_SEQS
        else:
            if len(found) > room:
                stop = found[room]
                del found[room:]
            room -= len(found)
            window = min(2 * window, WINDOW_MAX_SEQS)
        seqs += found
        at, looked = stop, looked + looks
    return seqs, at


def _matching(
    topic: Topic, match: TagMatch, first: int, stop: int, store: Store
) -> tuple[list[int], int, int]:
    """Seqs from ``first`` on that match, rising; the seq up to which that is all, ``stop`` at most;
    and how much was looked at.
    """
    seqs: list[int] = []
    looked = 0
    if first <= topic.sealed_seq:
        for entry in topic.index.from_seq(first):
            if entry.first_seq >= stop:
                break
            if looked > SLICE_LOOKS:
                stop = entry.first_seq
                break
            if entry.size and is_extent(entry.locator):
                found, looks = _matching_in_extent(entry, match, first, stop, store)
                seqs, looked = seqs + found, looked + looks
    for tags in (topic.tags or {}).values():
        found, looks = tags.find(match, first, stop)
        seqs, looked = seqs + found, looked + looks
    seqs.sort()
    return seqs, stop, looked


def _matching_in_extent(
    entry: IndexEntry, match: TagMatch, first: int, stop: int, store: Store
) -> tuple[list[int], int]:
    """Seqs of the live records of an extent that match, and how much was looked at."""
    try:
        view = cast("ExtentView", store.records(entry.locator))
        flags = store.delete_flags(entry.locator)
    except Unreadable:
        # Its tags are unknown, and the rest of the topic must not stay because of it.
        return [], EXTENT_LOOKS
    first_seq = entry.first_seq
    begin, end = max(first - first_seq, 0), min(stop - first_seq, entry.record_count)
    if match.op == "Eq":
        found = view.find_tag(json_string(match.text))
        found = found[bisect_left(found, begin) : bisect_left(found, end)]
    else:
        found = view.with_prefix(json_prefix(match.text), begin, end)
    live = found if flags is None else [index for index in found if flags[index] != 1]
    return [first_seq + index for index in live], EXTENT_LOOKS + len(found) - len(live)


# Replay


def replay(replay: Replay, header: FrameHeader, body: Buffer, checkpointed: bool) -> None:
    """Raises `Misfit`."""
    topic = replay.topic_of(header, checkpointed)
    if topic is None:
        return
    if header.record_count:
        runs = tuple(decode_runs(body))
        delete_runs(topic, runs, replay.table.store)
        count_dead_lettered(replay, topic, header, runs)
    else:
        cut_to(topic, header.first_seq, replay.table.store)
