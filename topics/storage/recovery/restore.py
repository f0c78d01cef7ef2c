"""Restores topics and their extents as the newest checkpoint knows them, before any frame.

A checkpoint holds each topic as of an LSN of its own. The delete flags of segments may be ahead of
that: they know of deletes that the replay has not come to yet. `deletes_ahead` finds these in the
log, and `ReplayStore.take_back` lets their records live until then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topics.engine.locators import Locator, split_locator
from topics.engine.record_index import IndexEntry
from topics.engine.replay import Misfit, Replay
from topics.engine.snapshot import (
    restore_extent,
    restore_jobs,
    restore_shard,
    restore_topic,
)
from topics.formats.buffers import Buffer
from topics.formats.disk.checkpoint import Item
from topics.formats.disk.frame_bodies import decode_runs
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameKind, scan_frames
from topics.formats.disk.records import live_runs
from topics.formats.disk.segment import ExtentEntry, ExtentKey
from topics.formats.ranges import SeqRun
from topics.storage.checkpoints import Checkpoint
from topics.storage.disk import Damaged
from topics.storage.recovery.store import ReplayStore
from topics.storage.segments.store import SegmentStore
from topics.storage.start_progress import StartProgress
from topics.storage.wal.file import WalFile

EXTENTS_PER_BEAT, FRAMES_PER_BEAT = 64, 4096

Extents = dict[int, list[Locator]]
"""Locators of the extents of each topic, by its id, in the order of seqs."""
Keys = dict[int, list[ExtentKey]]
"""Idempotency keys of each topic that outlive their records, by its id."""


class Restored(NamedTuple):
    """What later steps of a start need."""

    extents: Extents
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
        return Restored({}, {})
    restore_shard(replay.table, checkpoint.shard)
    keys = _restore_items(replay, progress.over(checkpoint.items()))
    has_deleted = any(1 in segment.has_deleted for segment in segments.segments.values())
    ahead = deletes_ahead(replay, checkpoint.replay_from, files, progress) if has_deleted else {}
    found: defaultdict[int, list[Locator]] = defaultdict(list)
    for number in checkpoint.segments:
        for number_of_extent, entry in progress.over(segments.entries(number), EXTENTS_PER_BEAT):
            if entry.topic_id in replay.table.by_id:
                locator = Locator(number_of_extent)
                store.take_back(locator, entry, ahead.get(entry.topic_id, ()))
                _restore_extent(replay, segments, store.delete_flags(locator), locator, entry)
                found[entry.topic_id].append(locator)
    return Restored(found, keys)


def _restore_items(replay: Replay, items: Iterable[Item]) -> Keys:
    """Restore topics and jobs; the idempotency keys are for later."""
    keys: Keys = {}
    for item in items:
        if "keys" in item:
            keys.setdefault(item["id"], []).extend(map(ExtentKey._make, item["keys"]))
        elif "jobs" in item:
            restore_jobs(replay, item["id"], item["jobs"])
        else:
            restore_topic(replay, item)
    return keys


def deletes_ahead(
    replay: Replay, replay_from: int, files: Sequence[WalFile], progress: StartProgress
) -> dict[int, list[SeqRun]]:
    """By topic, the runs that were deleted after the LSN as of which the checkpoint holds it.

    ``replay_from``: LSN of the first frame to replay.
    """
    found: defaultdict[int, list[SeqRun]] = defaultdict(list)
    for index, file in enumerate(files):
        if index + 1 < len(files) and files[index + 1].base <= replay_from:
            continue
        file.read_all(progress.beat)
        view = file.view()
        frames = scan_frames(view, file.offset(file.base), file.base, file.seed)
        for header in progress.over(frames, FRAMES_PER_BEAT):
            if header.kind == FrameKind.DELETE and header.record_count and replay.is_ahead(header):
                start = file.offset(header.lsn) + FRAME_HEADER_BYTES
                found[header.topic_id] += decode_runs(view[start : start + header.body_len])
    return found


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
