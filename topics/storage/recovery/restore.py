"""Restores topics and their extents as the newest checkpoint knows them, before any frame.

A checkpoint holds each topic as of an LSN of its own. The delete flags of segments may be ahead of
that: they know of deletes that the replay has not come to yet. `find_deletes_ahead` finds these in
the log, and `ReplayStore.take_back` lets their records live until then.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from topics.engine.locators import Locator, split_locator
from topics.engine.record_index import IndexEntry
from topics.engine.replay import Misfit, Replay
from topics.engine.snapshot import (
    restore_extent,
    restore_jobs,
    restore_moved,
    restore_shard,
    restore_topic,
)
from topics.formats.buffers import Buffer
from topics.formats.disk.checkpoint import KEY_ROW, Item
from topics.formats.disk.frame_bodies import decode_runs
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameKind, scan_frames
from topics.formats.disk.records import live_runs
from topics.formats.disk.segment import ExtentEntry
from topics.formats.ranges import SeqRun
from topics.storage.checkpoints import Checkpoint
from topics.storage.disk import Damaged
from topics.storage.recovery.store import ReplayStore
from topics.storage.segments.store import SegmentStore
from topics.storage.start_progress import StartProgress
from topics.storage.wal.file import WalFile

EXTENTS_PER_BEAT, FRAMES_PER_BEAT = 64, 4096

KeptKey = tuple[str | bytes, int, int, int]
"""Key or its digest, first seq, count, time (wall ms)."""
Keys = dict[int, list[KeptKey]]
"""Idempotency keys of each topic that outlive their records, by its id."""


class DeletesAhead:
    """Runs that were deleted after the LSN as of which the checkpoint holds their topic. There may
    be millions, and each extent asks for its own: 16 bytes for each, by parts of the seqs.
    """

    PART_BITS = 16  # an extent reaches over two parts at most

    def __init__(self) -> None:
        self._parts: defaultdict[tuple[int, int], array[int]] = defaultdict(lambda: array("Q"))

    def add(self, topic_id: int, runs: Iterable[SeqRun]) -> None:
        """Note what a DELETE frame deletes."""
        for first, length in runs:
            for part in self._parts_of(first, length):
                self._parts[topic_id, part].extend((first, length))

    def of(self, topic_id: int, first_seq: int, count: int) -> Iterator[SeqRun]:
        """The runs that may have some of these seqs."""
        for part in self._parts_of(first_seq, count):
            rows = self._parts.get((topic_id, part), ())
            yield from map(SeqRun, rows[::2], rows[1::2])

    def _parts_of(self, first: int, count: int) -> range:
        return range(first >> self.PART_BITS, (first + count - 1 >> self.PART_BITS) + 1)


class KeyedExtent(NamedTuple):
    """An extent whose tables may have idempotency keys. ``last_ts``: `$ts` of its last record."""

    topic_id: int
    locator: Locator
    last_ts: int


class Restored(NamedTuple):
    """What later steps of a start need. ``keyed``: in the order of the log."""

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
    """Afterwards the table holds the topics of the checkpoint, and what segments hold of them.

    Raises `Damaged` when an extent does not follow on the one before it.
    """
    if checkpoint is None:
        return Restored([], {})
    restore_shard(replay.table, checkpoint.shard)
    keys = _restore_items(replay, progress.over(checkpoint.items()))
    has_deleted = any(1 in segment.has_deleted for segment in segments.segments.values())
    ahead = DeletesAhead()
    if has_deleted:
        find_deletes_ahead(ahead, replay, checkpoint.replay_from, files, progress)
    keyed: list[KeyedExtent] = []
    for number in checkpoint.segments:
        header = segments.segments[number].header
        for number_of_extent, entry in progress.over(segments.entries(number), EXTENTS_PER_BEAT):
            if entry.topic_id in replay.table.by_id:
                locator = Locator(number_of_extent)
                runs = ahead.of(entry.topic_id, entry.first_seq, entry.record_count)
                store.take_back(locator, entry, runs)
                _restore_extent(replay, segments, store.delete_flags(locator), locator, entry)
                if header.may_have_keys(entry):
                    keyed.append(KeyedExtent(entry.topic_id, locator, entry.last_ts))
    return Restored(keyed, keys)


def _restore_items(replay: Replay, items: Iterable[Item]) -> Keys:
    """Restore topics and jobs; the idempotency keys are for later."""
    keys: Keys = {}
    for item in items:
        if "digests" in item:
            keys.setdefault(item["id"], []).extend(KEY_ROW.iter_unpack(item["digests"]))
        elif "keys" in item:  # of an earlier version
            keys.setdefault(item["id"], []).extend(map(tuple, item["keys"]))
        elif "moved" in item:
            restore_moved(replay, item["id"], item["moved"])
        elif "jobs" in item:
            restore_jobs(replay, item["id"], item["jobs"])
        else:
            restore_topic(replay, item)
    return keys


def find_deletes_ahead(
    ahead: DeletesAhead,
    replay: Replay,
    replay_from: int,
    files: Sequence[WalFile],
    progress: StartProgress,
) -> None:
    """Find what was deleted after the LSN as of which the checkpoint holds each topic.

    ``replay_from``: LSN of the first frame to replay.
    """
    for file, end in zip(files, [*(file.base for file in files[1:]), None], strict=True):
        if end is not None and end <= replay_from:
            continue
        view = file.view()
        frames = scan_frames(view, file.offset(file.base), file.base, file.seed)
        for header in progress.over(frames, FRAMES_PER_BEAT):
            if header.kind == FrameKind.DELETE and header.record_count and replay.is_ahead(header):
                start = file.offset(header.lsn) + FRAME_HEADER_BYTES
                ahead.add(header.topic_id, decode_runs(view[start : start + header.body_len]))


def _restore_extent(
    replay: Replay,
    segments: SegmentStore,
    deleted: Buffer | None,
    locator: Locator,
    entry: ExtentEntry,
) -> None:
    deleted_count = bytes(deleted).count(1) if deleted is not None else 0
    deleted_bytes = _deleted_bytes(segments, deleted, locator, entry)
    extent = IndexEntry(
        entry.first_seq, entry.record_count, locator, entry.blob_bytes, entry.first_ts
    )
    try:
        restore_extent(replay, entry.topic_id, extent, deleted_count, deleted_bytes)
    except Misfit as error:
        path = segments.segments[split_locator(locator)[0]].path
        raise Damaged(path, entry.offset, str(error)) from error


def _deleted_bytes(
    segments: SegmentStore, deleted: Buffer | None, locator: Locator, entry: ExtentEntry
) -> int:
    """Rendered bytes of the deleted records of an extent."""
    if deleted is None:
        return 0
    try:
        return entry.blob_bytes - sum(
            segments.records(locator).size(start, stop)
            for start, stop in live_runs(deleted, 0, entry.record_count)
        )
    except Damaged:  # as in `retention`, where all records of such an extent count alike
        return entry.blob_bytes * bytes(deleted).count(1) // entry.record_count
