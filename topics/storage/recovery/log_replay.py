"""Log replay: applies all frames from the checkpoint's LSN on to the engine, in log order.

Frames below the LSN up to which the log was synced when the checkpoint was written may repeat
changes that the checkpoint contains. Every other frame must be consistent with the state before it.
Otherwise the log is damaged.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from topics.engine.changes import append, forward
from topics.engine.changes.replay_dispatch import replay_frame
from topics.engine.replay import Replay, StateMismatch
from topics.formats.disk.blob import HEADER_BYTES as BLOB_HEADER_BYTES
from topics.formats.disk.copies import BadCopies, decode_forward
from topics.formats.disk.frame_bodies import decode_idempotency_key, decode_start
from topics.formats.disk.frames import (
    FRAME_HEADER_BYTES,
    FrameHeader,
    FrameKind,
    header_at,
    scan_frames,
)
from topics.formats.disk.records import RecordFlags, blob_bytes
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.checkpoints import Checkpoint
from topics.storage.disk import Damaged, will_need
from topics.storage.mapped_file import STEP_BYTES
from topics.storage.recovery.log_tail import (
    DamagedLog,
    LogEnd,
    bytes_after,
    check_not_synced_beyond,
)
from topics.storage.recovery.topic_restore import Keys
from topics.storage.start_progress import StartProgress
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.log_file import WalFile

REPORT_BYTES = 1 << 20  # progress is reported each time this number of bytes has been replayed
# Plain integers, because each frame is compared with them, and there are millions of frames.
_APPEND, _EXTERNAL = int(FrameKind.APPEND), int(RecordFlags.EXTERNAL)


class LogReplay:
    """The replay of one shard's log. After `run`:

    ``boot``         identifier of the machine's boot during which the last process wrote
    ``durable_lsn``  LSN up to which the log is known to be on the disk
    ``keys``         idempotency keys in the log, by topic id, in the order of seqs
    """

    def __init__(
        self,
        replay: Replay,
        blobs: BlobStore,
        checkpoint: Checkpoint | None,
        progress: StartProgress,
    ) -> None:
        self._replay, self._blobs, self._progress = replay, blobs, progress
        # A later START frame replaces this value. If there is neither a checkpoint nor a START
        # frame, the boot is unknown and is treated as a different boot.
        self.boot = checkpoint.boot if checkpoint else ""
        # From the checkpoint: the LSN up to which the log was synced, and the first LSN to replay.
        self._promised_lsn, self._from_lsn = (
            (checkpoint.lsn, checkpoint.replay_from) if checkpoint else (0, 0)
        )
        self.durable_lsn = self._promised_lsn
        self.keys: Keys = defaultdict(list)
        self._total_bytes = self._done_bytes = 0

    def run(self, folder: Path, files: Sequence[WalFile]) -> LogEnd:
        """Replay all frames into the engine. Return the end of the log.

        Raise `Damaged` if frames are missing or inconsistent. If the log has no file, the error
        contains the path ``folder``.
        """
        # The first LSN to replay is the base of a file. Earlier files are kept for the older
        # checkpoint.
        bases = [file.base for file in files]
        first = bisect_left(bases, self._from_lsn)
        lsn, rest_bytes = self._from_lsn, 0
        self._total_bytes = max(sum(file.size for file in files[first:]), 1)
        # Each file must begin where the file before it ends. The replay stops at the first frame
        # that is missing or damaged.
        for index, file in enumerate(files[first:], first):
            if file.base != lsn:
                reason = f"the previous log file ends at {lsn:#x}: a file is missing or truncated"
                raise DamagedLog(file.path, 0, reason, lsn, file.base)
            self._prefetch(files[index + 1 : index + 2])
            lsn = self._replay_file(file)
            # The frames end exactly where the next file begins.
            if index + 1 < len(files) and lsn == bases[index + 1]:
                continue
            # The frames end before the next file or in the last file. Other bytes that follow are a
            # torn tail or damage.
            rest_bytes = bytes_after(file, lsn)
            if rest_bytes:
                check_not_synced_beyond(file, lsn, self._promised_lsn, is_last=file is files[-1])
        # The checkpoint was written after the log was synced up to its LSN, so frames below it
        # cannot be missing after any crash.
        if lsn < self._promised_lsn:
            reason = f"the log ends at {lsn:#x}, before the checkpoint at {self._promised_lsn:#x}"
            path = files[-1].path if files else folder
            raise DamagedLog(path, 0, reason, lsn, self._promised_lsn)
        return LogEnd(lsn, rest_bytes)

    def _prefetch(self, files: Sequence[WalFile]) -> None:
        """Advise the kernel to read these files while the file before them is replayed."""
        for file in files:
            for start in range(0, file.size, STEP_BYTES):
                with contextlib.suppress(OSError):  # the replay reads the file in any case
                    will_need(file.path, start, min(STEP_BYTES, file.size - start))
                self._progress.heartbeat()

    def _replay_file(self, file: WalFile) -> int:
        """Replay the frames of a file and return the LSN after the last one."""
        # Read the file in one pass, with heartbeats, so that a slow disk does not look like a
        # hanging process.
        file.read_all(self._progress.heartbeat)
        view, base, shift = file.view(), file.base, file.offset(0)
        # Local names, because the loop runs for millions of frames.
        replay, replay_append, promised = self._replay, append.replay, self._promised_lsn
        report_at = base + REPORT_BYTES
        header = None
        try:
            for header in scan_frames(view, file.offset(base), base, file.seed):
                lsn = header.lsn
                if header.kind != _APPEND or header.flags & _EXTERNAL:
                    self._replay_frame(header, view, lsn + shift, base)
                # Most frames are appends without a blob. They are replayed with fewer calls. None
                # means that the write was skipped. In that case, its key is not collected.
                elif (
                    replay_append(replay, header, 0, base, lsn < promised) is not None
                    and header.ext_len
                ):
                    self._note_key(header, view, lsn + shift)
                # Progress is reported by bytes, because frames differ in length.
                if lsn > report_at:
                    report_at = lsn + REPORT_BYTES
                    self._progress.report_share(
                        (self._done_bytes + lsn + shift) / self._total_bytes
                    )
        # The error identifies the frame, so that a repair can replace exactly this frame.
        except StateMismatch as error:
            assert header is not None, "a frame was replayed"
            what = f"frame of kind {header.kind} for topic {header.topic_id}"
            reason = f"{what} is inconsistent with the frames before it: {error}"
            offset = file.offset(header.lsn)
            raise DamagedLog(file.path, offset, reason, header.lsn, header.end) from error
        # The base of a file is synced before the file begins (`Wal._begin_file`).
        # `durable_lsn` never decreases from frame to frame.
        self.durable_lsn = max(self.durable_lsn, base, header.durable_lsn if header else 0)
        self._done_bytes += file.size
        self._progress.report_share(self._done_bytes / self._total_bytes)
        return header.end if header else base

    def _replay_frame(self, header: FrameHeader, view: memoryview, offset: int, base: int) -> None:
        """Replay a frame of any kind. Raise `StateMismatch`."""
        kind, known = header.kind, header.lsn < self._promised_lsn
        if kind == _APPEND:
            topic = append.replay(self._replay, header, self._external_bytes(header), base, known)
            if topic is not None and header.ext_len:
                self._note_key(header, view, offset)
            return
        start = offset + FRAME_HEADER_BYTES
        body = view[start : start + header.body_len]
        # The topic is deleted, together with its blobs and keys. A later topic with this name has a
        # different id.
        if kind == FrameKind.TOPIC_DELETED:
            self._blobs.drop(header.topic_id)
            self.keys.pop(header.topic_id, None)
        elif kind == FrameKind.START:
            self.boot = decode_start(body)
        elif kind == FrameKind.FORWARD:
            self._replay_copies(header, body, view, known, base)
            return
        replay_frame(self._replay, header, body, known)

    def _replay_copies(
        self,
        header: FrameHeader,
        body: memoryview,
        view: memoryview,
        checkpointed: bool,
        generation: int,
    ) -> None:
        """Replay a FORWARD frame. Raise `StateMismatch`."""
        # All frames that the runs refer to must exist before a row is applied.
        try:
            held = decode_forward(header, body)
            for run in held.runs:
                if run.lsn:
                    self._check_named(run.lsn, header, view, generation)
            forward.replay(self._replay, header, held, checkpointed, generation)
        except BadCopies as error:
            raise StateMismatch(str(error)) from error

    def _check_named(self, lsn: int, header: FrameHeader, view: memoryview, base: int) -> None:
        """Check the frame at ``lsn``, from which copies are read, and keep its blob.

        The blob is kept even if its topic is deleted. Raise `BadCopies` if there is no such frame,
        for example because a repair has replaced it with a LOST frame.
        """
        # A frame may only refer to earlier frames of its own file (`decisions/0058`).
        named = (
            header_at(view, FILE_HEADER_BYTES + lsn - base) if base <= lsn < header.lsn else None
        )
        if named is None or named.lsn != lsn or named.kind not in (_APPEND, FrameKind.FORWARD):
            raise BadCopies(f"the source records of the copies are not at {lsn:#x}")
        if self._blobs:
            self._blobs.keep_at(lsn)

    def _external_bytes(self, header: FrameHeader) -> int:
        """Add the blob that the frame refers to, and return the size of its records in bytes.

        A missing blob is not an error here, because its topic may be deleted later in the log.
        `BlobStore.verify` raises `Damaged` if the log still refers to the blob at its end.
        """
        topic_id, first_seq = header.topic_id, header.first_seq
        self._blobs.add(topic_id, first_seq, header.lsn)
        length = self._blobs.length(topic_id, first_seq)
        path = self._blobs.path(topic_id, first_seq)
        if not length and not path.exists():
            return header.record_count
        size = blob_bytes(
            length - BLOB_HEADER_BYTES, header.ext_len, header.record_count, header.flags
        )
        # Each record has at least one byte.
        if size < header.record_count:
            raise Damaged(path, 0, "blob is shorter than specified in the log")
        return size

    def _note_key(self, header: FrameHeader, view: memoryview, offset: int) -> None:
        """Collect the idempotency key of an append, if it has one."""
        start = offset + FRAME_HEADER_BYTES
        key = decode_idempotency_key(view[start : start + header.ext_len])
        if key is not None:
            row = key, header.first_seq, header.record_count, header.ts_ms
            self.keys[header.topic_id].append(row)
