"""Restores idempotency keys, after all frames: only then is it known how long each topic keeps its.

Keys come from three sources, each in the order of seqs: the checkpoint (keys whose records are
gone), the tables of extents, and the frames of the log. Keys of copies are in the checkpoint as
well, however old; what the log has of them follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter

from topics.engine.dedupe import digest_of
from topics.engine.locators import Locator
from topics.engine.moved_keys import is_copy_key
from topics.engine.now import Now
from topics.engine.topic_table import TopicTable
from topics.formats.disk.segment import ExtentKey
from topics.storage.disk import Damaged
from topics.storage.recovery.restore import EXTENTS_PER_BEAT, Extents, KeptKey
from topics.storage.segments.store import SegmentStore
from topics.storage.start_progress import StartProgress

_FIRST_SEQ = itemgetter(1)


def restore_keys(
    table: TopicTable,
    segments: SegmentStore,
    extents: Extents,
    kept: Mapping[int, Sequence[KeptKey]],
    logged: Mapping[int, Sequence[KeptKey]],
    now: Now,
    progress: StartProgress,
) -> None:
    """Afterwards every topic holds the idempotency keys that still live.

    ``kept``: the keys of the checkpoint, by topic; ``logged``: those of the log.
    """
    for topic_id in progress.over({*kept, *extents, *logged}):  # most topics have none
        topic = table.by_id.get(topic_id)
        if topic is None:
            continue
        window_ms, dedupe = topic.config.idempotency_window_ms, topic.dedupe
        alive_ts = now.ts - window_ms + 1
        locators = progress.over(extents.get(topic_id, ()), EXTENTS_PER_BEAT)
        sealed = chain.from_iterable(
            _young_keys(segments, locator, alive_ts) for locator in locators
        )
        found = [*kept.get(topic_id, ()), *sealed, *logged.get(topic_id, ())]
        found.sort(key=_FIRST_SEQ)  # each source is in order
        from_seq = topic.keys_from_seq
        for key, first_seq, count, ts in progress.over(found):
            if isinstance(key, str) and is_copy_key(key):
                dedupe.note_copy(key, first_seq)
            # Two sources may have the same key. One that was used again belongs to the later write.
            if ts >= alive_ts and first_seq >= from_seq:
                from_seq = first_seq + 1
                digest = digest_of(key) if isinstance(key, str) else int.from_bytes(key, "little")
                dedupe.add(digest, first_seq, count, now.ms - max(0, now.ts - ts), window_ms)


def _young_keys(segments: SegmentStore, locator: Locator, alive_ts: int) -> Iterator[ExtentKey]:
    if segments.entry(locator).last_ts < alive_ts:
        return iter(())
    if segments.is_all_deleted(locator) and not segments.has_tables(locator):
        # Its room was given back, and the checkpoint has its keys. That is no damage.
        return iter(())
    try:
        return segments.records(locator).idempotency_keys()
    except Damaged:  # its readers are told
        return iter(())
