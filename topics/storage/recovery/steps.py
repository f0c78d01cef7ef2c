"""Recovery: opens a shard's data and leaves it ready for the first write.

    open_folders        the disk has the names in the folders
    checkpoints.whole   the newest whole checkpoint                          checkpoints.py
    SegmentStore.open   the segments that it names
    open_log            the files of the log
    check_founded       without a checkpoint the log has to have everything
    restore_topics      topics and extents as the checkpoint knows them      restore.py
    LogReplay.run       all frames from where the checkpoint says            log_replay.py
    check_sealed        the log is as long as it was when segments were made
    restore_keys        idempotency keys that still live                     restore.py
    BlobStore.verify    the blobs that the log names are there, and whole
    decide              no seq and no `$ts` is given twice
    ------------------- up to here a start reads, from here on files change
    end_log             what follows the last frame is gone                  tail.py
    sweep               files that nothing names are gone
    begin_log           the log holds the frames of this start

No step repairs damage: `Damaged` (path, offset, reason) stops the process, and every file stays as
it is. Nothing is written into the log before its end is on the disk (``decisions/0014``).
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
from topics.storage import checkpoints, names
from topics.storage.checkpoints import Kept
from topics.storage.disk import Damaged, boot_id, make_directory, sync_directory
from topics.storage.folders import Folders
from topics.storage.frame_reader import FrameReader
from topics.storage.names import own_files
from topics.storage.recovery.log_replay import LogReplay
from topics.storage.recovery.replay_store import ReplayStore
from topics.storage.recovery.restore import restore_keys, restore_topics
from topics.storage.recovery.tail import LogEnd, end_log
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.start_progress import StartProgress
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.file import NoRoom, WalFile, log_paths
from topics.storage.wal.log import Wal


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard's data, open and ready for the first write."""

    engine: ShardEngine
    wal: Wal
    segments: SegmentStore
    folders: Folders
    kept: list[Kept]  # checkpoints that stand, the older first
    absorbed: list[Path]  # blobs whose records a segment holds
    boot: str  # names this run of the machine
    cut_bytes: int  # of a torn tail
    # Of this start: the log had no room for them, and takes no other frame before them.
    unwritten_frames: list[Frame]


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


class ShardReader:
    """The part of a start that only reads. After a refusal it holds what was read before; `close`
    it then.
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
        checkpoint before the newest, which a start uses if the newest is damaged.
        """
        self._shard, self._progress = shard, progress
        self.folders = folders = open_folders(data_dir, shard, progress)
        standing = checkpoints.whole(folders.checkpoint, progress.beat)
        self.checkpoint = checkpoint = standing[age] if standing else None
        self.kept = [
            Kept(each.replay_from, frozenset(each.segments)) for each in reversed(standing)
        ]
        numbers = checkpoint.segments if checkpoint else ()
        self.segments = SegmentStore.open(folders.segment, shard, numbers, beat=progress.beat)
        self.files: list[WalFile] = []
        self.blobs = BlobStore(folders.blob)
        self.blobs.beat = progress.beat
        self.engine = ShardEngine(shard, shards)
        self.frames = FrameReader(self.blobs)
        self.topics = Replay(self.engine.table)
        self.replay = LogReplay(self.topics, self.blobs, checkpoint, progress)

    def open_log(self, *, writable: bool) -> None:
        """Afterwards every file of the log is open. Raises `Damaged`."""
        for path in log_paths(self.folders.wal, self._shard):
            self.files.append(WalFile.open(path, self._shard, writable=writable))

    def read(self, now: Now, *, trusts_stop: bool = True) -> tuple[LogEnd, bool]:
        """Where the log ends, and whether the process before stopped in order. ``trusts_stop``:
        then not all that frames name is compared. Raises `Damaged`.
        """
        checkpoint, engine, progress, files = (
            *(self.checkpoint, self.engine, self._progress, self.files),
        )
        if checkpoint is None:
            check_founded(self.folders, files)
        engine.store = store = ReplayStore(engine, self.segments, files, self.frames)
        restored = restore_topics(self.topics, self.segments, store, checkpoint, files, progress)
        end = self.replay.run(self.folders.wal, files)
        check_sealed(self.folders.segment, self.segments, end.lsn)
        restore_keys(engine.table, self.segments, *restored, self.replay.keys, now, progress)
        is_clean = checkpoint is not None and checkpoint.clean and checkpoint.lsn == end.lsn
        # After an orderly stop only headers are read: the first reader of the records reads all.
        is_whole = not (is_clean and trusts_stop)
        for blob_id in progress.over(self.blobs.added()):
            self.blobs.verify(*blob_id, whole=is_whole)
        return end, is_clean

    def close(self) -> None:
        """Leave no file open."""
        for file in self.files:
            file.close()
        self.segments.maps.close()


@without_collector()
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
) -> Shard:
    """Recover a shard from its files. ``data_dir`` is the same as for `ShardReader`.

    ``boot`` identifies the current boot of the machine. With ``has_tail``, the log is taken to be
    complete up to its end even if it was written under another boot.

    ``report`` is called several times a second with the completed fraction, 0.0 to 1.0.

    If the log has no space for the frames of this start, the shard can still be read: see
    `Shard.unwritten_frames`.

    Raise `Damaged` if acknowledged data is damaged or a file has an unknown version, and OSError if
    the log cannot be written.
    """
    boot, progress = boot_id() if boot is None else boot, StartProgress(report)
    reader = ShardReader(data_dir, shard, shards, progress)
    folders, segments, engine, files = reader.folders, reader.segments, reader.engine, reader.files
    replay, blobs, kept = reader.replay, reader.blobs, reader.kept
    try:
        reader.open_log(writable=True)
        end, is_clean = reader.read(now)
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
    # Nothing refuses the start any more: only from here on files change.
    for folder in progress.over(folders.own, 1):
        make_directory(folder)
    for file in files:
        file.take_name()
    cut_bytes = end_log(files, end, replay.durable_lsn, is_clean=is_clean)
    if not is_clean and replay.boot == boot:
        segments.flags.write_again()
    segments.sweep(frozenset().union(*(each.segments for each in kept)), progress.beat)
    for unfinished in own_files(folders.wal, names.NEW_LOG):
        unfinished.unlink()
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
    frames.append(start_frame(boot, now.ts))
    unwritten = begin_log(wal, folders.checkpoint, frames, progress)
    progress.tell(1.0)
    return Shard(
        *(engine, wal, segments, folders, kept, absorbed),
        *(boot, cut_bytes, unwritten),
    )


def open_folders(data_dir: Path | Folders, shard: int, progress: StartProgress) -> Folders:
    """Return the shard's folders, after syncing each existing folder.

    A killed process may have left names that are not yet on the disk, and recovery depends on them.
    """
    folders = Folders.under(data_dir, shard) if isinstance(data_dir, Path) else data_dir
    for folder in progress.over((*folders.above, *folders.own), 1):
        with contextlib.suppress(FileNotFoundError):  # a new shard has no folders
            sync_directory(folder)  # may wait for a busy disk
    return folders


def check_founded(folders: Folders, files: list[WalFile]) -> None:
    """Raises `Damaged` when no checkpoint is whole, and the log alone does not have everything.

    It has while its first file stands: none is given up before two checkpoints are written.
    """
    held = [
        path
        for folder, name in (
            (folders.checkpoint, names.CHECKPOINT),
            (folders.segment, names.SEGMENT),
        )
        for path in reversed(own_files(folder, name))
    ]
    if held and not (files and files[0].base == 0):
        reason = "no checkpoint is whole, and the log no longer has everything; restore a backup"
        raise Damaged(held[0], 0, reason)


def check_sealed(folder: Path, segments: SegmentStore, end: int) -> None:
    """Raises `Damaged` when a segment that no checkpoint names says that the log went on.

    The log had been synced before its records were sealed.
    """
    named = {segment.path for segment in segments.segments.values()}
    for path in sorted({*own_files(folder, names.SEGMENT)} - named):
        with contextlib.suppress(BadSegment), path.open("rb") as file:
            sealed_to = decode_header(file.read(HEADER_BYTES)).end
            if sealed_to > end:
                reason = f"has records of the log up to {sealed_to:#x}, and it ends at {end:#x}"
                raise Damaged(path, 0, reason)


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
