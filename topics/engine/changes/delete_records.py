"""Delete records: what is below a seq, what has a tag, or both (§5).

decide   which seqs go, of those that are there now; a DELETE frame when the log holds any
commit   they are flagged or leave the index
undo     nothing was taken
replay   a DELETE frame deletes them again; twice does no harm
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from topics.engine.changes.change import Change
from topics.engine.locators import is_extent
from topics.engine.now import Now
from topics.engine.queue.replay import count_dead_lettered
from topics.engine.record_index import IndexEntry
from topics.engine.removal import cut_to, delete_runs
from topics.engine.replay import Replay
from topics.engine.store import Store, Unreadable
from topics.engine.tags import json_prefix
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.api.delete_body import TagMatch
from topics.formats.buffers import Buffer
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.frame_bodies import decode_runs, delete_below_frame, delete_runs_frame
from topics.formats.disk.frames import Frame, FrameHeader
from topics.formats.json_text import json_string
from topics.formats.ranges import SeqRun, runs_of_seqs


class DeleteRecords(Change):
    """Records that go: those in ``runs``, or all below ``bound`` when that is None. ``deleted``:
    how many they were, known after the commit.
    """

    __slots__ = ("bound", "deleted", "match", "runs")

    def __init__(
        self, topic: Topic, bound: int, runs: Sequence[SeqRun] | None, match: TagMatch | None
    ) -> None:
        super().__init__(topic, [], False)
        self.bound, self.runs, self.match = bound, runs, match
        self.deleted = 0

    def commit(self, table: TopicTable, /) -> None:
        """As `Change.commit`."""
        self.note_settled()
        topic, before = self.topic, self.topic.count
        if self.runs is None:
            cut_to(topic, self.bound, table.store)
        else:
            delete_runs(topic, self.runs, table.store)
        self.deleted = before - topic.count
        if self.match is not None:
            for tags in (topic.tags or {}).values():
                tags.forget(self.match, self.bound)

    def undo(self, _: TopicTable, /) -> None:
        """As `Change.undo`."""
        self.note_settled()

    def frame(self, now: Now) -> Frame:
        """The DELETE frame."""
        if self.runs is None:
            return delete_below_frame(self.topic.id, self.bound, now.ts)
        return delete_runs_frame(self.topic.id, self.runs, now.ts)


# Deciding


def decide(
    table: TopicTable, name: str, before_seq: int | None, match: TagMatch | None, now: Now
) -> DeleteRecords:
    """As `ShardEngine.delete_records`."""
    topic = table.topic(name)
    bound = topic.head_seq + 1 if before_seq is None else min(before_seq, topic.head_seq + 1)
    runs = None if match is None else runs_of_seqs(matching_seqs(topic, match, bound, table.store))
    change = DeleteRecords(topic, bound, runs, match)
    # No replay needs to be told of what the log does not hold.
    is_any = topic.start_seq < bound if runs is None else bool(runs)
    if is_any and (runs[0].first if runs else topic.start_seq) <= topic.logged_seq:
        change.frames.append(change.frame(now))
    change.sync = topic.pending_sync > 0 or (bool(change.frames) and topic.config.durable)
    change.note_pending()
    return change


def must_wait(table: TopicTable, name: str) -> bool:
    """As `ShardEngine.delete_must_wait`."""
    topic = table.by_name.get(name)
    return (
        topic is not None
        and topic.pending > 0
        and (topic.capped or topic.config != topic.committed)
    )


def matching_seqs(topic: Topic, match: TagMatch, bound: int, store: Store) -> list[int]:
    """Seqs below ``bound`` of the records that match, rising; some of them may be gone."""
    start = topic.start_seq
    seqs = [
        seq
        for tags in (topic.tags or {}).values()
        for seq in tags.find(match)
        if start <= seq < bound
    ]
    for entry in topic.index.from_seq(start):
        if entry.first_seq >= bound or entry.first_seq > topic.sealed_seq:
            break
        if entry.size and is_extent(entry.locator):
            seqs += _matching_in_extent(entry, match, start, bound, store)
    seqs.sort()
    return seqs


def _matching_in_extent(
    entry: IndexEntry, match: TagMatch, start: int, bound: int, store: Store
) -> list[int]:
    try:
        view = cast("ExtentView", store.records(entry.locator))
        flags = store.delete_flags(entry.locator)
    except Unreadable:
        return []  # its tags are unknown, and the rest of the topic must not stay because of it
    found = (
        view.find_tag(json_string(match.text))
        if match.op == "Eq"
        else view.find_prefix(json_prefix(match.text))
    )
    live = found if flags is None else [index for index in found if flags[index] != 1]
    first_seq = entry.first_seq
    return [seq for index in live if start <= (seq := first_seq + index) < bound]


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
