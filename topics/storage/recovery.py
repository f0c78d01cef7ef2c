"""Opening a shard's data: the newest whole checkpoint, the segments that it names, then the log
from where it says.

A torn tail is cut, anything worse refused. The log ends where only zeros follow, or what a file
held in an earlier life. Where it breaks off (there is no whole frame, and not only zeros) there are
two cases:

    torn tail   nothing says that the log was synced beyond the break: nothing was promised, so all that follows is cut off
    damage      a whole frame after the break, a checkpoint or a next file does say so, or a file is missing: acknowledged data
                was hurt. `Damaged` stops the process, and the bytes stay as they are.

A log that breaks off just at the end of its last synced write looks like a torn tail; no frame can
tell then.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain, starmap
from pathlib import Path
from typing import Any

import cbor2

from topics.engine.changes import runs_of_frame
from topics.engine.locators import Locator, is_extent, split_locator
from topics.engine.replay import Misfit
from topics.engine.shard import Now, ShardEngine
from topics.formats.buffers import Buffer
from topics.formats.disk.blob import HEADER_BYTES as BLOB_HEADER_BYTES
from topics.formats.disk.records import RecordFlags, RecordsView, View, blob_bytes, live_runs
from topics.formats.disk.segment import ExtentEntry, ExtentKey
from topics.formats.disk.wal import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    Frame,
    FrameHeader,
    FrameKind,
    check_frame,
    header_at,
    scan_frames,
)
from topics.formats.ranges import IndexRun, SeqRun
from topics.storage import checkpoints
from topics.storage.checkpoints import Checkpoint, Kept
from topics.storage.disk import Damaged, boot_id, make_directory, sync_directory
from topics.storage.pulse import Pulse
from topics.storage.segments.store import SegmentStore
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.file import NEW, NoRoom, WalFile, log_paths
from topics.storage.wal.log import Wal, frame_records

REPORT_BYTES = 1 << 20  # progress is told after so much of the log
EXTENTS_AT_ONCE, FRAMES_AT_ONCE = 64, 4096  # between two signs of life
_ZEROS = bytes(1 << 16)
_APPEND, _EXTERNAL = (
    int(FrameKind.APPEND),
    int(RecordFlags.EXTERNAL),
)  # looked up once for each frame, by the million


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
    # Of this start: the log has no room for them, and takes nothing else before.
    unsaid: list[Frame]


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

    ``report`` is called with the share done, 0.0 to 1.0: several times a second, whatever there is
    to do.

    A log that has no room for the frames of this start can be read: see `Shard.unsaid`.

    Raises `Damaged` (path, offset, reason) when acknowledged data was hurt, or a file is of an
    unknown version; OSError when the log cannot be written.
    """
    boot, pulse = boot_id() if boot is None else boot, Pulse(report)
    folder, checkpoint_folder, blob_folder, segment_folder = (
        data_dir / part / f"{shard:02d}" for part in ("wal", "checkpoint", "blob", "segment")
    )
    parts = (folder, checkpoint_folder, blob_folder, segment_folder)
    for part in parts:
        make_directory(part)
    for known in (data_dir, *(part.parent for part in parts), *parts):
        sync_directory(
            known
        )  # a process that was killed may have left names that the disk does not know, and we build on them
    for leftover in folder.glob(f"*{NEW}"):
        leftover.unlink()
    try:
        standing = checkpoints.whole(checkpoint_folder, pulse)
    except checkpoints.UnknownVersion as error:
        raise Damaged(error.path or checkpoint_folder, 8, str(error)) from error
    checkpoint = standing[0] if standing else None
    kept = [Kept(each.replay_from, frozenset(each.segments)) for each in reversed(standing)]
    segments = SegmentStore.open(
        segment_folder,
        shard,
        checkpoint.segments if checkpoint else (),
        kept=frozenset().union(*(each.segments for each in kept)),
        beat=pulse.beat,
    )
    engine, blobs = ShardEngine(shard, shards), BlobStore(blob_folder)
    blobs.beat = pulse.beat
    engine.store = store = _Store(engine, segments, blobs)
    files = _open_log(folder, shard)
    extents = _restore(engine, segments, store, checkpoint, files, pulse) if checkpoint else {}
    replay = _Replay(engine, blobs, now, pulse, checkpoint)
    store.files = replay.files
    end, left = replay.run(folder, files)
    replay.remember_keys(segments, extents, checkpoint.keys if checkpoint else {})
    clean = checkpoint is not None and checkpoint.clean and checkpoint.position == end
    for blob_id in pulse.over(blobs.added()):
        blobs.verify(
            *blob_id, whole=not clean
        )  # after an orderly stop, the first who wants its records looks at all of it
    cut_bytes = left if left and _is_begun(files[-1], end) else 0
    if files:
        _end_at(files[-1], end, cut=left > 0 or not clean, durable=end if clean else replay.durable)
    if not clean and replay.boot == boot:
        segments.write_flags_again()
    frames = engine.finish_replay(
        now, pulse.over, clean=clean, tail_may_be_lost=not boot or replay.boot != boot
    )
    absorbed = blobs.sweep({topic_id: topic.head_seq for topic_id, topic in engine.by_id.items()})
    wal = Wal(
        folder, shard, files, end, blobs=blobs, file_bytes=wal_file_bytes, sync_ms=wal_sync_ms
    )
    with contextlib.suppress(OSError):  # the loop goes on looking for room
        wal.writer.stock.fill_reserve()
        checkpoints.keep_room(checkpoint_folder)
    mark = cbor2.dumps({"boot": boot})
    frames.append(Frame(FrameKind.MARK, ts_ms=now.ts, ext_len=len(mark), parts=(mark,)))
    unsaid = [] if _begun(wal, frames) else frames
    wal.rotates_by_blobs = True
    pulse.tell(1.0)
    return Shard(engine, wal, segments, checkpoint_folder, kept, absorbed, boot, cut_bytes, unsaid)


def _begun(wal: Wal, frames: list[Frame]) -> bool:
    """Tell the log of this start; False when it has no room for that. Records of `ephemeral` topics
    are acknowledged without the log, but not before.
    """
    wal.begin(frames)
    try:
        wal.wait_synced()
    except NoRoom:
        return False
    return True


def _open_log(folder: Path, shard: int) -> list[WalFile]:
    """The files of the log, each under its name."""
    files = []
    for path in log_paths(folder, shard):
        file = WalFile.open(path, shard)
        if path != file.path:
            path.replace(file.path)
            sync_directory(folder)
        files.append(file)
    return files


def _restore(
    engine: ShardEngine, segments: SegmentStore, store: _Store, checkpoint: Checkpoint, files: list[WalFile], pulse: Pulse
) -> dict[int, list[int]]:  # fmt: skip
    """Topics, then their extents; the places of all these, by topic."""
    engine.restore_engine(checkpoint.shard)
    for kept in pulse.over(checkpoint.topics):
        engine.restore_topic(kept)
    ahead = (
        _deletes_ahead(checkpoint, files, pulse)
        if any(1 in segment.has_dead for segment in segments.segments.values())
        else {}
    )
    locators: defaultdict[int, list[int]] = defaultdict(list)
    for number in checkpoint.segments:
        for locator, entry in pulse.over(segments.entries(number), EXTENTS_AT_ONCE):
            if entry.topic_id in engine.by_id:
                store.take_back(locator, entry, ahead.get(entry.topic_id, ()))
                _restore_extent(engine, segments, store.delete_flags(locator), locator, entry)
                locators[entry.topic_id].append(locator)
    return locators


def _deletes_ahead(
    checkpoint: Checkpoint, files: list[WalFile], pulse: Pulse
) -> dict[int, list[SeqRun]]:
    """By topic, the runs that were deleted after the checkpoint had noted the topic. The flags of
    segments know of them already.
    """
    noted = {kept["id"]: kept["position"] for kept in checkpoint.topics}
    found: defaultdict[int, list[SeqRun]] = defaultdict(list)
    for file, end in zip(files, [*(file.base for file in files[1:]), None], strict=True):
        if end is not None and end <= checkpoint.replay_from:
            continue
        view = file.view()
        for header in pulse.over(
            scan_frames(view, file.offset(file.base), file.base, file.seed), FRAMES_AT_ONCE
        ):
            if (
                header.kind == FrameKind.DELETE
                and header.record_count
                and header.position >= noted.get(header.topic_id, header.end)
            ):
                start = file.offset(header.position) + FRAME_HEADER_BYTES
                found[header.topic_id] += runs_of_frame(view[start : start + header.body_len])
    return found


def _restore_extent(
    engine: ShardEngine,
    segments: SegmentStore,
    dead: Buffer | None,
    locator: int,
    entry: ExtentEntry,
) -> None:
    dead_count, dead_bytes = 0, 0
    if dead is not None:
        dead_count = bytes(dead).count(1)
        try:
            live = sum(
                segments.records(locator).size(start, stop)
                for start, stop in live_runs(dead, 0, entry.record_count)
            )
            dead_bytes = entry.blob_bytes - live
        except Damaged:  # as in `retention`, where all count alike
            dead_bytes = entry.blob_bytes * dead_count // entry.record_count
    try:
        engine.restore_extent(
            entry.topic_id,
            entry.first_seq,
            entry.record_count,
            Locator(locator),
            entry.blob_bytes,
            entry.first_ts,
            dead_count,
            dead_bytes,
        )
    except Misfit as error:
        raise Damaged(
            segments.segments[split_locator(locator)[0]].path, entry.offset, str(error)
        ) from error


class _Store:
    """Where the engine finds records during the replay."""

    def __init__(self, engine: ShardEngine, segments: SegmentStore, blobs: BlobStore) -> None:
        self._engine, self._segments, self._blobs = engine, segments, blobs
        self._flags: dict[int, bytearray] = {}  # of extents whose own are ahead of the replay
        self.files: list[WalFile] = []

    def take_back(self, locator: int, entry: ExtentEntry, runs: Iterable[SeqRun]) -> None:
        """Let the records of these runs live until the replay deletes them: a cap that is replayed
        before that must find them, or it takes less than it did at first, and what was shown as
        gone is back.
        """
        dead = self._segments.dead(locator)
        if dead is None:
            return
        flags = bytearray(dead)
        for first, length in runs:
            start, stop = (
                max(first - entry.first_seq, 0),
                min(first + length - entry.first_seq, len(flags)),
            )
            if start < stop:
                flags[start:stop] = bytes(stop - start)
        if flags != dead:
            self._flags[locator] = flags

    def records(self, locator: int) -> View:
        """As `Store.records`."""
        if is_extent(locator):
            return self._segments.records(locator)
        file = self.files[bisect_right(self.files, locator, key=lambda file: file.base) - 1]
        try:
            return frame_records(file, locator, self._blobs)
        except Damaged as damage:
            if damage.path.exists():
                raise
            # Its topic is deleted further on, or it is missed when the log has ended. Until then,
            # records of one byte will do.
            count = header_at(file.view(), file.offset(locator)).record_count
            return RecordsView(
                0, count, 0, memoryview(array("I", range(1, count + 1)).tobytes() + bytes(count))
            )

    def delete_flags(self, locator: int) -> Buffer | None:
        """As `Store.delete_flags`."""
        if not is_extent(locator):
            return self._engine.delete_flags.of(locator)
        return self._flags.get(locator) or self._segments.dead(locator)

    def flag_deleted(self, locator: int, runs: Sequence[IndexRun]) -> None:
        """As `Store.flag_deleted`."""
        if is_extent(locator):
            self._segments.mark(
                locator, chain.from_iterable(starmap(range, runs)), 0
            )  # the log is synced before any mark is written
            if locator in self._flags:
                for start, stop in runs:
                    self._flags[locator][start:stop] = b"\1" * (stop - start)
        else:
            self._engine.delete_flags.flag(locator, self.records(locator).count, runs)

    def release(self, locators: Sequence[int]) -> None:
        """As `Store.release`: what is not named after the replay is found then."""
        self._engine.delete_flags.forget(locators)


class _Replay:
    """Feeds every frame of the log to the engine."""

    def __init__(
        self, engine: ShardEngine, blobs: BlobStore, now: Now, pulse: Pulse, checkpoint: Checkpoint | None
    ) -> None:  # fmt: skip
        self.engine, self.blobs, self.now = engine, blobs, now
        self.boot: str = checkpoint.shard["boot"] if checkpoint else ""
        self.files: list[WalFile] = []
        self._pulse = pulse
        # A checkpoint says that the log was synced up to ``promised``, and is in segments up to
        # ``_from``.
        self._promised, self._from = (
            (checkpoint.position, checkpoint.replay_from) if checkpoint else (0, 0)
        )
        self.durable = self._promised  # the log is known to be on the disk up to here
        self._total = self._done = 0
        self._keys: defaultdict[int, list[ExtentKey]] = defaultdict(
            list
        )  # by topic, in the order of the log

    def run(self, folder: Path, files: list[WalFile]) -> tuple[int, int]:
        """Replay the files from where the checkpoint says; where the log ends, and how many bytes
        follow there up to the zeros.
        """
        self.files.extend(files)
        bases = [file.base for file in files]
        first = max(bisect_right(bases, self._from) - 1, 0)
        position, left = self._from, 0
        self._total = max(sum(file.size for file in files[first:]), 1)
        for index, file in enumerate(files[first:], first):
            if file.base != position:
                raise Damaged(
                    file.path,
                    0,
                    f"the log before it ends at {position:#x}: a file between is missing or cut",
                )
            position = self._replay_file(file)
            if index + 1 < len(files) and position == bases[index + 1]:
                continue
            left = _length_without_zeros(file.view(), file.offset(position))
            if left:
                self._check_nothing_promised(file, position, last=file is files[-1])
        if position < self._promised:
            path = files[-1].path if files else folder
            raise Damaged(
                path,
                0,
                f"the log ends at {position:#x}, before the checkpoint at {self._promised:#x}",
            )
        return position, left

    def _check_nothing_promised(self, file: WalFile, position: int, *, last: bool) -> None:
        offset = file.offset(position)
        if not last:  # the next file began after a sync of this one
            witness = "the next file"
        elif self._promised > position:
            witness = "the checkpoint"
        elif (later := _synced_beyond(file, position)) is not None:
            witness = f"the one at offset {later}"
        else:
            return
        raise Damaged(file.path, offset, f"damaged frame; {witness} says that it had been synced")

    def _replay_file(self, file: WalFile) -> int:
        """Position at which its frames end."""
        file.read_ahead(self._pulse.beat)
        view, base, shift, tell_at = (
            file.view(),
            file.base,
            file.offset(0),
            file.base + REPORT_BYTES,
        )
        append, promised, position = self.engine.replay_append, self._promised, file.base
        header = None
        try:
            for header in scan_frames(view, file.offset(base), base, file.seed):
                _, _, position, _, _, _, _, _, _, ext_len, kind, flags, _ = header
                if kind != _APPEND or flags & _EXTERNAL:
                    self._apply(header, view, position + shift, base)
                elif append(header, 0, base, position < promised) is not None and ext_len:
                    self._note_key(header, view, position + shift)
                if position > tell_at:
                    tell_at = position + REPORT_BYTES
                    self._pulse.tell((self._done + position + shift) / self._total)
        except Misfit as error:
            assert header is not None, "a frame was looked at"
            reason = f"frame of kind {header.kind} about topic {header.topic_id} does not fit in: {error}"
            raise Damaged(file.path, position + shift, reason) from error
        # It never falls from frame to frame.
        self.durable = max(self.durable, base, header.durable if header else 0)
        self._done += file.size
        self._pulse.tell(self._done / self._total)
        return header.end if header else file.base

    def _apply(self, header: FrameHeader, view: memoryview, offset: int, base: int) -> None:
        kind, engine = header.kind, self.engine
        known = header.position < self._promised
        if kind == _APPEND:
            topic = engine.replay_append(header, self._external(header), base, known)
            if topic is not None and header.ext_len:
                self._note_key(header, view, offset)
        elif kind == FrameKind.TOPIC:
            engine.replay_topic(header, _body(header, view, offset))
        elif kind == FrameKind.TOPIC_DELETED:
            self.blobs.forget(header.topic_id)
            self._keys.pop(header.topic_id, None)
            engine.replay_deleted(header, checkpointed=known)
        elif kind == FrameKind.SEQS_RESERVED:
            engine.replay_reserved(header, checkpointed=known)
        elif kind == FrameKind.DELETE:
            start = offset + FRAME_HEADER_BYTES
            engine.replay_delete(header, view[start : start + header.body_len], checkpointed=known)
        elif kind == FrameKind.FLOOR:
            engine.replay_floor(header, _body(header, view, offset), checkpointed=known)
        elif kind == FrameKind.MARK:
            self.boot = _body(header, view, offset)["boot"]
            engine.replay_start(header)
        elif kind == FrameKind.TS_RESERVED:
            engine.replay_ts_reserved(header)
        else:
            raise Misfit("this program does not know the kind")

    def _external(self, header: FrameHeader) -> int:
        """Note the blob that the frame speaks of; the bytes of its records. What is not there is
        told when the log has ended.
        """
        topic_id, first_seq = header.topic_id, header.first_seq
        self.blobs.add(topic_id, first_seq, header.position)
        length = self.blobs.length(topic_id, first_seq)
        if not length and not self.blobs.path(topic_id, first_seq).exists():
            return header.record_count
        size = blob_bytes(
            length - BLOB_HEADER_BYTES, header.ext_len, header.record_count, header.flags
        )
        if size < header.record_count:
            raise Damaged(
                self.blobs.path(topic_id, first_seq),
                0,
                "blob is shorter than what the log says of it",
            )
        return size

    def _note_key(self, header: FrameHeader, view: memoryview, offset: int) -> None:
        key = _body(header, view, offset).get("k")
        if key is not None:
            self._keys[header.topic_id].append(
                ExtentKey(key, header.first_seq, header.record_count, header.ts_ms)
            )

    def remember_keys(
        self,
        segments: SegmentStore,
        extents: dict[int, list[int]],
        lone_keys: dict[int, list[list[Any]]],
    ) -> None:
        """Idempotency keys come last: only now is it known how long each topic keeps them.

        ``extents``: places by topic, in order. ``lone_keys``: of the checkpoint.
        """
        for topic in self._pulse.over(self.engine.by_id.values()):
            alive_ts = self.now.ts - topic.config.idempotency_window_ms + 1
            lone = map(ExtentKey._make, lone_keys.get(topic.id, ()))
            locators = self._pulse.over(extents.get(topic.id, ()), EXTENTS_AT_ONCE)
            sealed = chain.from_iterable(
                _young_keys(segments, locator, alive_ts) for locator in locators
            )
            for key in self._pulse.over(
                merge(lone, sealed, self._keys.get(topic.id, ()), key=_first_seq)
            ):
                # A key that was used again stands for the later write: the earlier one was too old
                # by the clock that never steps.
                if key.ts_ms >= alive_ts and key.first_seq >= max(
                    topic.keys_from_seq, topic.dedupe.first_seq(key.key) + 1
                ):
                    self.engine.restore_key(
                        topic, key.key, key.first_seq, key.record_count, key.ts_ms, self.now
                    )


def _young_keys(segments: SegmentStore, locator: int, alive_ts: int) -> Iterator[ExtentKey]:
    if segments.entry(locator).last_ts < alive_ts:
        return iter(())
    if segments.all_dead(locator) and not segments.has_tables(locator):
        # Its room was given back, and the checkpoint tells of its keys. That is no damage.
        return iter(())
    try:
        return segments.records(locator).idempotency_keys()
    except Damaged:  # its readers are told
        return iter(())


def _first_seq(key: ExtentKey) -> int:
    return key.first_seq


def _body(header: FrameHeader, view: memoryview, offset: int) -> dict[str, Any]:
    start = offset + FRAME_HEADER_BYTES
    return cbor2.loads(bytes(view[start : start + header.ext_len]))  # type: ignore[no-any-return]


def _length_without_zeros(view: memoryview, start: int) -> int:
    """Bytes from ``start`` to the last one that is not zero."""
    for stop in range(len(view), start, -len(_ZEROS)):
        begin = max(start, stop - len(_ZEROS))
        chunk = bytes(view[begin:stop])
        if chunk != _ZEROS[: len(chunk)]:
            return begin - start + len(chunk.rstrip(b"\0"))
    return 0


def _is_begun(file: WalFile, position: int) -> bool:
    """Whether a header of a frame stands behind ``position``, and not only what the file held in an
    earlier life.
    """
    view, start = file.view(), file.offset(position)
    data = bytes(view[start:])
    at = data.find(FRAME_MAGIC)
    while at >= 0:
        if at + FRAME_HEADER_BYTES > len(data) or header_at(data, at).position == position + at:
            return True
        at = data.find(FRAME_MAGIC, at + 1)
    return False


def _synced_beyond(file: WalFile, position: int) -> int | None:
    """Offset of a whole frame in ``file`` that knows the log to be synced beyond ``position``."""
    view = file.view()
    data = bytes(view)
    offset = data.find(FRAME_MAGIC, file.offset(position))
    while offset >= 0:
        header = check_frame(view, offset, file.base + offset - FILE_HEADER_BYTES, file.seed)
        if isinstance(header, FrameHeader) and header.durable > position:
            return offset
        offset = data.find(FRAME_MAGIC, offset + 1)
    return None


def _end_at(file: WalFile, position: int, *, cut: bool, durable: int) -> None:
    """Make the last file ready for the next frame at ``position``; it is known to be on the disk up
    to ``durable``.

    What lies between may stand in pages that a failed sync has marked clean, and what the disk
    holds behind it may have been cut off in pages alone. Frames must reach the disk before one that
    says that they have, so all of that is written again. Raises OSError.
    """
    start = max(durable, file.base)
    file.write_again(start, position)
    if cut:
        file.cut(position)
    file.sync()
