"""Recovery: opens a shard's data and leaves it ready for the first write.

    open_folders       the folders are there, and their names on the disk
    read_checkpoints   the newest whole checkpoint                          checkpoints.py
    open_segments      the segments that it names
    open_log           the files of the log
    restore_topics     topics and extents as the checkpoint knows them      restore.py
    LogReplay.run      all frames from where the checkpoint says            replay.py
    restore_keys       idempotency keys that still live                     keys.py
    verify_blobs       the blobs that the log names are there
    verify_linked      the payloads that the log names are there            linked.py
    end_log            what follows the last frame is gone                  tail.py
    settle             no seq and no `$ts` is given twice
    begin_log          the log holds the frames of this start

No step repairs damage: `Damaged` (path, offset, reason) stops the process, and the bytes stay as
they are. Nothing is written into the log before its end is on the disk (``decisions/0014``).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from topics.engine.changes import start
from topics.engine.now import Now
from topics.engine.replay import Replay
from topics.engine.shard import ShardEngine
from topics.formats.disk.frame_bodies import start_frame
from topics.formats.disk.frames import Frame
from topics.storage import checkpoints
from topics.storage.checkpoints import Checkpoint, Kept
from topics.storage.copy_reader import CopyReader
from topics.storage.disk import Damaged, boot_id, make_directory, sync_directory
from topics.storage.linked_logs import LinkedLogs, ReplayedLog
from topics.storage.recovery.keys import restore_keys
from topics.storage.recovery.linked import verify_linked
from topics.storage.recovery.replay import LogReplay
from topics.storage.recovery.restore import restore_topics
from topics.storage.recovery.store import ReplayStore
from topics.storage.recovery.tail import end_log
from topics.storage.segments.store import SegmentStore
from topics.storage.start_progress import StartProgress
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.file import NEW, NoRoom, WalFile, log_paths
from topics.storage.wal.log import Wal


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard's data, open and ready for the first write."""

    engine: ShardEngine
    wal: Wal
    segments: SegmentStore
    checkpoint_folder: Path
    kept: list[Kept]  # checkpoints that stand, the older first
    absorbed: list[Path]  # blobs whose records a segment holds
    boot: str  # names this run of the machine
    cut_bytes: int  # of a torn tail
    # Of this start: the log had no room for them, and takes no other frame before them.
    unwritten_frames: list[Frame]


class Folders(NamedTuple):
    """The folders of one shard."""

    wal: Path
    checkpoint: Path
    blob: Path
    segment: Path
    linked: Path


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """No garbage collection inside: a start makes millions of objects that stay, and each
    collection would look at all of them again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_collector()
def recover(
    data_dir: Path,
    shard: int,
    shards: int,
    now: Now,
    *,
    wal_file_bytes: int,
    wal_sync_ms: int,
    report: Callable[[float], None] = lambda _: None,
    boot: str | None = None,
) -> Shard:
    """Bring a shard back as it was. ``boot`` names this run of the machine.

    ``report`` is called with the share done, 0.0 to 1.0, several times a second.

    A log that has no room for the frames of this start can be read: see `Shard.unwritten_frames`.

    Raises `Damaged` when acknowledged data was hurt, or a file is of an unknown version; OSError
    when the log cannot be written.
    """
    boot, progress = boot_id() if boot is None else boot, StartProgress(report)
    folders = open_folders(data_dir, shard, progress)
    standing = read_checkpoints(folders.checkpoint, progress)
    checkpoint = standing[0] if standing else None
    kept = [Kept(each.replay_from, frozenset(each.segments)) for each in reversed(standing)]
    segments = open_segments(folders.segment, shard, checkpoint, kept, progress)
    blobs = BlobStore(folders.blob)
    blobs.beat = progress.beat
    files = open_log(folders.wal, shard)
    engine = ShardEngine(shard, shards)
    linked = LinkedLogs(
        folders.linked, data_dir, shard, checkpoint.replay_from if checkpoint else 0
    )
    linked.attach(ReplayedLog(files))
    copies = CopyReader(linked, linked.damaged)
    engine.store = store = ReplayStore(engine, segments, blobs, files, copies)
    topics = Replay(engine.table)
    keyed, kept_keys = restore_topics(topics, segments, store, checkpoint, files, progress)
    replay = LogReplay(topics, blobs, linked, checkpoint, progress)
    end = replay.run(folders.wal, files)
    restore_keys(engine.table, segments, keyed, kept_keys, replay.keys, now, progress)
    is_clean = checkpoint is not None and checkpoint.clean and checkpoint.lsn == end.lsn
    verify_blobs(blobs, progress, is_clean=is_clean)
    verify_linked(linked, replay.payloads, progress, is_clean=is_clean)
    cut_bytes = end_log(files, end, replay.durable_lsn, is_clean=is_clean)
    if not is_clean and replay.boot == boot:
        segments.rewrite_flags()
    frames = start.decide(
        topics, now, progress.over, clean=is_clean, tail_may_be_lost=not boot or replay.boot != boot
    )
    absorbed = blobs.sweep({topic.id: topic.head_seq for topic in engine.by_id.values()})
    wal = Wal(
        folders.wal,
        shard,
        files,
        end.lsn,
        blobs=blobs,
        linked=linked,
        copies=copies,
        file_bytes=wal_file_bytes,
        sync_ms=wal_sync_ms,
    )
    frames.append(start_frame(boot, now.ts))
    unwritten = begin_log(wal, folders.checkpoint, frames, progress)
    progress.tell(1.0)
    return Shard(
        engine, wal, segments, folders.checkpoint, kept, absorbed, boot, cut_bytes, unwritten
    )


def open_folders(data_dir: Path, shard: int, progress: StartProgress) -> Folders:
    """Afterwards the shard's folders are there, and the disk knows all names in them.

    A process that was killed may have left names that the disk does not know, and recovery builds
    on them. Log files that were never finished are removed.
    """
    name = f"{shard:02d}"
    folders = Folders(*(data_dir / part / name for part in Folders._fields))
    for folder in progress.over(folders, 1):  # each may wait for a busy disk
        make_directory(folder)
    for folder in progress.over((data_dir, *(folder.parent for folder in folders), *folders), 1):
        sync_directory(folder)
    for unfinished in folders.wal.glob(f"*{NEW}"):
        unfinished.unlink()
    return folders


def read_checkpoints(folder: Path, progress: StartProgress) -> list[Checkpoint]:
    """All whole checkpoints, the newest first. Raises `Damaged` at one of an unknown version."""
    try:
        return checkpoints.whole(folder, progress.beat)
    except checkpoints.UnreadableVersion as error:
        raise Damaged(error.path, 8, str(error)) from error


def open_segments(
    folder: Path,
    shard: int,
    checkpoint: Checkpoint | None,
    kept: list[Kept],
    progress: StartProgress,
) -> SegmentStore:
    """Afterwards every segment that the checkpoint names is open.

    Segments that no checkpoint of ``kept`` names are removed. Raises `Damaged`.
    """
    return SegmentStore.open(
        folder,
        shard,
        checkpoint.segments if checkpoint else (),
        kept=frozenset().union(*(each.segments for each in kept)),
        beat=progress.beat,
    )


def open_log(folder: Path, shard: int) -> list[WalFile]:
    """Afterwards every file of the log is open, under its own name. Raises `Damaged`."""
    files = []
    for path in log_paths(folder, shard):
        file = WalFile.open(path, shard)
        if path != file.path:
            path.replace(file.path)
            sync_directory(folder)
        files.append(file)
    return files


def verify_blobs(blobs: BlobStore, progress: StartProgress, *, is_clean: bool) -> None:
    """Afterwards every blob that the log names is there, and whole. Raises `Damaged`.

    After an orderly stop only headers are read: the first reader of the records reads all of it.
    """
    for blob_id in progress.over(blobs.added()):
        blobs.verify(*blob_id, whole=not is_clean)


def begin_log(
    wal: Wal, checkpoint_folder: Path, frames: list[Frame], progress: StartProgress
) -> list[Frame]:
    """Afterwards the frames of this start are on the disk, or returned when there is no room.

    Records of `ephemeral` topics are acknowledged without the log, but not before that. The
    reserves are there, too, unless the disk is full: then the loop goes on looking for room.
    """
    with contextlib.suppress(OSError):
        progress.beat()
        wal.writer.spares.fill_reserve()
        progress.beat()
        checkpoints.keep_room(checkpoint_folder)
    progress.beat()
    wal.begin(frames)
    try:
        wal.wait_synced(progress.beat)
        unwritten = []
    except NoRoom:
        unwritten = frames
    wal.rotates_by_blobs = True
    return unwritten
