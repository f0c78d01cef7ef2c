"""Restores idempotency keys, after all frames: only then is it known how long each topic keeps its.

Keys come from three sources, each in the order of seqs: the checkpoint (keys whose records are
gone), the tables of extents, and the frames of the log. Keys of copies are in the checkpoint as
well, however old; what the log has of them follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from topics.engine.dedupe import digest_of
from topics.engine.locators import Locator
from topics.engine.moved_keys import is_copy_key
from topics.engine.now import Now
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.disk.segment import ExtentKey
from topics.storage.disk import Damaged
from topics.storage.recovery.restore import EXTENTS_PER_BEAT, KeptKey, KeyedExtent
from topics.storage.segments.store import SegmentStore
from topics.storage.start_progress import StartProgress

_FIRST_SEQ = itemgetter(1)


def restore_keys(
    table: TopicTable,
    segments: SegmentStore,
    keyed: Iterable[KeyedExtent],
    kept: Mapping[int, Sequence[KeptKey]],
    logged: Mapping[int, Sequence[KeptKey]],
    now: Now,
    progress: StartProgress,
) -> None:
    """Afterwards every topic holds the idempotency keys that still live.

    ``kept``: the keys of the checkpoint, by topic; ``logged``: those of the log.
    """
    sealed: defaultdict[int, list[KeptKey]] = defaultdict(list)
    # In the order of the log, so that each segment is mapped once.
    for topic_id, locator, last_ts in progress.over(keyed, EXTENTS_PER_BEAT):
        topic = table.by_id.get(topic_id)
        if topic is not None and last_ts >= _alive_ts(topic, now):
            sealed[topic_id] += _extent_keys(segments, locator)
    for topic_id in progress.over({*kept, *sealed, *logged}):  # most topics have none
        topic = table.by_id.get(topic_id)
        if topic is None:
            continue
        window_ms, dedupe = topic.config.idempotency_window_ms, topic.dedupe
        alive_ts, from_seq = _alive_ts(topic, now), topic.keys_from_seq
        found = [*kept.get(topic_id, ()), *sealed.pop(topic_id, ()), *logged.get(topic_id, ())]
        found.sort(key=_FIRST_SEQ)  # each source is in order
        for key, first_seq, count, ts in progress.over(found):
            if isinstance(key, str) and is_copy_key(key):
                dedupe.note_copy(key, first_seq)
            # Two sources may have the same key. One that was used again belongs to the later write.
            if ts >= alive_ts and first_seq >= from_seq:
                from_seq = first_seq + 1
                digest = digest_of(key) if isinstance(key, str) else int.from_bytes(key, "little")
                dedupe.add(digest, first_seq, count, now.ms - max(0, now.ts - ts), window_ms)


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
