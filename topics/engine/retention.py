"""Retention: the caps and the maximum age determine which records a topic keeps (§0.7, §1.1).

Caps are applied when a write or a config is committed. The age is applied when a config is
committed and before every response. The oldest records are removed first, even if they are leased.
A topic with ``discard`` "reject" rejects a write that does not fit. This check counts committed and
pending records, so no write removes a record of such a topic. A config with a lower cap or age may
remove records, because the owner of the topic requested it.

    start_seq     the first live record, or head_seq + 1: `earliest_seq` of every response
    floors        for each cause (`Floors`): the seq below which it has removed records
    evict_floor   the highest floor

A cursor with ``from_seq + 1 < evict_floor`` gets a tombstone up to ``start_seq - 1``. Its reason is
the cause whose floor is above the cursor. The reason is ``mixed`` if there are several such causes,
and for a loss at a restart.

- A replay applies the same caps in the same order as the original run, so evictions are not logged.
- The age depends on the clock. It is applied before a response, and by a sweep at the time that
  `next_expiry` returns. A floor that a response has shown is logged (FLOOR frame, without waiting
  for a sync), so that it is kept if the clock is set back.
- A PUT logs the floors with the config, because a higher cap does not restore any records.
- A DELETE frame contains runs of seqs and no condition, so it cannot remove later records.
"""

from __future__ import annotations

import sys
from bisect import bisect_left

from topics.engine.locators import is_extent
from topics.engine.removal import count_below, cut_to, deleted_in, sized_view
from topics.engine.store import Store, Unreadable
from topics.engine.topic import Topic
from topics.errors import TopicFull
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.records import AbstractView, live_runs

# Number of index entries whose totals are computed in one step.
TOTALS_STEP_ENTRIES = 256

# Caps


def apply_caps(topic: Topic, store: Store) -> None:
    """Remove the oldest records until the rest fits into the committed caps."""
    # Compare with the committed config. A pending one may still be undone.
    over_count, over_bytes = _over(topic, topic.committed)
    if over_count <= 0 and over_bytes <= 0:
        return
    # If the topic has records in memory, a replay would remove fewer records, because it does not
    # have them. In that case the new floor is logged.
    is_unknown_to_log = topic.resident and topic.start_seq <= topic.logged_seq
    last = cut_to(topic, _cut_point(topic, over_count, over_bytes, store), store)
    topic.cap_floor = max(topic.cap_floor, last + 1)
    if is_unknown_to_log:
        topic.floor_due = True


def _over(topic: Topic, config: TopicConfig) -> tuple[int, int]:
    """Return the records and bytes in excess of the caps of ``config``; 0 or less if none."""
    over_count = topic.count - config.cap_records if config.cap_records else 0
    over_bytes = topic.bytes - config.cap_bytes if config.cap_bytes else 0
    return over_count, over_bytes


def count_beyond(topic: Topic, config: TopicConfig, now_ts: int, store: Store) -> int:
    """Return the number of live records that the caps and age of ``config`` would remove now."""
    if not topic.count:
        return 0
    # The cut point is the higher of the cut points for the caps and for the age.
    seq, (over_count, over_bytes) = topic.start_seq, _over(topic, config)
    if over_count > 0 or over_bytes > 0:
        seq = _cut_point(topic, over_count, over_bytes, store)
    if config.ttl_ms:
        seq = max(seq, _first_not_before(topic, now_ts - config.ttl_ms, store))
    return count_below(topic, seq, store)


def check_capacity(config: TopicConfig, count: int, size: int, name: str) -> None:
    """Raise `TopicFull` if the topic rejects writes when full, and these totals exceed its caps.

    The totals include the records of the write.
    """
    if config.discard == "reject" and not _fits(config, count, size):
        raise TopicFull(
            f'topic "{name}" is full',
            topic=name,
            cap_records=config.cap_records,
            cap_bytes=config.cap_bytes,
        )


def _fits(config: TopicConfig, count: int, size: int) -> bool:
    """Return whether these totals are within the caps."""
    return (not config.cap_records or count <= config.cap_records) and (
        not config.cap_bytes or size <= config.cap_bytes
    )


def _cut_point(topic: Topic, over_count: int, over_bytes: int, store: Store) -> int:
    """Return the lowest seq that may remain if this number of records and bytes must be removed."""
    # Subtract totals in large steps, until the cut point is in the current step.
    index, at = topic.index, 0
    while at < len(index):
        stop = min(at + TOTALS_STEP_ENTRIES, len(index))
        count, size = index.totals(at, stop)
        # If the cut point is in this step, continue entry by entry.
        if stop - at > 1 and over_count < count and over_bytes < size:
            stop = at + 1
            count, size = index.live_count(at), index.entry(at)[3]
        if over_count < count and over_bytes < size:
            return _cut_point_within(topic, at, over_count, over_bytes, store)
        over_count -= count
        over_bytes -= size
        if over_count <= 0 and over_bytes <= 0:
            # The excess ends exactly after the last entry of this step.
            first_seq, count, _, _ = index.entry(stop - 1)
            return first_seq + count
        at = stop
    return topic.head_seq + 1


def _cut_point_within(topic: Topic, at: int, over_count: int, over_bytes: int, store: Store) -> int:
    """Return the cut point, which is in this entry."""
    first_seq, count, _, _ = topic.index.entry(at)
    deleted, view = deleted_in(topic, at, store), sized_view(topic, at, store)
    # Within the entry only live records count.
    for start, stop in live_runs(deleted, max(topic.start_seq - first_seq, 0), count):
        size = view.size(start, stop)
        if over_count < stop - start and over_bytes < size:
            # `fit` stops before the removed bytes reach ``over_bytes``. One more record must be
            # removed to reach it.
            by_bytes = view.fit(start, stop, over_bytes - 1) + 1 if over_bytes > 0 else start
            return first_seq + max(start + over_count, by_bytes)
        over_count -= stop - start
        over_bytes -= size
        if over_count <= 0 and over_bytes <= 0:
            return first_seq + stop
    return first_seq + count


# Age


def expire(topic: Topic, now_ts: int, store: Store) -> None:
    """Remove the records that are older than the committed TTL.

    Set ``floor_due`` if the log contains any of them.
    """
    # The config of the last commit applies, because a pending one may be undone.
    ttl_ms = topic.committed.ttl_ms
    if not ttl_ms or not topic.count:
        return
    # Records that are only in memory need no logged floor: a restart loses them in any case.
    is_logged = topic.start_seq <= topic.logged_seq
    last = cut_to(topic, _first_not_before(topic, now_ts - ttl_ms, store), store)
    topic.ttl_floor = max(topic.ttl_floor, last + 1)
    topic.floor_due |= last > 0 and is_logged


def next_expiry(topic: Topic, store: Store) -> int | None:
    """Return the time at which the next records expire (wall ms), or None if no records expire.

    Records that cannot be read expire together with the records after them.
    """
    ttl_ms, index = topic.committed.ttl_ms, topic.index
    if not ttl_ms or not topic.count:
        return None
    # The first entry is the oldest, because `$ts` never decreases.
    first_seq, _, locator, _, ts = index.full_entry(0)
    start = topic.start_seq - first_seq
    # The entry has the `$ts` of the first record of the extent. If that record was removed, read
    # the `$ts` of the first live record.
    if start > 0 and is_extent(locator):
        try:
            ts = _ts(store.records(locator), start)
        except Unreadable:
            ts = sys.maxsize
        # If no record from ``start`` on can be read, the next entry determines the time.
        if ts == sys.maxsize:
            return index.full_entry(1).ts + ttl_ms + 1 if len(index) > 1 else None
    return ts + ttl_ms + 1


def _first_not_before(topic: Topic, ts: int, store: Store) -> int:
    """Return the seq of the first record with a `$ts` of ``ts`` or later."""
    index = topic.index
    # The entry before the found one may contain both older and younger records.
    at = index.find_ts(ts) - 1
    if at < 0:
        return topic.start_seq
    first_seq, count, locator, _ = index.entry(at)
    if not is_extent(locator):
        return first_seq + count  # all records of a write have the same `$ts`
    start = max(topic.start_seq - first_seq, 0)
    if start >= count:
        return first_seq + count
    try:
        view = store.records(locator)
    except Unreadable:
        return first_seq + start  # the entry expires together with the records after it
    # The first live record is young enough.
    if _ts(view, start) >= ts:
        return first_seq + start
    return first_seq + bisect_left(range(count), ts, start, key=lambda index: _ts(view, index))


def _ts(view: AbstractView, index: int) -> int:
    """Return the ``$ts`` of a record. For a damaged record, return the ``$ts`` of the next readable
    one.

    Return ``sys.maxsize`` if there is none.
    """
    try:
        return view.ts(index)
    except Unreadable:
        _, index = view.bad_run(index, view.count) or (index, view.count)
        return _ts(view, index) if index < view.count else sys.maxsize
