"""Restores idempotency keys, after all frames: only then is it known how long each topic keeps its.

Keys come from three sources, each in the order of seqs: the checkpoint (keys whose records are
gone), the tables of extents, and the frames of the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge

from topics.engine.locators import Locator
from topics.engine.now import Now
from topics.engine.snapshot import restore_key
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.disk.segment import ExtentKey
from topics.storage.disk import Damaged
from topics.storage.recovery.restore import EXTENTS_PER_BEAT, KeyedExtent
from topics.storage.segments.store import SegmentStore
from topics.storage.start_progress import StartProgress


def restore_keys(
    table: TopicTable,
    segments: SegmentStore,
    keyed: Iterable[KeyedExtent],
    kept: Mapping[int, Sequence[ExtentKey]],
    logged: Mapping[int, Sequence[ExtentKey]],
    now: Now,
    progress: StartProgress,
) -> None:
    """Afterwards every topic holds the idempotency keys that still live.

    ``kept``: the keys of the checkpoint, by topic; ``logged``: those of the log.
    """
    sealed: defaultdict[int, list[ExtentKey]] = defaultdict(list)
    # In the order of the log, so that each segment is mapped once.
    for topic_id, locator, last_ts in progress.over(keyed, EXTENTS_PER_BEAT):
        topic = table.by_id.get(topic_id)
        if topic is not None and last_ts >= (alive_ts := _alive_ts(topic, now)):
            keys = _extent_keys(segments, locator)
            sealed[topic_id] += (key for key in keys if key.ts_ms >= alive_ts)
    for topic_id in progress.over({*kept, *sealed, *logged}):  # most topics have none
        topic = table.by_id.get(topic_id)
        if topic is None:
            continue
        alive_ts = _alive_ts(topic, now)
        sources = kept.get(topic_id, ()), sealed.get(topic_id, ()), logged.get(topic_id, ())
        for key in progress.over(merge(*sources, key=_first_seq)):
            # A key that was used again belongs to the later write: the earlier one was too old by
            # the monotonic clock.
            if key.ts_ms >= alive_ts and key.first_seq >= max(
                topic.keys_from_seq, topic.dedupe.first_seq(key.key) + 1
            ):
                restore_key(topic, key, now)


def _alive_ts(topic: Topic, now: Now) -> int:
    """`$ts` of the oldest write whose key lives."""
    return now.ts - topic.config.idempotency_window_ms + 1


def _extent_keys(segments: SegmentStore, locator: Locator) -> Iterator[ExtentKey]:
    if segments.is_all_deleted(locator) and not segments.has_tables(locator):
        # Its room was given back, and the checkpoint has its keys. That is no damage.
        return iter(())
    try:
        return segments.records(locator).idempotency_keys()
    except Damaged:  # its readers are told
        return iter(())


def _first_seq(key: ExtentKey) -> int:
    return key.first_seq
