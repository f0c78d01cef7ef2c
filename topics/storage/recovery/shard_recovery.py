"""Recovery: opens a shard's data and prepares it for the first write.

    open_folders        make the names in the folders durable
    intact_checkpoints  read the newest intact checkpoint                    checkpoints.py
    SegmentStore.open   open the segments that it refers to
    open_log            open the files of the log
    check_log_start     check that without a checkpoint, the log contains everything
    restore_topics      restore topics and extents from the checkpoint       topic_restore.py
    LogReplay.run       replay all frames from the checkpoint's LSN on       log_replay.py
    check_sealed        check that the log has all frames from which segments were made
    restore_keys        restore the idempotency keys that are still valid    topic_restore.py
    BlobStore.verify    check that the blobs to which the log refers exist and are intact
    decide              ensure that no seq and no `$ts` is assigned twice
    ------------------- startup only reads in the steps above; the steps below change files
    end_log             remove the bytes after the last frame                log_tail.py
    sweep               remove files that are not referred to
    write_start_frames  write the startup frames to the log

No step repairs damage: `Damaged` (path, offset, reason) stops the process, and every file stays
unchanged. Nothing is written to the log before its end is durable (``decisions/0014``).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from topics.engine.changes import start
from topics.engine.now import Now
from topics.engine.replay import Replay
from topics.engine.shard import ShardEngine
from topics.formats.disk.frame_bodies import start_frame
from topics.formats.disk.frames import Frame
from topics.formats.disk.segment import HEADER_BYTES, BadSegment, decode_header
from topics.storage import checkpoints, file_names
from topics.storage.checkpoints import CheckpointNeeds
from topics.storage.disk import Damaged, boot_id, make_directory, sync_directory
from topics.storage.file_names import own_files
from topics.storage.folders import Folders
from topics.storage.frame_reader import FrameReader
from topics.storage.recovery.log_replay import LogReplay
from topics.storage.recovery.log_tail import LogEnd, end_log
from topics.storage.recovery.replay_store import ReplayStore
from topics.storage.recovery.topic_restore import restore_keys, restore_topics
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.start_progress import StartProgress
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.log import Wal
from topics.storage.wal.log_file import NoSpace, WalFile, log_paths


@dataclass(frozen=True, slots=True)
class RecoveredShard:
    """The data of a shard, open and ready for the first write."""

    engine: ShardEngine
    wal: Wal
    segments: SegmentStore
    folders: Folders
    kept: list[CheckpointNeeds]  # the intact checkpoints, older first
    absorbed: list[Path]  # blobs whose records are in a segment
    boot: str  # identifier of the machine's current boot
    cut_bytes: int  # length of a removed torn tail
    # Startup frames for which the log had no space. They must precede all other frames.
    unwritten_frames: list[Frame]
    damaged_checkpoints: list[Path]  # startup did not use them


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Disable garbage collection inside the context.

    Startup creates millions of permanent objects, and each collection would scan all of them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class ShardReader:
    """The part of startup that only reads. If it raises an error, the caller must call `close`.

    Until then, the object contains the data that was read before the error.
    """

    def __init__(
        self,
        data_dir: Path | Folders,
        shard: int,
        shards: int,
        progress: StartProgress,
        *,
        age: int = 0,
    ) -> None:
        """Read the newest intact checkpoint. Raise `Damaged` if acknowledged data is damaged.

        ``data_dir`` may also be the folders that a server holds open. ``age`` 1 selects the
        checkpoint before the newest, which startup uses if the newest is damaged.
        """
        # Each step below only reads. An object that fails here leaves no open log files.
        self._shard, self._progress = shard, progress
        self.folders = folders = open_folders(data_dir, shard, progress)
        # The newest intact checkpoint is first. It is not an error if the newest checkpoint is
        # damaged and an older one is intact, because the log that the older one needs still exists.
        intact = checkpoints.intact_checkpoints(folders.checkpoint, progress.heartbeat)
        self.checkpoint = checkpoint = intact[age] if intact else None
        self.damaged_checkpoints = checkpoints.damaged_checkpoints(folders.checkpoint, intact)
        # Keep the files that any intact checkpoint needs, even if only the older one needs them.
        self.kept = [
            CheckpointNeeds(each.replay_from, frozenset(each.segments)) for each in reversed(intact)
        ]
        numbers = checkpoint.segments if checkpoint else ()
        self.segments = SegmentStore.open(
            folders.segment, shard, numbers, heartbeat=progress.heartbeat
        )
        self.files: list[WalFile] = []
        self.blobs = BlobStore(folders.blob)
        self.blobs.heartbeat = progress.heartbeat
        self.engine = ShardEngine(shard, shards)
        self.frames = FrameReader(self.blobs)
        self.topics = Replay(self.engine.table)
        self.replay = LogReplay(self.topics, self.blobs, checkpoint, progress)

    def open_log(self, *, writable: bool) -> None:
        """Open every file of the log. Raise `Damaged`."""
        for path in log_paths(self.folders.wal, self._shard):
            self.files.append(WalFile.open(path, self._shard, writable=writable))

    def read(self, now: Now, *, trusts_stop: bool = True) -> tuple[LogEnd, bool]:
        """Read the shard. Return where the log ends, and whether the last process stopped cleanly.

        With ``trusts_stop``, the bodies of blobs are not verified after a clean shutdown. Raise
        `Damaged`.
        """
        checkpoint, engine, progress, files = (
            *(self.checkpoint, self.engine, self._progress, self.files),
        )
        # If there is no checkpoint, the log must contain everything, from its first frame on.
        if checkpoint is None:
            check_log_start(self.folders, files)
        # Records are read through this store while frames are replayed.
        engine.store = store = ReplayStore(engine, self.segments, files, self.frames)
        restored = restore_topics(self.topics, self.segments, store, checkpoint, files, progress)
        end = self.replay.run(self.folders.wal, files)
        # This check needs the end of the log, which the replay has found.
        check_sealed(self.folders.segment, self.segments, end.lsn)
        restore_keys(engine.table, self.segments, *restored, self.replay.keys, now, progress)
        # After a clean shutdown, the log ends exactly at the LSN of the checkpoint. Otherwise the
        # last process has crashed.
        is_clean = checkpoint is not None and checkpoint.clean and checkpoint.lsn == end.lsn
        # After a clean shutdown, only the headers of blobs are read. The first reader of the
        # records verifies the body.
        is_complete = not (is_clean and trusts_stop)
        for blob_id in progress.over(self.blobs.added()):
            # A blob is needed only if the log still refers to it at the end.
            self.blobs.verify(*blob_id, with_body=is_complete)
        return end, is_clean

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()
        self.segments.maps.close()


@without_gc()
def recover(
    data_dir: Path | Folders,
    shard: int,
    shards: int,
    now: Now,
    *,
    wal_file_bytes: int,
    wal_sync_ms: int,
    report: Callable[[float], None] = lambda _: None,
    boot: str | None = None,
    has_tail: bool = False,
) -> RecoveredShard:
    """Recover a shard from its files. ``data_dir`` is the same as for `ShardReader`.

    ``boot`` identifies the current boot of the machine. If ``has_tail`` is true, the log is assumed
    to be complete up to its end even if it was written during a different boot.

    ``report`` is called several times a second with the completed fraction, 0.0 to 1.0.

    If the log has no space for the startup frames, the shard can still be read: see
    `RecoveredShard.unwritten_frames`.

    Raise `Damaged` if acknowledged data is damaged or a file has an unknown version, and OSError if
    the log cannot be written.
    """
    boot, progress = boot_id() if boot is None else boot, StartProgress(report)
    reader = ShardReader(data_dir, shard, shards, progress)
    folders, segments, engine, files = reader.folders, reader.segments, reader.engine, reader.files
    replay, blobs, kept = reader.replay, reader.blobs, reader.kept
    # If startup is refused, every file must stay unchanged, so that an operator can copy or repair
    # it.
    try:
        reader.open_log(writable=True)
        end, is_clean = reader.read(now)
        # Seqs and `$ts` of records in memory were reserved in advance. The decision skips the
        # values that may have been used and lost. After a reboot, even written frames may be lost,
        # because the page cache was lost.
        frames = start.decide(
            reader.topics,
            now,
            progress.over,
            clean=is_clean,
            tail_may_be_lost=not has_tail and (not boot or replay.boot != boot),
        )
    except BaseException:
        reader.close()
        raise
    # All checks have passed. Files are changed only from here on.
    for folder in progress.over(folders.own, 1):
        make_directory(folder)
    # A spare that became a log file may have lost its new name in a power loss.
    for file in files:
        file.take_name()
    # Remove the torn tail durably before the first new frame. Otherwise a later startup could find
    # an old frame after a new one.
    cut_bytes = end_log(files, end, replay.durable_lsn, is_clean=is_clean)
    # During the same boot, the page cache may contain flags whose sync has failed, and the kernel
    # would not write them again on its own.
    if not is_clean and replay.boot == boot:
        segments.flags.rewrite()
    # Delete files that no intact checkpoint refers to. They were unfinished when the process
    # crashed.
    segments.sweep(frozenset().union(*(each.segments for each in kept)), progress.heartbeat)
    for unfinished in own_files(folders.wal, file_names.NEW_LOG):
        unfinished.unlink()
    # A blob with seqs above the head of its topic belongs to an append that was never logged.
    absorbed = blobs.sweep({topic.id: topic.head_seq for topic in engine.by_id.values()})
    wal = Wal(
        folders.wal,
        shard,
        files,
        end.lsn,
        blobs=blobs,
        frames=reader.frames,
        file_bytes=wal_file_bytes,
        sync_ms=wal_sync_ms,
        check=folders.check,
    )
    # The START frame is the last startup frame. It identifies the boot for later startups.
    frames.append(start_frame(boot, now.ts))
    unwritten = write_start_frames(wal, folders.checkpoint, frames, progress)
    progress.report_share(1.0)
    return RecoveredShard(
        *(engine, wal, segments, folders, kept, absorbed),
        *(boot, cut_bytes, unwritten, reader.damaged_checkpoints),
    )


def open_folders(data_dir: Path | Folders, shard: int, progress: StartProgress) -> Folders:
    """Return the shard's folders, after syncing each existing folder.

    A killed process may have left names that are not yet on the disk, and recovery depends on them.
    """
    folders = Folders.under(data_dir, shard) if isinstance(data_dir, Path) else data_dir
    for folder in progress.over((*folders.parents, *folders.own), 1):
        with contextlib.suppress(FileNotFoundError):  # a new shard has no folders
            sync_directory(folder)  # may wait for a busy disk, hence the progress reports
    return folders


def check_log_start(folders: Folders, files: list[WalFile]) -> None:
    """Raise `Damaged` if no checkpoint is intact and the log does not contain everything.

    The log contains everything while it has its first file. This file is not released before two
    checkpoints are written.
    """
    held = [
        path
        for folder, name in (
            (folders.checkpoint, file_names.CHECKPOINT),
            (folders.segment, file_names.SEGMENT),
        )
        for path in reversed(own_files(folder, name))
    ]
    # The first file has base 0. It proves that nothing was removed from the log.
    if held and not (files and files[0].base == 0):
        reason = (
            "no checkpoint is intact, and the log no longer contains all records; restore a backup"
        )
        raise Damaged(held[0], 0, reason)


def check_sealed(folder: Path, segments: SegmentStore, end: int) -> None:
    """Raise `Damaged` if a segment that no checkpoint refers to has records from beyond the log's
    end.

    Records are sealed only after the log was synced, so the log has lost synced frames.
    """
    named = {segment.path for segment in segments.segments.values()}
    # The segments of a checkpoint were checked when they were opened. Other segments belong to a
    # round that was interrupted after the rewrite.
    for path in sorted({*own_files(folder, file_names.SEGMENT)} - named):
        with contextlib.suppress(BadSegment), path.open("rb") as file:
            sealed_to = decode_header(file.read(HEADER_BYTES)).end
            if sealed_to > end:
                reason = (
                    f"has records of the log up to {sealed_to:#x}, but the log ends at {end:#x}"
                )
                raise Damaged(path, 0, reason)


def write_start_frames(
    wal: Wal, checkpoint_folder: Path, frames: list[Frame], progress: StartProgress
) -> list[Frame]:
    """Write and sync the startup frames. Return the frames if the log has no space for them.

    Records in `ephemeral` topics are acknowledged without a write to the log, but not before these
    frames have been written. The call also creates the reserves. On a full disk the shard creates
    them later.
    """
    # Create the reserves before the first frame, while the disk may still have space.
    with contextlib.suppress(OSError):
        progress.heartbeat()
        wal.writer.spares.fill_reserve()
        progress.heartbeat()
        checkpoints.reserve_space(checkpoint_folder)
    progress.heartbeat()
    wal.begin(frames)
    # `wait_synced` raises other errors, which abort startup.
    try:
        wal.wait_synced(progress.heartbeat)
        unwritten = []
    except NoSpace:
        unwritten = frames
    # It is now known whether the log has space. From now on, blobs may end a file.
    wal.rotates_by_blobs = True
    return unwritten
