"""Restore: recreates topics and their extents from the newest checkpoint, before the log replay.

A checkpoint contains the state of each topic as of a separate LSN. The delete flags of segments may
be ahead of that LSN: they include deletes that the replay has not reached yet. `find_later_deletes`
finds these deletes in the log, and `ReplayStore.restore_live` marks their records as live until
then.

Idempotency keys are restored after all frames, because the window of each topic is not known
before. They have three sources, each in the order of seqs: the checkpoint (keys whose records are
deleted), the tables of extents, and the frames of the log. The checkpoint also contains the keys of
copies of any age, and the log adds the keys of later copies.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from topics.engine.dedupe import digest_of
from topics.engine.locators import Locator, split_locator
from topics.engine.moved_keys import is_copy_key
from topics.engine.now import Now
from topics.engine.record_index import IndexEntry
from topics.engine.replay import Replay, StateMismatch
from topics.engine.snapshot import (
    restore_extent,
    restore_jobs,
    restore_moved,
    restore_shard,
    restore_topic,
)
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.buffers import Buffer
from topics.formats.disk.checkpoint import KEY_ROW, Item
from topics.formats.disk.frame_bodies import decode_runs
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameKind, scan_frames
from topics.formats.disk.records import live_runs
from topics.formats.disk.segment import ExtentEntry, ExtentKey
from topics.formats.ranges import SeqRun
from topics.storage.checkpoints import Checkpoint
from topics.storage.disk import Damaged
from topics.storage.recovery.replay_store import ReplayStore
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.start_progress import StartProgress
from topics.storage.wal.log_file import WalFile

EXTENTS_PER_HEARTBEAT, FRAMES_PER_HEARTBEAT = 64, 4096
_FIRST_SEQ = itemgetter(1)

KeptKey = tuple[str | bytes, int, int, int]
"""Key or its digest, first seq, number of records, time (wall ms)."""
Keys = dict[int, list[KeptKey]]
"""Idempotency keys by topic id, in the order of seqs."""


class LaterDeletes:
    """Runs that were deleted after the LSN of their topic in the checkpoint.

    There may be millions of runs, and each extent looks up its own. Therefore they are stored in 16
    bytes each, partitioned by seq.
    """

    PART_BITS = 16  # an extent overlaps at most two partitions

    def __init__(self) -> None:
        self._parts: defaultdict[tuple[int, int], array[int]] = defaultdict(lambda: array("Q"))

    def add(self, topic_id: int, runs: Iterable[SeqRun]) -> None:
        """Add the runs that a DELETE frame deletes."""
        for first, length in runs:
            for part in self._parts_of(first, length):
                self._parts[topic_id, part].extend((first, length))

    def of(self, topic_id: int, first_seq: int, count: int) -> Iterator[SeqRun]:
        """Yield the runs that may contain some of these seqs."""
        for part in self._parts_of(first_seq, count):
            rows = self._parts.get((topic_id, part), ())
            yield from map(SeqRun, rows[::2], rows[1::2])

    def _parts_of(self, first: int, count: int) -> range:
        """Return the partitions that a run of seqs overlaps."""
        return range(first >> self.PART_BITS, (first + count - 1 >> self.PART_BITS) + 1)


class KeyedExtent(NamedTuple):
    """An extent whose tables may have idempotency keys. ``last_ts`` is `$ts` of its last record."""

    topic_id: int
    locator: Locator
    last_ts: int


class Restored(NamedTuple):
    """Data for later steps of startup. ``keyed`` is in the order of the log."""

    keyed: list[KeyedExtent]
    keys: Keys


def restore_topics(
    replay: Replay,
    segments: SegmentStore,
    store: ReplayStore,
    checkpoint: Checkpoint | None,
    files: Sequence[WalFile],
    progress: StartProgress,
) -> Restored:
    """Restore the topics of the checkpoint, and their extents in segments.

    Raise `Damaged` if an extent is inconsistent with the topic or with the extent before it.
    """
    if checkpoint is None:
        return Restored([], {})
    # Restore the state of the shard first, because topics are added to its table.
    restore_shard(replay.table, checkpoint.shard)
    keys = _restore_items(replay, progress.over(checkpoint.items()))
    # If the segments have no delete flags, no flag can be ahead of the checkpoint.
    has_deleted = any(1 in segment.has_deleted for segment in segments.segments.values())
    # The flags in segments are written later than the checkpoint, so they may contain later
    # deletes.
    later_deletes = LaterDeletes()
    if has_deleted:
        find_later_deletes(later_deletes, replay, checkpoint.replay_from, files, progress)
    keyed: list[KeyedExtent] = []
    for number in checkpoint.segments:
        for number_of_extent, entry in progress.over(
            segments.entries(number), EXTENTS_PER_HEARTBEAT
        ):
            # The topic of an extent may have been deleted. Its records stay in the segment until
            # the segment is merged or removed.
            if entry.topic_id in replay.table.by_id:
                locator = Locator(number_of_extent)
                runs = later_deletes.of(entry.topic_id, entry.first_seq, entry.record_count)
                # Clear the flags of later deletes first, so that these records count as live, as
                # they did when the checkpoint was written. The replay deletes them.
                store.restore_live(locator, entry, runs)
                _restore_extent(replay, segments, store.delete_flags(locator), locator, entry)
                if entry.keys_len:
                    keyed.append(KeyedExtent(entry.topic_id, locator, entry.last_ts))
    return Restored(keyed, keys)


def _restore_items(replay: Replay, items: Iterable[Item]) -> Keys:
    """Restore topics and jobs. Return the idempotency keys, which are restored later."""
    keys: Keys = {}
    for item in items:
        # Each kind of item except topics has a distinguishing field.
        if "digests" in item:
            keys.setdefault(item["id"], []).extend(KEY_ROW.iter_unpack(item["digests"]))
        elif "moved" in item:
            restore_moved(replay, item["id"], item["moved"])
        elif "jobs" in item:
            restore_jobs(replay, item["id"], item["jobs"])
        else:
            restore_topic(replay, item)
    return keys


def find_later_deletes(
    later_deletes: LaterDeletes,
    replay: Replay,
    replay_from: int,
    files: Sequence[WalFile],
    progress: StartProgress,
) -> None:
    """Collect the runs that were deleted after the LSN of their topic in the checkpoint.

    ``replay_from`` is the LSN of the first frame to replay.
    """
    for index, file in enumerate(files):
        # All frames of this file are below the first frame to replay.
        if index + 1 < len(files) and files[index + 1].base <= replay_from:
            continue
        file.read_all(progress.heartbeat)
        view = file.view()
        frames = scan_frames(view, file.offset(file.base), file.base, file.seed)
        for header in progress.over(frames, FRAMES_PER_HEARTBEAT):
            # Only a delete that is newer than the state of its topic in the checkpoint matters.
            if header.kind == FrameKind.DELETE and header.record_count and replay.is_newer(header):
                start = file.offset(header.lsn) + FRAME_HEADER_BYTES
                later_deletes.add(
                    header.topic_id, decode_runs(view[start : start + header.body_len])
                )


def _restore_extent(
    replay: Replay,
    segments: SegmentStore,
    deleted: Buffer | None,
    locator: Locator,
    entry: ExtentEntry,
) -> None:
    """Add an extent to the index of its topic. Raise `Damaged` if it is inconsistent."""
    deleted_count = bytes(deleted).count(1) if deleted is not None else 0
    deleted_bytes = _deleted_bytes(segments, deleted, locator, entry)
    extent = IndexEntry(
        entry.first_seq, entry.record_count, locator, entry.blob_bytes, entry.first_ts
    )
    try:
        restore_extent(replay, entry.topic_id, extent, deleted_count, deleted_bytes)
    except StateMismatch as error:
        path = segments.segments[split_locator(locator)[0]].path
        raise Damaged(path, entry.offset, str(error)) from error


def _deleted_bytes(
    segments: SegmentStore, deleted: Buffer | None, locator: Locator, entry: ExtentEntry
) -> int:
    """Return the rendered bytes of the deleted records of an extent."""
    if deleted is None:
        return 0
    try:
        return entry.blob_bytes - sum(
            segments.records(locator).size(start, stop)
            for start, stop in live_runs(deleted, 0, entry.record_count)
        )
    except Damaged:  # as in `removal.sized_view`, all records count as equally long
        return entry.blob_bytes * bytes(deleted).count(1) // entry.record_count


# Idempotency keys


def restore_keys(
    table: TopicTable,
    segments: SegmentStore,
    keyed: Iterable[KeyedExtent],
    kept: Mapping[int, Sequence[KeptKey]],
    logged: Mapping[int, Sequence[KeptKey]],
    now: Now,
    progress: StartProgress,
) -> None:
    """Restore the idempotency keys that are still valid, for all topics.

    ``kept`` has the keys of the checkpoint by topic id, ``logged`` the keys of the log.
    """
    sealed: defaultdict[int, list[KeptKey]] = defaultdict(list)
    # The extents are in the order of the log, so each segment is mapped only once.
    for topic_id, locator, last_ts in progress.over(keyed, EXTENTS_PER_HEARTBEAT):
        topic = table.by_id.get(topic_id)
        # Skip extents whose records are all older than the topic's window.
        if topic is not None and last_ts >= _oldest_valid_ts(topic, now):
            sealed[topic_id] += _extent_keys(segments, locator)
    for topic_id in progress.over({*kept, *sealed, *logged}):  # most topics have none
        topic = table.by_id.get(topic_id)
        if topic is None:
            continue
        # Use one list in the order of seqs, because a key that was used twice belongs to the later
        # write.
        found = [*kept.get(topic_id, ()), *sealed.pop(topic_id, ()), *logged.get(topic_id, ())]
        found.sort(key=_FIRST_SEQ)  # fast, because each source is in order
        valid_keys = _valid_keys(topic, progress.over(found), now)
        topic.dedupe.extend(valid_keys, topic.config.idempotency_window_ms)


def _valid_keys(
    topic: Topic, keys: Iterable[KeptKey], now: Now
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the rows for `DedupeWindow.extend` of keys that have not expired.

    Also note the keys of copies of any age.
    """
    alive_ts, from_seq = _oldest_valid_ts(topic, now), topic.keys_from_seq
    now_ts, ahead_ms = now.ts, now.ms - now.ts
    # The window uses the monotonic clock, so the wall time of each write is converted. A time in
    # the future counts as now.
    for key, first_seq, count, ts in keys:
        if isinstance(key, str) and is_copy_key(key):
            topic.dedupe.note_copy(key, first_seq)
        # Two sources may have the same key. A key that was reused belongs to the later write.
        if ts >= alive_ts and first_seq >= from_seq:
            from_seq = first_seq + 1
            digest = digest_of(key) if isinstance(key, str) else int.from_bytes(key, "little")
            yield digest, first_seq, count, (ts if ts < now_ts else now_ts) + ahead_ms


def _oldest_valid_ts(topic: Topic, now: Now) -> int:
    """Return the minimum `$ts` of a write whose key is still valid."""
    return now.ts - topic.config.idempotency_window_ms + 1


def _extent_keys(segments: SegmentStore, locator: Locator) -> Iterator[ExtentKey]:
    """Return the idempotency keys in the tables of an extent."""
    try:
        if segments.is_all_deleted(locator) and not segments.has_tables(locator):
            # Its space was released, and the checkpoint has its keys. This is not damage.
            return iter(())
        return segments.records(locator).idempotency_keys()
    except Damaged:  # reported to the readers of the extent
        return iter(())
