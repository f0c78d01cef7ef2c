"""Router lag: the number of records of its source that a router has not processed yet, and their
age.
"""

from __future__ import annotations

from topics.engine.locators import is_extent
from topics.engine.removal import deleted_in
from topics.engine.store import Store, Unreadable, first_live
from topics.engine.topic import Topic
from topics.formats.disk.records import live_runs


def lag(topic: Topic, store: Store, cursor: int, now_ts: int) -> tuple[int, int]:
    """Return the number of live records after the cursor, and the age of the oldest one by `$ts` in
    ms.

    Return ``(0, 0)`` if there is none. If records cannot be read, both values are estimates.
    """
    index, seq = topic.index, max(cursor + 1, topic.start_seq)
    at = index.find(seq)
    if at == len(index):
        return 0, 0
    count = _live_from(topic, at, seq, store)
    oldest = at if count else _next_with_records(topic, at + 1)
    count += _live_after(topic, at)
    if not count:
        return 0, 0
    return count, max(now_ts - _oldest_ts(topic, oldest, seq, store), 0)


def _live_from(topic: Topic, at: int, seq: int, store: Store) -> int:
    """Return the number of live records of an entry from ``seq`` on."""
    first_seq, count, _, size = topic.index.entry(at)
    if not size:
        return 0
    start = max(seq - first_seq, 0)
    try:
        return sum(
            end - begin for begin, end in live_runs(deleted_in(topic, at, store), start, count)
        )
    except Unreadable:
        return min(topic.index.live_count(at), count - start)


def _live_after(topic: Topic, at: int) -> int:
    """Return the number of live records after an entry.

    The shorter part of the index is summed.
    """
    index = topic.index
    if len(index) - at <= at:
        return index.totals(at + 1, len(index))[0]
    return topic.count - index.totals(0, at + 1)[0]


def _next_with_records(topic: Topic, at: int) -> int:
    """Return the index of the first entry from ``at`` on that has live records, or the number of
    entries.
    """
    index = topic.index
    while at < len(index) and not index.entry(at)[3]:
        at += 1
    return at


def _oldest_ts(topic: Topic, at: int, seq: int, store: Store) -> int:
    """Return the `$ts` of the first live record of an entry, from ``seq`` on."""
    entry = topic.index.full_entry(at)
    if not is_extent(entry.locator):
        return entry.ts  # all records of a write have the same `$ts`
    start = max(seq - entry.first_seq, 0)
    try:
        deleted = deleted_in(topic, at, store)
        if deleted is not None:
            start = first_live(deleted, start, entry.record_count)
        return store.records(entry.locator).ts(start)
    except Unreadable:
        return entry.ts
