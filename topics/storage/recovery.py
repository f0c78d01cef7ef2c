"""Opening a shard's data: replay the log, lay the newest checkpoint over it, cut a torn tail, refuse anything worse.

The log ends where only zeros follow. Where it breaks off (there is no whole frame, and not only zeros) there are two cases:

    torn tail   nothing says that the log was synced beyond the break: nothing was promised, so all that follows is cut off
    damage      a whole frame after the break, a checkpoint or a next file does say so, or a file is missing: acknowledged data
                was hurt. `Damaged` stops the process, and the bytes stay as they are.

A log that breaks off just at the end of its last synced write looks like a torn tail; no frame can tell then.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2

from topics.engine.dedupe import DedupeWindow
from topics.engine.shard import Misfit, Now, ShardEngine
from topics.engine.store import Runs
from topics.engine.topic import Topic
from topics.formats.blob import HEADER_BYTES as BLOB_HEADER_BYTES
from topics.formats.records import RecordFlags, RecordsView, blob_bytes
from topics.formats.requests import Buffer
from topics.formats.wal import (
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
from topics.storage import checkpoints
from topics.storage.blobs import BlobStore
from topics.storage.disk import Damaged, boot_id, make_directory
from topics.storage.wal import Wal
from topics.storage.wal_file import WalFile

REPORT_BYTES = 8 << 20  # progress is told after so much of the log
_ZEROS = bytes(1 << 16)
_APPEND, _EXTERNAL = int(FrameKind.APPEND), int(RecordFlags.EXTERNAL)  # looked up once for each frame, by the million


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard's data, open and ready for the first write."""

    engine: ShardEngine
    wal: Wal
    checkpoint_folder: Path
    cut_bytes: int  # of a torn tail


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
    """Bring a shard back as it was. ``report`` is called with the share done, 0.0 to 1.0; ``boot`` names this run of the machine.

    Raises `Damaged` (path, offset, reason) when acknowledged data was hurt, or a file is of an unknown version; OSError when the
    log cannot be written.
    """
    boot = boot_id() if boot is None else boot
    folder, checkpoint_folder, blob_folder = (data_dir / part / f"{shard:02d}" for part in ("wal", "checkpoint", "blob"))
    blobs = BlobStore(blob_folder)
    make_directory(folder)
    for leftover in folder.glob("*.new"):
        leftover.unlink()
    engine = ShardEngine(shard, shards)
    files = [WalFile.open(path, shard) for path in sorted(folder.glob("*.wal"))]
    try:
        checkpoint = checkpoints.newest(checkpoint_folder)
    except checkpoints.UnknownVersion as error:
        raise Damaged(checkpoint_folder, 0, str(error)) from error
    replay = _Replay(engine, blobs, now, report, checkpoint.position if checkpoint else 0)
    end, cut_bytes = replay.run(folder, files)
    for blob_id in blobs.added():
        blobs.verify(*blob_id)
    blobs.sweep()
    if checkpoint is not None:
        engine.restore(checkpoint.snapshot)
    clean = checkpoint is not None and checkpoint.clean and checkpoint.position == end
    frames = engine.finish_replay(now, clean=clean, tail_may_be_lost=not boot or replay.boot != boot)
    wal = Wal(folder, shard, files, end, blobs=blobs, file_bytes=wal_file_bytes, sync_ms=wal_sync_ms)
    mark = cbor2.dumps({"boot": boot})
    for frame in (*frames, Frame(FrameKind.MARK, ts_ms=now.ts, ext_len=len(mark), parts=(mark,))):
        wal.append(frame)
    wal.flush(sync=True)
    wal.wait_synced()  # records of `ephemeral` topics are acknowledged without the log, but not before it tells of this start
    report(1.0)
    return Shard(engine, wal, checkpoint_folder, cut_bytes)


class _Replay:
    """Feeds every frame of the log to the engine."""

    def __init__(self, engine: ShardEngine, blobs: BlobStore, now: Now, report: Callable[[float], None], promised: int) -> None:
        """``promised``: a checkpoint says that the log was synced up to there."""
        self.engine, self.blobs, self.now, self.boot = engine, blobs, now, ""
        engine.store = self
        self._report, self._promised = report, promised
        self._total = self._done = 0
        self._files: list[WalFile] = []
        # By topic, where its window grew: `(position, $ts from which on the keys of the writes before it lived on)`.
        self._grown: dict[int, list[tuple[int, int]]] = {}

    def run(self, folder: Path, files: list[WalFile]) -> tuple[int, int]:
        """Replay all files; where the log ends, and how many bytes of a torn tail were cut."""
        self._total = max(sum(file.size for file in files), 1)
        position = cut_bytes = 0
        for file in files:
            if file.base != position:
                raise Damaged(file.path, 0, f"the log before it ends at {position:#x}: a file between is missing or cut")
            self._files.append(file)
            position = self._replay_file(file)
            cut_bytes = _length_without_zeros(file.view(), file.offset(position))
            if cut_bytes:
                self._check_nothing_promised(file, position, last=file is files[-1])
        if position < self._promised:
            path = files[-1].path if files else folder
            raise Damaged(path, 0, f"the log ends at {position:#x}, before the checkpoint at {self._promised:#x}")
        self._keys_of_grown_windows()
        if files:
            _end_at(files[-1], position, cut=cut_bytes > 0)
        return position, cut_bytes

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
        view, shift, told = file.view(), file.offset(0), 0
        header = None
        for header in scan_frames(view, file.offset(file.base), file.base, file.seed):
            offset = header.position + shift
            try:
                self._apply(header, view, offset, file.base)
            except Misfit as error:
                reason = f"frame of kind {header.kind} about topic {header.topic_id} does not fit in: {error}"
                raise Damaged(file.path, offset, reason) from error
            if offset - told > REPORT_BYTES:
                told = offset
                self._report((self._done + offset) / self._total)
        self._done += file.size
        self._report(self._done / self._total)
        return header.end if header else file.base

    def _apply(self, header: FrameHeader, view: memoryview, offset: int, base: int) -> None:
        kind, engine = header.kind, self.engine
        if kind == _APPEND:
            topic = engine.replay_append(header, self._external(header) if header.flags & _EXTERNAL else 0, base)
            if topic is not None and header.ext_len:
                self._apply_key(topic, header, view, offset)
        elif kind == FrameKind.TOPIC:
            self._apply_topic(header, _body(header, view, offset))
        elif kind == FrameKind.TOPIC_DELETED:
            self.blobs.forget(header.topic_id)
            engine.replay_deleted(header)
        elif kind == FrameKind.SEQS_RESERVED:
            engine.replay_reserved(header)
        elif kind == FrameKind.DELETE:
            start = offset + FRAME_HEADER_BYTES
            engine.replay_delete(header, view[start : start + header.body_len])
        elif kind == FrameKind.FLOOR:
            engine.replay_floor(header, _body(header, view, offset))
        elif kind == FrameKind.MARK:
            self.boot = _body(header, view, offset)["boot"]
        else:
            raise Misfit("this program does not know the kind")

    def _external(self, header: FrameHeader) -> int:
        """Note the blob that the frame speaks of; the bytes of its records. What is not there is told when the log has ended."""
        self.blobs.add(header.topic_id, header.first_seq)
        path = self.blobs.path(header.topic_id, header.first_seq)
        if not path.exists():
            return header.record_count
        return blob_bytes(path.stat().st_size - BLOB_HEADER_BYTES, header.ext_len, header.record_count, header.flags)

    # The engine's store, as long as the log is not open

    def records(self, place: int) -> RecordsView:
        """As `Store.records`."""
        header, view, offset = self._frame(place)
        start, count = offset + FRAME_HEADER_BYTES, header.record_count
        if not header.flags & _EXTERNAL:
            return RecordsView(header.flags, count, header.ext_len, view[start : start + header.body_len])
        if self.blobs.path(header.topic_id, header.first_seq).exists():
            return RecordsView(header.flags, count, header.ext_len, self.blobs.body(header.topic_id, header.first_seq))
        # Its topic is deleted further on, or it is missed when the log has ended. Until then, records of one byte will do.
        return RecordsView(0, count, 0, memoryview(array("I", range(1, count + 1)).tobytes() + bytes(count)))

    def dead(self, place: int) -> Buffer | None:
        """As `Store.dead`."""
        return self.engine.marks.dead(place)

    def mark(self, place: int, runs: Runs) -> None:
        """As `Store.mark`."""
        self.engine.marks.mark(place, self.records(place).count, runs)

    def release(self, places: Sequence[int]) -> None:
        """As `Store.release`."""
        self.engine.marks.forget(places)

    def _apply_key(self, topic: Topic, header: FrameHeader, view: memoryview, offset: int) -> None:
        if self.now.ts - header.ts_ms < topic.config.idempotency_window_ms:
            key = _body(header, view, offset).get("k")
            if key is not None:
                self.engine.replay_key(topic, key, header, self.now)

    def _apply_topic(self, header: FrameHeader, body: dict[str, Any]) -> None:
        before = self.engine.by_id.get(header.topic_id)
        window_ms = before.config.idempotency_window_ms if before else 0
        self.engine.replay_topic(header, body)
        if before and before.config.idempotency_window_ms > window_ms:
            self._grown.setdefault(before.id, []).append((header.position, header.ts_ms - window_ms + 1))

    def _keys_of_grown_windows(self) -> None:
        places: defaultdict[int, list[int]] = defaultdict(list)
        for file in self._files if self._grown else ():
            # Not by the topics' indexes: a key outlives its records.
            for header in scan_frames(file.view(), file.offset(file.base), file.base, file.seed):
                if header.topic_id in self._grown and header.kind == _APPEND:
                    places[header.topic_id].append(header.position)
        for topic_id, growths in self._grown.items():
            topic = self.engine.by_id.get(topic_id)
            if topic is not None:
                self._keys_again(topic, growths, reversed(places[topic_id]))

    def _keys_again(self, topic: Topic, growths: list[tuple[int, int]], places: Iterable[int]) -> None:
        """A look at a window that grew later has passed over keys that live on: look again, from the newest write back."""
        alive_ts = self.now.ts - topic.config.idempotency_window_ms + 1
        young = []
        for place in places:
            while growths and place < growths[-1][0]:
                alive_ts = max(alive_ts, growths.pop()[1])
            header, view, offset = self._frame(place)
            if header.ts_ms < alive_ts:
                break  # and so are all before it
            if header.ext_len:
                young.append((header, view, offset))
        topic.dedupe = DedupeWindow()
        for header, view, offset in reversed(young):
            self._apply_key(topic, header, view, offset)

    def _frame(self, place: int) -> tuple[FrameHeader, memoryview, int]:
        file = self._files[bisect_right(self._files, place, key=lambda file: file.base) - 1]
        view, offset = file.view(), file.offset(place)
        return header_at(view, offset), view, offset


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


def _end_at(file: WalFile, position: int, *, cut: bool) -> None:
    """Make the last file ready for the next frame at ``position``."""
    if cut:
        file.unmap()
        file.cut(position)
    else:
        # Frames that were only written must reach the disk before one that says that they have.
        file.sync()
