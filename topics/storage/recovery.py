"""Opening a shard's data: replay the log, lay the newest checkpoint over it, cut a torn tail, refuse anything worse.

Where the log breaks off (a frame whose position, checksum or size is wrong) there are two cases:

    torn tail   no whole frame after the break says that the log was synced beyond it: nothing was promised, so it is cut off
    damage      a later frame does say so, or a file is missing: acknowledged data was hurt. `Damaged` stops the process.

A log that breaks off just at the end of its last synced write looks like a torn tail; no frame can tell then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2

from topics.engine.dedupe import DedupeWindow
from topics.engine.shard import Now, ShardEngine
from topics.engine.topic import Topic
from topics.formats.blob import HEADER_BYTES as BLOB_HEADER_BYTES
from topics.formats.records import RecordFlags, blob_bytes
from topics.formats.wal import (
    FILE_HEADER_BYTES,
    FRAME,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    Frame,
    FrameHeader,
    FrameKind,
    Stop,
    check_frame,
)
from topics.storage import checkpoints
from topics.storage.blobs import BlobStore
from topics.storage.disk import Damaged, boot_id, make_directory
from topics.storage.wal import Wal
from topics.storage.wal_file import WalFile

REPORT_BYTES = 8 << 20  # progress is told after so much of the log


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

    Raises `Damaged` (path, offset, reason) when acknowledged data was hurt, or a file is of an unknown version.
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
    replay = _Replay(engine, blobs, now, report, sum(file.size for file in files))
    end, cut_bytes = replay.run(files)
    for blob_id in blobs.added():
        blobs.verify(*blob_id)
    blobs.sweep()
    if checkpoint is not None:
        if checkpoint.position > end:
            path = files[-1].path if files else folder
            raise Damaged(path, 0, f"the log ends at {end:#x}, before the checkpoint at {checkpoint.position:#x}")
        engine.restore(checkpoint.snapshot)
    clean = checkpoint is not None and checkpoint.clean and checkpoint.position == end
    frames = engine.finish_replay(now, clean=clean, tail_may_be_lost=not boot or replay.boot != boot)
    wal = Wal(folder, shard, files, blobs, end, file_bytes=wal_file_bytes, sync_ms=wal_sync_ms)
    mark = cbor2.dumps({"boot": boot})
    for frame in (*frames, Frame(FrameKind.MARK, ts_ms=now.ts, ext_len=len(mark), parts=(mark,))):
        wal.append(frame)
    wal.flush(sync=True)
    report(1.0)
    return Shard(engine, wal, checkpoint_folder, cut_bytes)


class _Replay:
    """Feeds every frame of the log to the engine."""

    def __init__(self, engine: ShardEngine, blobs: BlobStore, now: Now, report: Callable[[float], None], total_bytes: int) -> None:
        self.engine, self.blobs, self.now, self.boot = engine, blobs, now, ""
        self._report, self._total, self._done = report, max(total_bytes, 1), 0
        self._files: list[WalFile] = []

    def run(self, files: list[WalFile]) -> tuple[int, int]:
        """Replay all files; where the log ends, and how many bytes of a torn tail were cut."""
        position = files[0].base if files else 0
        for number, file in enumerate(files):
            if file.base != position:
                raise Damaged(file.path, 0, f"the log before it ends at {position:#x}: a file between is missing or cut")
            self._files.append(file)
            position, stop = self._replay_file(file)
            if stop is Stop.BAD:
                return position, self._cut(file, position, last=number == len(files) - 1)
        return position, 0

    def _cut(self, file: WalFile, position: int, *, last: bool) -> int:
        later = _synced_beyond(file, position) if last else 0  # the next file began after a sync of this one
        if later is not None:
            witness = f"the one at offset {later}" if last else "the next file"
            raise Damaged(file.path, file.offset(position), f"damaged frame; {witness} says that it had been synced")
        lost = len(bytes(file.view()[file.offset(position) :]).rstrip(b"\0"))
        file.unmap()
        file.cut(position)
        return lost

    def _replay_file(self, file: WalFile) -> tuple[int, Stop]:
        view, position, told = file.view(), file.base, 0
        while True:
            offset = file.offset(position)
            header = check_frame(view, offset, position, file.seed)
            if isinstance(header, Stop):
                self._done += file.size
                self._report(self._done / self._total)
                return position, header
            if not self._apply(header, view, offset):
                raise Damaged(file.path, offset, f"frame of a topic ({header.topic_id}) that the log never made")
            position = header.end
            if offset - told > REPORT_BYTES:
                told = offset
                self._report((self._done + offset) / self._total)

    def _apply(self, header: FrameHeader, view: memoryview, offset: int) -> bool:
        kind, engine = header.kind, self.engine
        if kind == FrameKind.APPEND:
            external = header.flags & RecordFlags.EXTERNAL and self._external(header)
            topic = engine.replay_append(header, header.position, external)
            if topic is None:
                return False
            if header.ext_len:
                self._apply_key(topic, header, view, offset)
            return True
        if kind == FrameKind.TOPIC:
            self._apply_topic(header, _body(header, view, offset))
            return True
        if kind == FrameKind.TOPIC_DELETED:
            self.blobs.forget(header.topic_id)
            return engine.replay_deleted(header)
        if kind == FrameKind.SEQS_RESERVED:
            return engine.replay_reserved(header)
        if kind == FrameKind.MARK:
            self.boot = _body(header, view, offset)["boot"]
            return True
        return False

    def _external(self, header: FrameHeader) -> int:
        """Note the blob that the frame speaks of; the bytes of its records. What is not there is told when the log has ended."""
        self.blobs.add(header.topic_id, header.first_seq)
        path = self.blobs.path(header.topic_id, header.first_seq)
        body_len = path.stat().st_size - BLOB_HEADER_BYTES if path.exists() else 0
        return blob_bytes(body_len, header.ext_len, header.record_count, header.flags)

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
            self._keys_again(before, header.ts_ms - window_ms)

    def _keys_again(self, topic: Topic, since_ts: int) -> None:
        """The window grew: keys that lived then, and that a look at the old window has passed over, live on."""
        topic.dedupe = DedupeWindow()
        for index in range(len(topic.frames)):
            place = topic.frames.entry(index)[2]
            file = self._files[bisect_right(self._files, place, key=lambda file: file.base) - 1]
            offset = file.offset(place)
            header = FrameHeader._make(FRAME.unpack_from(file.view(), offset))
            if header.ts_ms > since_ts and header.ext_len:
                self._apply_key(topic, header, file.view(), offset)


def _body(header: FrameHeader, view: memoryview, offset: int) -> dict[str, Any]:
    start = offset + FRAME_HEADER_BYTES
    return cbor2.loads(bytes(view[start : start + header.ext_len]))  # type: ignore[no-any-return]


def _synced_beyond(file: WalFile, position: int) -> int | None:
    """Offset of a whole frame in ``file`` that knows the log to be synced beyond ``position``."""
    view = file.view()
    data = bytes(view)
    offset = data.find(FRAME_MAGIC, FILE_HEADER_BYTES)
    while offset >= 0:
        header = check_frame(view, offset, file.base + offset - FILE_HEADER_BYTES, file.seed)
        if isinstance(header, FrameHeader) and header.durable > position:
            return offset
        offset = data.find(FRAME_MAGIC, offset + 1)
    return None
