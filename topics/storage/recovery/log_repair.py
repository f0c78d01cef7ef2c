"""Repair of frames: replaces frames that recovery rejects, in images of log files.

    damaged range       is replaced with rebuilt frames of long appends whose blobs are intact
                        (``blob_frames.py``), and with a LOST frame for the known lost seqs
    dependent frames    are replaced with LOST frames, because they refer to lost records or to an
                        unknown topic

The lost seqs of a topic are the seqs between its head before the damaged range and its next known
seq after the range. The header of a damaged frame is used only if all of its fields agree with
these two seqs, or if its checksum shows which bit has flipped. If the lost seqs of a topic are
unknown and the log has no later frame of this topic, the topic continues above all seqs that may
have been assigned. Their number is bounded by the missing bytes and by the largest long append that
any settings allow, because the settings at the time of the write are unknown.
If the end of the log is lost, the number of missing bytes is unknown, too. Then each topic skips as
many seqs as a LOST frame can count.
"""

from __future__ import annotations

import contextlib
import math
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from topics.formats.disk.copies import BadCopies, decode_forward
from topics.formats.disk.frame_bodies import (
    decode_idempotency_key,
    decode_losses,
    decode_topic,
    lost_frame,
    lost_frame_bytes,
)
from topics.formats.disk.frames import (
    ALIGNMENT,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    Frame,
    FrameHeader,
    FrameKind,
    check_frame,
    encode_frame,
    header_at,
    magics_from,
    scan_frames,
)
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.formats.disk.wal import (
    FILE_HEADER_BYTES,
    FileHeader,
    encode_file_header,
)
from topics.storage.disk import Damaged
from topics.storage.recovery.blob_frames import frame_from
from topics.storage.recovery.log_tail import DamagedLog, bytes_after
from topics.storage.recovery.shard_recovery import ShardReader
from topics.storage.wal.blobs import blob_of, blob_paths
from topics.storage.wal.log_file import WalFile, log_name

RECORDS_MAX = (1 << 32) - 1  # the largest count in a LOST frame
RECORDS_PER_FRAME = 10_000  # above `BATCH_RECORDS` of routers
# The maximum number of records in the blobs that one log file refers to. Together these blobs are
# at most as long as the largest log file and the largest write (1 GiB each). A record has at least
# 11 bytes in the body of a write, and at least 32 bytes in a blob.
RECORDS_IN_BLOBS = 1 << 27
CORRECTED_MAX_BYTES = 1 << 20  # maximum length of a range that is searched for a flipped bit


class CannotRepair(Damaged):
    """The damage can be repaired only by a restore from a backup."""


class LostSeqs(NamedTuple):
    """Lost seqs of a topic. If ``topic_id`` is 0, any topic may have lost up to ``seqs`` seqs."""

    topic_id: int
    first_seq: int
    seqs: int


def max_seqs(length: int) -> int:
    """Return the largest number of seqs that ``length`` bytes of frames can assign to a topic.

    The result holds for any settings.
    """
    frames = length // FRAME_HEADER_BYTES
    return min(frames * RECORDS_PER_FRAME + RECORDS_IN_BLOBS, RECORDS_MAX) if frames else 0


class RepairPlan:
    """The planned changes in the folders of one shard. ``lines`` describes the lost data."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.images: dict[Path, tuple[FileHeader, bytearray]] = {}  # of the log files
        self.changed: set[Path] = set()  # the images that are to be written
        self.damaged_files: list[
            Path
        ] = []  # damaged files that are no longer needed and must be renamed
        self.kept: list[Path] = []  # damaged files that other data may need and that stay in place
        self.lines: list[str] = []
        # If the log ends below this LSN, an unknown number of frames is lost at its end.
        self.lost_to: float = 0

    def image_of(self, file: WalFile) -> bytearray:
        """Return the image of a log file, whose bytes the caller may change."""
        if file.path not in self.images:
            self.images[file.path] = file.header, bytearray(file.view())
        self.changed.add(file.path)
        return self.images[file.path][1]

    def make_missing(self, folder: Path, base: int, end: int) -> WalFile:
        """Add the image of a new log file for the frames from ``base`` to ``end``.

        A LOST frame at ``end`` also fits into the file.
        """
        size = FILE_HEADER_BYTES + end - base + FRAME_HEADER_BYTES
        header = FileHeader(self.shard, base, int.from_bytes(os.urandom(8), "little"), size)
        path = folder / log_name(base)
        self.images[path] = header, bytearray(encode_file_header(header)).ljust(size, b"\0")
        self.changed.add(path)
        return WalFile.of_image(path, *self.images[path])

    def add_damaged_file(self, path: Path, *, is_kept: bool) -> None:
        """Mark a damaged file that is not a log file. ``is_kept``: other data may need it."""
        found = self.kept if is_kept else self.damaged_files
        if path.exists() and path not in found:
            found.append(path)


EFFECTS = {
    FrameKind.DELETE: "the records that it deleted are restored",
    FrameKind.TOPIC: "the topic has its previous config, or is missing if the frame created it",
    FrameKind.TOPIC_DELETED: "the topic is restored, unless it was created again later",
    FrameKind.LEASE: "the jobs that it leased are ready again",
    FrameKind.FORWARD: "its routers may copy the records again",
    FrameKind.ROUTER_SET: "the router has its previous config, or is missing if it was new",
    FrameKind.ROUTERS_GONE: "the routers that it removed are restored",
    FrameKind.FLOOR: "caps and age limits are applied again",
}


class LogRepair:
    """Repairs the damage that one pass of recovery found. ``reader`` has the state before the
    damage.
    """

    def __init__(self, reader: ShardReader, files: Sequence[WalFile], plan: RepairPlan) -> None:
        self._reader, self._files, self._plan = reader, files, plan
        self._topics, self._by_id = reader.topics, reader.engine.by_id

    # Frames that are missing or inconsistent

    def repair_damage(self, damage: DamagedLog) -> None:
        """Put a LOST frame where the replay stopped. Raise `CannotRepair`."""
        # Two files contain the same LSNs. It is unknown which one is correct, so no repair is
        # planned.
        if damage.end is not None and damage.end < damage.first:
            raise CannotRepair(damage.path, damage.offset, damage.reason)
        # There are three cases: no file contains the LSN, the frame there is intact but
        # inconsistent with the state, or its bytes are damaged.
        file, checkpoint = self._file(damage.first), self._reader.checkpoint
        if file is None or (checkpoint is not None and file.base < checkpoint.replay_from):
            # No file that startup reads has this LSN, so a file is missing.
            self._fill_gap(damage)
            return
        header = self._intact(file, damage.first)
        if header is not None:
            # The frame is intact, but inconsistent with the frames before it.
            self._drop(self._inconsistent_frames(header), damage.path, damage.reason)
            return
        end = self._end_of_damage(file, damage)
        # If zeros reach from inside a frame to the end of the log, later frames may be lost, too.
        used = bytes_after(file, damage.first)
        if file is self._files[-1] and used <= end - damage.first - ALIGNMENT:
            self._plan.lost_to = math.inf
        where = f"{file.path}, offset {file.offset(damage.first)}"
        # Rebuilt frames come first in the range, and one LOST frame fills the rest. The range
        # keeps its length, because the LSNs of all later frames must stay valid.
        rebuilt = self._rebuild(damage.first, end)
        losses, note = self._losses(file, damage.first, end, rebuilt)
        rest = damage.first + sum(frame.length for frame in rebuilt)
        # If the LOST frame does not fit after the rebuilt frames, rebuild none.
        # A LOST frame needs a row for each topic with lost seqs.
        if rest < end and lost_frame_bytes(len(losses)) > end - rest:
            rebuilt, rest = [], damage.first
            losses, note = self._losses(file, damage.first, end, rebuilt)
        self._plan.lines.append(
            f"{where}: {end - damage.first} bytes of frames cannot be read{note}"
        )
        self._write_rebuilt(file, damage.first, rebuilt)
        if rest < end:
            self._write(file, rest, end, losses)

    def _fill_gap(self, damage: DamagedLog) -> None:
        """Add an image for a missing file of the log."""
        if damage.end is None or damage.end < damage.first + FRAME_HEADER_BYTES:
            # The gap must have space for at least the header of a LOST frame.
            raise CannotRepair(damage.path, damage.offset, damage.reason)
        folder = self._reader.folders.wal
        self._plan.lines.append(
            f"{folder / log_name(damage.first)}: the log from {damage.first:#x} to {damage.end:#x}"
            " is missing"
        )
        self._plan.make_missing(folder, damage.first, damage.end)
        # The next pass finds zeros in the image and puts a LOST frame there.

    def lose_end(self, lsn: int) -> None:
        """Put a LOST frame at the end of the log: each topic may have lost any number of seqs."""
        folder = self._reader.folders.wal
        file = self._file(lsn) or self._plan.make_missing(folder, lsn, lsn)
        self._plan.lost_to = 0
        self._plan.lines.append(
            f"{file.path}, offset {file.offset(lsn)}: the end of the log is lost; it may have"
            " contained records, topics and changes that are not listed here"
        )
        self._write(file, lsn, lsn + FRAME_HEADER_BYTES, [LostSeqs(0, 0, RECORDS_MAX)])

    def _file(self, lsn: int) -> WalFile | None:
        """Return the file that has space for a frame header at ``lsn``, or None."""
        at = bisect_right(self._files, lsn, key=lambda file: file.base)
        file = self._files[at - 1] if at else None
        return file if file is not None and file.holds(lsn, FRAME_HEADER_BYTES) else None

    def _intact(self, file: WalFile, lsn: int) -> FrameHeader | None:
        """Return the header of the frame at ``lsn`` if the frame is intact, else None."""
        found = check_frame(file.view(), file.offset(lsn), lsn, file.seed)
        return found if isinstance(found, FrameHeader) else None

    def _end_of_damage(self, file: WalFile, damage: DamagedLog) -> int:
        """Return the LSN at which the damaged range ends. Raise `CannotRepair` if it is unknown."""
        # The range ends at the next file or at the end that recovery reported. If neither is known,
        # it ends at the LSN of the checkpoint.
        ends = [each.base for each in self._files if each.base > damage.first]
        ends += [damage.end] if damage.end is not None and damage.end > damage.first else []
        checkpoint = self._reader.checkpoint
        if not ends and checkpoint is not None and checkpoint.lsn > damage.first:
            ends.append(checkpoint.lsn)
        limit = min([file.base + file.size - FILE_HEADER_BYTES, *ends])
        # An intact frame before this limit ends the range earlier.
        found = self._next_intact(file, damage.first)
        if found is not None and found <= limit:
            return found
        if not ends:
            raise CannotRepair(damage.path, damage.offset, damage.reason)
        return limit

    def _next_intact(self, file: WalFile, lsn: int) -> int | None:
        """Return the LSN of the first intact frame after ``lsn`` in the file, or None."""
        # Frames begin at multiples of 8 bytes. Other occurrences of the magic are record data.
        starts = (lsn + at for at in magics_from(file.view(), file.offset(lsn)) if at)
        return next((at for at in starts if at % 8 == 0 and self._intact(file, at)), None)

    def _frames(self, lsn: int) -> Iterator[tuple[WalFile, FrameHeader]]:
        """Yield all intact frames from ``lsn`` on, including those after further damage."""
        # Scan each file frame by frame. After damage, continue at the next intact frame, so that
        # one damaged range does not hide the rest of the log.
        for file in self._files:
            at: int | None = max(lsn, file.base)
            while at is not None and file.holds(at, FRAME_HEADER_BYTES):
                for header in scan_frames(file.view(), file.offset(at), at, file.seed):
                    yield file, header
                    at = header.end
                assert at is not None
                at = self._next_intact(file, at) if file.holds(at, FRAME_HEADER_BYTES) else None

    # Lost seqs

    def _losses(
        self, file: WalFile, first: int, end: int, rebuilt: Sequence[Frame]
    ) -> tuple[list[LostSeqs], str]:
        """Return the seqs lost with the unreadable frames from ``first`` to ``end``, and a note.

        Seqs of frames in ``rebuilt`` are not lost. The note is "" if nothing else is known.
        """
        # Collect the losses that the intact frames prove. Then use the damaged header, but only if
        # the known seqs confirm it. Otherwise the repair could report losses that did not occur.
        following = self._following(end)
        losses = [*self._known_losses(first, following, rebuilt)]
        rest = end - first - sum(frame.length for frame in rebuilt)
        header = None
        # If frames were rebuilt, the first bytes of the range are known, and the header is not
        # needed.
        if not rebuilt:
            header = self._corrected(file, first, end) or (
                self._plausible(file, first, end, losses, following)
            )
        if header is None:
            # The range has space for one frame only, and that frame has caused these losses.
            if rest < 2 * FRAME_HEADER_BYTES and losses:
                return losses, ""
            # The content of the range is unknown, so any topic may have lost records. A row for
            # topic 0 lets each topic skip seqs, because a seq that a client has received must never
            # be assigned again.
            losses.append(LostSeqs(0, 0, max_seqs(rest)))
            return losses, ""
        if given := _assigned_seqs(file, header):
            return given, self._key(file, header)
        about = self._by_id.get(header.topic_id)
        name = f' about topic "{about.name}"' if about is not None else ""
        effect = EFFECTS.get(FrameKind(header.kind), "no other data is lost")
        return losses, f", a {FrameKind(header.kind).name} frame{name}: {effect}"

    def _known_losses(
        self, first: int, following: dict[int, int], rebuilt: Sequence[Frame]
    ) -> Iterator[LostSeqs]:
        """Yield the seqs between each topic's head at LSN ``first`` and its next known seq."""
        for topic_id, topic in self._by_id.items():
            # The log does not contain the records of ephemeral topics.
            if topic.config.durability == "ephemeral":
                continue
            # Walk from the head over the rebuilt frames to the next known seq. Each hole is a
            # loss.
            seq = self._head(topic_id, first) + 1
            for frame in rebuilt:
                if frame.topic_id == topic_id:
                    if frame.first_seq > seq:
                        yield LostSeqs(topic_id, seq, frame.first_seq - seq)
                    seq = frame.first_seq + frame.record_count
            next_seq = self._next(topic_id, first, following)
            if next_seq > seq:
                yield LostSeqs(topic_id, seq, next_seq - seq)

    def _next(self, topic_id: int, lsn: int, following: dict[int, int]) -> int:
        """Return the topic's first seq that was certainly assigned after the unreadable frame at
        ``lsn``, or 0 if no such seq is known.
        """
        topic, next_seq = self._by_id[topic_id], following.get(topic_id, 0)
        # The checkpoint has a later state of the topic than this LSN.
        if not next_seq and lsn < self._topics.covered_lsn(topic):
            return self._topics.restored_head(topic) + 1
        return next_seq

    def _head(self, topic_id: int, lsn: int) -> int:
        """Return the topic's head before the frame at ``lsn``, at which the replay has stopped."""
        topic = self._by_id[topic_id]
        # If the checkpoint covers the frame, the head in it may include later frames, so it is
        # not used.
        is_newer = lsn >= self._topics.covered_lsn(topic)
        restored = self._topics.restored_head(topic) if is_newer else 0
        return max(topic.head_seq, topic.start_seq - 1, restored)

    def _following(self, lsn: int) -> dict[int, int]:
        """Return, by topic, the first seq that the next frames from ``lsn`` on assign."""
        found: dict[int, int] = {}
        # The first frame of a topic after the damage determines where the topic's lost seqs end.
        for file, header in self._frames(lsn):
            if header.kind == FrameKind.TOPIC:
                found.setdefault(header.topic_id, decode_topic(_body(file, header)).head_seq + 1)
            for given in _assigned_seqs(file, header):
                found.setdefault(given.topic_id, given.first_seq)
        return found

    def _rebuild(self, first: int, end: int) -> list[Frame]:
        """Return the frames of long appends between two LSNs, rebuilt from their blobs, by seq.

        A frame is returned only if its seqs fit between the known seqs before and after the damage.
        All returned frames together fit into the damaged bytes.
        """
        # A blob without a frame belongs to a lost frame, or to an append that was never
        # committed. Both are rebuilt, because they cannot be distinguished and the records are
        # intact.
        following, space = self._following(end), end - first
        named = {
            (header.topic_id, header.first_seq)
            for _, header in self._frames(0)
            if header.kind == FrameKind.APPEND and header.flags & RecordFlags.EXTERNAL
        }
        found: list[Frame] = []
        heads: dict[int, int] = {}
        paths = {blob_of(path.name): path for path in blob_paths(self._reader.folders.blob)}
        for write in sorted(each for each in paths if each is not None):
            topic_id, first_seq = write
            if topic_id not in self._by_id or write in named:
                continue
            head = heads.setdefault(topic_id, self._head(topic_id, first))
            next_seq = self._next(topic_id, first, following)
            frame = frame_from(paths[write]) if first_seq > head else None
            if frame is None or frame.length > space:
                continue
            # A frame that does not fit between the known seqs would contradict the following
            # frames.
            last = first_seq + frame.record_count - 1
            if not next_seq or last < next_seq:
                found.append(frame)
                heads[topic_id], space = last, space - frame.length
        # The rest of the range must be empty or have space for the header of a LOST frame. Drop
        # rebuilt frames until this is the case.
        while found and 0 < space < FRAME_HEADER_BYTES:
            space += found.pop().length
        return found

    def _corrected(self, file: WalFile, first: int, end: int) -> FrameHeader | None:
        """Return the header of the damaged frame, if flipping one bit of it repairs the checksum.

        The frame must fill the range from ``first`` to ``end``.
        """
        offset = file.offset(first)
        # Work on a copy. The image of the file must not change before the plan is complete.
        data = bytearray(file.view()[offset : offset + end - first])
        # Flip each bit of the header in turn, until the checksum of the frame matches.
        for bit in range(8 * FRAME_HEADER_BYTES if len(data) <= CORRECTED_MAX_BYTES else 0):
            data[bit // 8] ^= 1 << bit % 8
            found = check_frame(memoryview(data), 0, first, file.seed)
            if isinstance(found, FrameHeader) and found.end == end:
                return found
            # Restore the bit before the next one is tried.
            data[bit // 8] ^= 1 << bit % 8
        return None

    def _plausible(
        self,
        file: WalFile,
        first: int,
        end: int,
        losses: Sequence[LostSeqs],
        following: dict[int, int],
    ) -> FrameHeader | None:
        """Return the header of the damaged frame, if it agrees with the known seqs around it."""
        header = header_at(file.view(), file.offset(first))
        # The fields whose values are known without the header must match: magic, LSN, length and
        # padding.
        if (
            (header.magic, header.lsn, header.end, header.zero) != (FRAME_MAGIC, first, end, 0)
            or header.kind not in {*FrameKind}
            or header.ext_len > header.body_len
            or header.kind == FrameKind.FORWARD  # its body contains the assigned seqs
        ):
            return None
        # A frame of another kind is used only if no topic has lost seqs in the range.
        if header.kind != FrameKind.APPEND:
            has_seqs = header.record_count and header.first_seq
            return None if has_seqs or losses else header
        # An append must begin directly after the head of a known topic.
        known = header.topic_id in self._by_id
        if not known or header.first_seq != self._head(header.topic_id, first) + 1:
            return None
        assigned = LostSeqs(header.topic_id, header.first_seq, header.record_count)
        if losses:
            return header if [assigned] == losses else None
        # A later frame of the topic would have shown the loss.
        is_last = header.topic_id not in following
        return header if is_last and _counts_agree(header, _body(file, header)) else None

    def _key(self, file: WalFile, header: FrameHeader) -> str:
        """Return a note about the frame's idempotency key, or an empty string."""
        with contextlib.suppress(Exception):  # the bytes may be damaged
            key = decode_idempotency_key(_body(file, header)[: header.ext_len])
            return f", idempotency key {key!r}" if key is not None else ""
        return ""

    # Intact frames that depend on lost data

    def _inconsistent_frames(self, header: FrameHeader) -> list[tuple[WalFile, FrameHeader]]:
        """Return an inconsistent frame and, if its topic is unknown, the other frames of the topic.

        The frames of an unknown topic end at the next frame that creates it.
        """
        # A frame of a known topic, or of no topic, does not fit the state. Only this frame
        # is dropped.
        if header.topic_id in self._by_id or not header.topic_id:
            found = next(self._frames(header.lsn), None)
            return [found] if found is not None else []
        # The frame that created the topic is lost. The frames of the topic cannot be replayed
        # without it.
        orphans = []
        for file, each in self._frames(header.lsn):
            if each.topic_id == header.topic_id:
                if each.kind == FrameKind.TOPIC:
                    break
                orphans.append((file, each))
        return orphans

    def drop_dependent_frames(self, damage: Damaged) -> None:
        """Replace the frames that depend on damaged data with LOST frames. Raise `CannotRepair`."""
        blobs = self._reader.blobs
        # The damage is either in a blob to which frames refer, or in a frame of the log. A blob is
        # found by its path, and a frame by its file and offset.
        damaged_lsns = {
            blobs.lsn(*each) for each in blobs.added() if blobs.path(*each) == damage.path
        }
        frames = [
            (file, header)
            for file, header in self._frames(0)
            if header.lsn in damaged_lsns
            or (file.path, file.offset(header.lsn)) == (damage.path, damage.offset)
        ]
        if not frames:
            raise CannotRepair(damage.path, damage.offset, damage.reason)
        self._drop(frames, damage.path, damage.reason)
        # A damaged blob is renamed, because no frame refers to it any longer. Other damaged files
        # stay in place.
        if damage.path not in {file.path for file in self._files}:
            self._plan.add_damaged_file(damage.path, is_kept=not damaged_lsns)

    def _drop(self, frames: Iterable[tuple[WalFile, FrameHeader]], path: Path, reason: str) -> None:
        """Replace intact frames with LOST frames for the seqs that they have assigned."""
        self._plan.lines.append(f"{path}: {reason}")
        for file, header in frames:
            key = self._key(file, header) if header.kind == FrameKind.APPEND else ""
            if key:
                self._plan.lines.append(f"{file.path}, offset {file.offset(header.lsn)}{key}")
            # A frame that assigned no seqs still needs a row, so that the frame is valid.
            losses = _assigned_seqs(file, header) or [LostSeqs(header.topic_id, 0, 0)]
            self._write(file, header.lsn, header.end, losses)

    # Writing into images

    def _put(self, file: WalFile, lsn: int, data: bytes) -> None:
        """Write bytes into the image of a log file."""
        image, offset = self._plan.image_of(file), file.offset(lsn)
        image[offset : offset + len(data)] = data

    def _write_rebuilt(self, file: WalFile, first: int, frames: Sequence[Frame]) -> None:
        """Write the rebuilt frames from LSN ``first`` on, and add a line for each of them."""
        for frame in frames:
            data = b"".join(map(bytes, encode_frame(frame, first, 0, file.seed)))
            self._put(file, first, data)
            first += frame.length
            last = frame.first_seq + frame.record_count - 1
            topic = self._by_id[frame.topic_id]
            self._plan.lines.append(
                f'topic "{topic.name}": seqs {frame.first_seq} to {last} are kept, from a blob'
            )

    def _write(self, file: WalFile, first: int, end: int, losses: Sequence[LostSeqs]) -> None:
        """Write a LOST frame that fills the range from ``first`` to ``end``."""
        # If some rows did not fit, the repair would hide losses.
        if lost_frame_bytes(len(losses)) > end - first:
            raise CannotRepair(
                file.path, file.offset(first), "the LOST frame for all lost seqs does not fit"
            )
        frame = lost_frame(losses or [LostSeqs(0, 0, 0)], end - first)
        self._put(file, first, b"".join(map(bytes, encode_frame(frame, first, 0, file.seed))))
        for lost in losses:
            self._describe(lost)

    def _describe(self, lost: LostSeqs) -> None:
        """Add a line about lost seqs of a topic."""
        if lost.topic_id and lost.seqs:
            topic = self._by_id.get(lost.topic_id)
            name = f'topic "{topic.name}"' if topic else f"topic {lost.topic_id} (name unknown)"
            last = lost.first_seq + lost.seqs - 1
            self._plan.lines.append(f"{name}: seqs {lost.first_seq} to {last} are lost")


def _body(file: WalFile, header: FrameHeader) -> memoryview:
    """Return the body of a frame, which may be damaged."""
    start = file.offset(header.lsn) + FRAME_HEADER_BYTES
    return file.view()[start : start + header.body_len]


def _assigned_seqs(file: WalFile, header: FrameHeader) -> list[LostSeqs]:
    """Return the seqs that an intact frame has assigned, by topic."""
    body, seqs, rows = _body(file, header), header.record_count, []
    with contextlib.suppress(BadCopies):
        if header.kind == FrameKind.FORWARD:
            held = decode_forward(header, body)
            rows = [(row.topic_id, row.first_seq, seqs or held.skipped) for row in held.rows]
        elif header.kind == FrameKind.APPEND:
            rows = [(header.topic_id, header.first_seq, seqs)]
        # A LOST frame from an earlier repair also counts, because its seqs must remain lost.
        elif header.kind == FrameKind.LOST:
            rows = decode_losses(header, body)
    return [LostSeqs(*row) for row in rows if row[1] and row[2]]


def _counts_agree(header: FrameHeader, body: memoryview) -> bool:
    """Return whether the table of ends in a damaged body agrees with the record count."""
    if not header.record_count or header.flags & RecordFlags.EXTERNAL:
        return False
    view = RecordsView(header.flags, header.record_count, header.ext_len, body)
    try:
        ends = view.ends
        return len(ends) == header.record_count and ends[-1] == len(view.blob)
    except (IndexError, TypeError, ValueError):
        return False
