"""Repair: makes a shard that refuses to start able to start again (decision 0016).

A repair starts the shard as recovery does, but only reads. What recovery refuses is replaced in an
image of the hurt log file, in memory, until nothing is refused any more:

    damaged or missing frames    LOST frames: seqs that are known to be lost, by topic
    frames that need a lost one  LOST frames in their place
    a hurt blob or payload       the frames that name it: LOST frames

So recovery alone decides what is damage, and what a repair writes is read as any log is. Then each
image takes the name of its file, one after the other, whole and durable; the hurt file is kept as
NAME.damaged. A repair that is interrupted leaves the rest of the damage to the next one.

What is lost is told by the neighbours of a hole: by the head of a topic before it, and the next seq
behind it. The header of a damaged frame is believed only where all that it says fits them. Where
neither says it, all topics without a later frame go on above the seqs that may have been given.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple

from topics.engine.changes.lost import settle
from topics.engine.now import Now
from topics.formats.disk import blob
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.copies import BadCopies, decode_copies, rows_of_frame
from topics.formats.disk.frame_bodies import decode_idempotency_key, decode_topic, lost_frame
from topics.formats.disk.frames import (
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FrameHeader,
    FrameKind,
    check_frame,
    encode_frame,
    header_at,
    scan_frames,
)
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.formats.disk.wal import (
    FILE_HEADER_BYTES,
    BadHeader,
    FileHeader,
    decode_file_header,
    encode_file_header,
)
from topics.storage import checkpoints
from topics.storage.aside import FileAside
from topics.storage.disk import DAMAGED, Damaged, sync_directory, write_all
from topics.storage.mapped_file import CANNOT_READ, MappedFile
from topics.storage.recovery.steps import ShardReader
from topics.storage.recovery.tail import HurtLog
from topics.storage.start_progress import StartProgress
from topics.storage.wal.blobs import SUFFIX as BLOB
from topics.storage.wal.file import LOG, NEW, WalFile, log_name, log_paths

RECORDS_PER_WRITE = 10_000  # of a client, where TOPICS_MAX_BATCH_RECORDS is as it comes
RECORDS_MAX = (1 << 32) - 1
CORRECTED_MAX_BYTES = 1 << 20
_WITH_SEQS = frozenset({FrameKind.APPEND, FrameKind.ROUTER, FrameKind.LOST})


class CannotRepair(Damaged):
    """Damage that only a backup makes good."""


class Lost(NamedTuple):
    """Seqs of a topic; ``topic_id`` 0: of any topic, up to ``seqs``."""

    topic_id: int
    first_seq: int
    seqs: int


class ShardRepair:
    """A repair of one shard. `plan` finds out what is to be done, `apply` does it.

    Afterwards ``lines`` say what is lost, for people.
    """

    def __init__(self, data_dir: Path, shard: int, shards: int, now: Now) -> None:
        self._data_dir, self._shard, self._shards, self._now = data_dir, shard, shards, now
        self._progress = StartProgress(lambda _: None)
        self._images: dict[Path, tuple[FileHeader, bytearray]] = {}
        self._changed: set[Path] = set()
        self._salvaged: set[Path] = set()
        self._seen: set[str] = set()  # what was refused
        self._aside: list[Path] = []  # hurt files that nothing needs any more
        self._kept: list[Path] = []  # hurt files that others may need
        self.lines: list[str] = []

    # The plan

    def plan(self) -> None:
        """Find all that is to be done; no file changes. Raises `CannotRepair`."""
        folder = self._data_dir / "checkpoint" / f"{self._shard:02d}"
        whole = {each.path for each in checkpoints.whole(folder)}
        hurt = [path for path in sorted(folder.glob(f"*{checkpoints.SUFFIX}")) if path not in whole]
        if whole:
            self._aside += hurt
            self.lines += [
                f"{path}: not a whole checkpoint; another is, and nothing is lost" for path in hurt
            ]
        while self._find_damage(0):
            pass
        if len(whole) > 1:
            self._plan_older(sorted(whole)[-2])
        blobs = self._data_dir / "blob" / f"{self._shard:02d}"
        for path in sorted(blobs.glob(f"*{BLOB}")):  # also those that only a backup could need
            if path not in self._aside and _is_hurt(path):
                self._aside.append(path)

    def _plan_older(self, checkpoint: Path) -> None:
        """Let the older checkpoint stand on a whole log, too. What is lost there is in segments."""
        lines = [*self.lines]
        try:
            while self._find_damage(1):
                pass
        except CannotRepair:
            self._aside.append(checkpoint)
        self.lines = lines

    def _find_damage(self, age: int) -> bool:
        """Read as a start does, and replace what is refused; False when nothing was.

        ``age``: of the checkpoint.
        """
        try:
            reader = ShardReader(self._data_dir, self._shard, self._shards, self._progress, age=age)
        except Damaged as damage:
            raise CannotRepair(damage.path, damage.offset, damage.reason) from damage
        files = self._open_log(reader)
        repair = _Pass(reader, files, self)
        try:
            reader.read(files, self._now, trusts_stop=False)
        except HurtLog as hurt:
            self._refuse_twice(hurt)
            repair.mend(hurt)
        except Damaged as damage:
            self._refuse_twice(damage)
            repair.leave_out(damage)
        else:
            self._tell_doubts(reader)
            return False
        finally:
            for file in files:
                file.close()
            reader.segments.close()
        return True

    def _refuse_twice(self, damage: Damaged) -> None:
        """Each pass must find something else. Raises `CannotRepair`."""
        if str(damage) in self._seen:
            raise CannotRepair(damage.path, damage.offset, damage.reason)
        self._seen.add(str(damage))

    def _open_log(self, reader: ShardReader) -> list[WalFile]:
        folder, files = reader.folders.wal, []
        known_to = reader.checkpoint.lsn if reader.checkpoint else 0
        for path in log_paths(folder, self._shard):
            if path not in self._images:
                try:
                    file = WalFile.open(path, self._shard, writable=False)
                except Damaged as damage:
                    if not self._salvage(damage, known_to):
                        continue
                else:
                    at = file.mapped().first_unreadable(0, file.size)
                    if at is None:
                        files.append(file)
                        continue
                    file.close()
                    self._salvage(Damaged(path, at, CANNOT_READ), known_to)
            files.append(self._image_file(path))
        missing = self._images.keys() - {file.path for file in files}
        return sorted([*files, *map(self._image_file, missing)], key=lambda file: file.base)

    def _image_file(self, path: Path) -> WalFile:
        return WalFile.of_image(path, *self._images[path])

    def _salvage(self, damage: Damaged, known_to: int) -> bool:
        """Take the bytes of a log file whose header is hurt, that is cut, or cannot be read; False
        when its frames cannot be read without its header.
        """
        path = damage.path
        data = bytearray(MappedFile.of(path).salvage()[0])
        header = _header_of(path, data, self._shard)
        if path not in self._salvaged:
            self.lines.append(f"{path}, offset {damage.offset}: {damage.reason}")
        self._salvaged.add(path)
        if header is None:
            self._aside += [] if path in self._aside else [path]
            if path.suffix != LOG or path != max(log_paths(path.parent, self._shard)):
                return False  # the next file tells how many of its frames are missing
            header, data = self._unknown(path, len(data), known_to)
        data.extend(bytes(max(header.size - len(data), 0)))
        data[:FILE_HEADER_BYTES] = encode_file_header(header._replace(size=len(data)))
        self._images[path] = header, data
        self._changed.add(path)
        return True

    def _unknown(self, path: Path, size: int, known_to: int) -> tuple[FileHeader, bytearray]:
        """In the place of the newest log file: behind ``known_to``, the LSN of the checkpoint, any
        topic may have lost what it has room for. The next pass fills what is before that.
        """
        base = int(path.stem, 16)
        lsn = max(base, known_to)
        size = max(size, 2 * FILE_HEADER_BYTES + lsn - base)
        header = FileHeader(self._shard, base, int.from_bytes(os.urandom(8), "little"), size)
        seqs = min(size // FRAME_HEADER_BYTES * RECORDS_PER_WRITE, RECORDS_MAX)
        pieces = encode_frame(lost_frame(0, 0, seqs, FRAME_HEADER_BYTES), lsn, 0, header.seed)
        data = bytearray(encode_file_header(header)).ljust(FILE_HEADER_BYTES + lsn - base, b"\0")
        return header, (data + b"".join(map(bytes, pieces))).ljust(size, b"\0")

    # What a pass finds

    def image_of(self, file: WalFile) -> bytearray:
        """The bytes of a log file, to be changed."""
        if file.path not in self._images:
            self._images[file.path] = file.header, bytearray(file.view())
        self._changed.add(file.path)
        return self._images[file.path][1]

    def make_missing(self, folder: Path, base: int, end: int) -> None:
        """A log file for frames from ``base`` to ``end``."""
        size = FILE_HEADER_BYTES + end - base
        header = FileHeader(self._shard, base, int.from_bytes(os.urandom(8), "little"), size)
        path = folder / log_name(base)
        self._images[path] = header, bytearray(encode_file_header(header)).ljust(size, b"\0")
        self._changed.add(path)

    def set_aside(self, path: Path, *, is_kept: bool) -> None:
        """A hurt file that is not of the log; with ``is_kept`` others may need it."""
        found = self._kept if is_kept else self._aside
        if path.exists() and path not in found:
            found.append(path)

    def _tell_doubts(self, reader: ShardReader) -> None:
        """Topics that may have lost more than is known."""
        for topic in reader.engine.by_id.values():
            head_seq, doubt = topic.head_seq, reader.topics.doubts.get(topic.id)
            if doubt is not None and self._changed and settle(reader.topics, topic):
                self.lines.append(
                    f'topic "{topic.name}": may have lost records behind seq {head_seq};'
                    f" it goes on behind {topic.head_seq}"
                )

    # Done

    @property
    def is_needed(self) -> bool:
        """Whether there is something to do."""
        return bool(self._changed or self._aside)

    def apply(self) -> None:
        """Do what was planned. Raises OSError: then a later repair does the rest."""
        for path in sorted(self._changed):
            _, data = self._images[path]
            if path.exists():
                _keep(path)
            file = FileAside(path, NEW)
            try:
                write_all(file.fd, [data], 0)
            except BaseException:
                file.abandon()
                raise
            file.publish()  # not abandoned: it may have the name by then
        for path in self._kept:
            _keep(path)
        for path in self._aside:
            if path in self._changed:  # replaced
                continue
            _keep(path)
            path.unlink()
            sync_directory(path.parent)


def repairs(data_dir: Path, shards: int) -> list[ShardRepair]:
    """Planned repairs of the shards that need one. No file changes. Raises `CannotRepair`, and
    OSError.
    """
    now = Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)
    planned = [ShardRepair(data_dir, shard, shards, now) for shard in range(shards)]
    for repair in planned:
        repair.plan()
    return [repair for repair in planned if repair.is_needed]


def _keep(path: Path) -> None:
    """As `disk.keep_aside`, also where an earlier file was kept. Raises OSError."""
    for number in count():
        name = path.with_name(f"{path.name}{f'.{number}' if number else ''}{DAMAGED}")
        with contextlib.suppress(FileExistsError):
            name.hardlink_to(path)
            break
        if name.samefile(path):
            break
    sync_directory(path.parent)


SALT = struct.Struct("<24xQ")  # of the header of a log file
EFFECTS = {
    FrameKind.DELETE: "what it deleted is back",
    FrameKind.TOPIC: "its settings are as they were before; if it made the topic, that is gone",
    FrameKind.TOPIC_DELETED: "the topic is back, unless one of its name was made later",
    FrameKind.LEASE: "jobs that it leased are free",
    FrameKind.ROUTER: "its router may copy again",
    FrameKind.ROUTER_SET: "a router is as it was before",
    FrameKind.ROUTERS_GONE: "routers that it removed are back",
    FrameKind.FLOOR: "caps and age are applied anew",
}


class _Pass:
    """One refusal: what stands around the damage, and what takes its place."""

    def __init__(self, reader: ShardReader, files: Sequence[WalFile], repair: ShardRepair) -> None:
        self._reader, self._files, self._repair = reader, files, repair
        self._topics, self._by_id = reader.topics, reader.engine.by_id

    # Frames that are missing or do not follow

    def mend(self, hurt: HurtLog) -> None:
        """Put LOST frames where recovery stopped. Raises `CannotRepair`."""
        if hurt.end is not None and hurt.end < hurt.first:
            raise CannotRepair(hurt.path, hurt.offset, hurt.reason)  # a file too many
        file = self._file(hurt.first)
        if file is None:
            self._fill_gap(hurt)
            return
        header = self._whole(file, hurt.first)
        if header is not None:
            self._drop(self._misfits(header), hurt.path, hurt.reason)
            return
        end = self._end_of_damage(file, hurt)
        losses, said = self._losses(file, hurt.first, end)
        self._repair.lines.append(
            f"{file.path}, offset {file.offset(hurt.first)}: {end - hurt.first} bytes of frames"
            f" cannot be read{said}"
        )
        self._write(file, hurt.first, end, losses)

    def _fill_gap(self, hurt: HurtLog) -> None:
        """A file of the log is missing."""
        if hurt.end is None or hurt.end < hurt.first + FRAME_HEADER_BYTES:
            raise CannotRepair(hurt.path, hurt.offset, hurt.reason)
        folder = self._reader.folders.wal
        self._repair.lines.append(
            f"{folder / log_name(hurt.first)}: the log from {hurt.first:#x} to {hurt.end:#x} is"
            " missing"
        )
        self._repair.make_missing(folder, hurt.first, hurt.end)
        # The next pass finds zeros in it.

    def _file(self, lsn: int) -> WalFile | None:
        """The file with room for a frame at ``lsn``."""
        at = bisect_right(self._files, lsn, key=lambda file: file.base)
        file = self._files[at - 1] if at else None
        return file if file is not None and file.holds(lsn, FRAME_HEADER_BYTES) else None

    def _whole(self, file: WalFile, lsn: int) -> FrameHeader | None:
        found = check_frame(file.view(), file.offset(lsn), lsn, file.seed)
        return found if isinstance(found, FrameHeader) else None

    def _end_of_damage(self, file: WalFile, hurt: HurtLog) -> int:
        """LSN up to which no whole frame follows."""
        ends = [each.base for each in self._files if each.base > hurt.first]
        ends += [hurt.end] if hurt.end is not None and hurt.end > hurt.first else []
        checkpoint = self._reader.checkpoint
        if not ends and checkpoint is not None and checkpoint.lsn > hurt.first:
            ends.append(checkpoint.lsn)
        limit = min([file.base + file.size - FILE_HEADER_BYTES, *ends])
        found = self._next_whole(file, hurt.first)
        if found is not None and found <= limit:
            return found
        if not ends:
            raise CannotRepair(hurt.path, hurt.offset, hurt.reason)
        return limit

    def _next_whole(self, file: WalFile, lsn: int) -> int | None:
        """LSN of the first whole frame behind ``lsn`` in the file."""
        data, start = file.view(), file.offset(lsn)
        rest = bytes(data[start:])
        at = rest.find(FRAME_MAGIC, 1)
        while at >= 0:
            if at % 8 == 0 and self._whole(file, lsn + at) is not None:
                return lsn + at
            at = rest.find(FRAME_MAGIC, at + 1)
        return None

    def _frames(self, lsn: int) -> Iterator[tuple[WalFile, FrameHeader]]:
        """All whole frames from ``lsn`` on, also behind further damage."""
        for file in self._files:
            at: int | None = max(lsn, file.base)
            while at is not None and file.holds(at, FRAME_HEADER_BYTES):
                for header in scan_frames(file.view(), file.offset(at), at, file.seed):
                    yield file, header
                    at = header.end
                assert at is not None
                at = self._next_whole(file, at) if file.holds(at, FRAME_HEADER_BYTES) else None

    # What is lost

    def _losses(self, file: WalFile, first: int, end: int) -> tuple[list[Lost], str]:
        """What frames from LSN ``first`` to ``end``, which cannot be read, have said; and what is
        known of them besides.
        """
        following = self._following(end)
        losses = []
        for topic_id, topic in self._by_id.items():
            head_seq, next_seq = self._head(topic_id, first), following.get(topic_id, 0)
            if not next_seq and first < self._topics.news_from(topic):
                next_seq = self._topics.restored_head(topic) + 1
            if next_seq > head_seq + 1 and topic.config.durability != "ephemeral":
                losses.append(Lost(topic_id, head_seq + 1, next_seq - head_seq - 1))
        header = self._corrected(file, first, end) or (
            self._believed(file, first, end, losses, following)
        )
        if header is None:
            frames = (end - first) // FRAME_HEADER_BYTES
            if frames == 1 and losses:  # that one
                return losses, ""
            losses.append(Lost(0, 0, min(frames * RECORDS_PER_WRITE, RECORDS_MAX)))
            return losses, ""
        if header.kind in _WITH_SEQS and header.record_count:
            losses = [Lost(header.topic_id, header.first_seq, header.record_count)]
            return losses, self._key(file, header)
        about = self._by_id.get(header.topic_id)
        name = f' about topic "{about.name}"' if about is not None else ""
        effect = EFFECTS.get(FrameKind(header.kind), "nothing else is lost")
        return losses, f", a {FrameKind(header.kind).name} frame{name}: {effect}"

    def _head(self, topic_id: int, lsn: int) -> int:
        """Head of the topic before the frame at ``lsn``, where the replay has stopped."""
        topic = self._by_id[topic_id]
        is_newer = lsn >= self._topics.news_from(topic)
        restored = self._topics.restored_head(topic) if is_newer else 0
        return max(topic.head_seq, topic.start_seq - 1, restored)

    def _following(self, lsn: int) -> dict[int, int]:
        """By topic, the first seq of the next frame from ``lsn`` on that gives some."""
        found: dict[int, int] = {}
        for file, header in self._frames(lsn):
            if header.kind in _WITH_SEQS and header.first_seq:
                found.setdefault(header.topic_id, header.first_seq)
            elif header.kind == FrameKind.TOPIC:
                found.setdefault(header.topic_id, decode_topic(_body(file, header)).head_seq + 1)
        return found

    def _corrected(self, file: WalFile, first: int, end: int) -> FrameHeader | None:
        """The header of the one frame that stood there, if one of its bits has flipped: then its
        checksum tells.
        """
        offset = file.offset(first)
        data = bytearray(file.view()[offset : offset + end - first])
        for bit in range(8 * FRAME_HEADER_BYTES if len(data) <= CORRECTED_MAX_BYTES else 0):
            data[bit // 8] ^= 1 << bit % 8
            found = check_frame(memoryview(data), 0, first, file.seed)
            if isinstance(found, FrameHeader) and found.end == end:
                return found
            data[bit // 8] ^= 1 << bit % 8
        return None

    def _believed(
        self,
        file: WalFile,
        first: int,
        end: int,
        losses: Sequence[Lost],
        following: dict[int, int],
    ) -> FrameHeader | None:
        """The header of the one frame that stood there, if it fits all that stands around it."""
        header = header_at(file.view(), file.offset(first))
        if (
            (header.magic, header.lsn, header.end, header.zero) != (FRAME_MAGIC, first, end, 0)
            or header.kind not in {*FrameKind}
            or header.ext_len > header.body_len
        ):
            return None
        if header.kind != FrameKind.APPEND:
            has_seqs = header.record_count and header.first_seq
            return None if has_seqs or losses else header
        known = header.topic_id in self._by_id
        if not known or header.first_seq != self._head(header.topic_id, first) + 1:
            return None
        said = Lost(header.topic_id, header.first_seq, header.record_count)
        if losses:
            return header if [said] == losses else None
        # Else the frame that follows would have told.
        is_last = header.topic_id not in following
        return header if is_last and _counts_agree(header, _body(file, header)) else None

    def _key(self, file: WalFile, header: FrameHeader) -> str:
        with contextlib.suppress(Exception):  # any bytes
            key = decode_idempotency_key(_body(file, header)[: header.ext_len])
            return f", idempotency key {key!r}" if key is not None else ""
        return ""

    # Whole frames that have lost what they need

    def _misfits(self, header: FrameHeader) -> list[tuple[WalFile, FrameHeader]]:
        """A frame that does not follow; with all others of a topic that is not known."""
        if header.topic_id in self._by_id or not header.topic_id:
            found = next(self._frames(header.lsn), None)
            return [found] if found is not None else []
        orphans = []
        for file, each in self._frames(header.lsn):
            if each.topic_id == header.topic_id:
                if each.kind == FrameKind.TOPIC:
                    break
                orphans.append((file, each))
        return orphans

    def leave_out(self, damage: Damaged) -> None:
        """Leave out the frames that need what is damaged. Raises `CannotRepair`."""
        blobs = self._reader.blobs
        hurt = {blobs.lsn(*each) for each in blobs.added() if blobs.path(*each) == damage.path}
        payloads = set() if hurt else self._hurt_payloads()
        frames = [
            (file, header)
            for file, header in self._frames(0)
            if header.lsn in hurt
            or (header.kind == FrameKind.ROUTER and _names(payloads, file, header))
            or (file.path, file.offset(header.lsn)) == (damage.path, damage.offset)
        ]
        if not frames:
            raise CannotRepair(damage.path, damage.offset, damage.reason)
        self._drop(frames, damage.path, damage.reason)
        if damage.path not in {file.path for file in self._files}:
            self._repair.set_aside(damage.path, is_kept=not hurt)

    def _hurt_payloads(self) -> set[tuple[int, int]]:
        found = set()
        for payload in self._reader.replay.payloads:
            try:
                for _ in self._reader.linked.checking(*payload):
                    pass
            except Damaged:
                found.add(payload)
        return found

    def _drop(self, frames: Iterable[tuple[WalFile, FrameHeader]], path: Path, reason: str) -> None:
        self._repair.lines.append(f"{path}: {reason}")
        for file, header in frames:
            seqs = header.record_count if header.kind in _WITH_SEQS else 0
            if header.kind == FrameKind.ROUTER and not seqs and header.first_seq:
                seqs = decode_copies(header, _body(file, header)).trimmed
            lost = Lost(header.topic_id, header.first_seq, seqs) if seqs else None
            key = self._key(file, header) if header.kind == FrameKind.APPEND else ""
            if key:
                self._repair.lines.append(f"{file.path}, offset {file.offset(header.lsn)}{key}")
            self._write(file, header.lsn, header.end, [lost or Lost(header.topic_id, 0, 0)])

    # Written

    def _write(self, file: WalFile, first: int, end: int, losses: Sequence[Lost]) -> None:
        """LOST frames from one LSN to another."""
        if FRAME_HEADER_BYTES * max(len(losses), 1) > end - first:
            raise CannotRepair(file.path, file.offset(first), "more is lost than frames have room")
        image, pieces = self._repair.image_of(file), [*losses] or [Lost(0, 0, 0)]
        starts = [*range(first, first + FRAME_HEADER_BYTES * len(pieces), FRAME_HEADER_BYTES), end]
        for lost, (lsn, stop) in zip(pieces, pairwise(starts), strict=True):
            frame = lost_frame(*lost, stop - lsn)
            offset = file.offset(lsn)
            image[offset : offset + stop - lsn] = b"".join(
                map(bytes, encode_frame(frame, lsn, 0, file.seed))
            )
            self._tell(lost)

    def _tell(self, lost: Lost) -> None:
        if lost.topic_id and lost.seqs:
            topic = self._by_id.get(lost.topic_id)
            name = f'topic "{topic.name}"' if topic else f"topic {lost.topic_id}, of unknown name"
            last = lost.first_seq + lost.seqs - 1
            self._repair.lines.append(f"{name}: seqs {lost.first_seq} to {last} are lost")


def _is_hurt(path: Path) -> bool:
    """Whether a blob is not that of the write in its name."""
    file = MappedFile.of(path)
    try:
        topic_id, first_seq = (int(part, 16) for part in path.stem.split("-"))
        blob.check(file.data, topic_id, first_seq, file.can_read)
    except (BadBlob, ValueError):
        return True
    return False


def _header_of(path: Path, data: bytearray, shard: int) -> FileHeader | None:
    """The header of a log file; of a damaged one what its name and its first frame confirm."""
    with contextlib.suppress(BadHeader):
        header = decode_file_header(data[:FILE_HEADER_BYTES])
        if header.shard == shard and (path.suffix != LOG or path.name == log_name(header.base)):
            return header
    if path.suffix != LOG or len(data) < FILE_HEADER_BYTES + FRAME_HEADER_BYTES:
        return None
    base, (salt,) = int(path.stem, 16), SALT.unpack_from(data)
    for flipped in (0, *(1 << bit for bit in range(64))):
        header = FileHeader(shard, base, salt ^ flipped, len(data))
        found = check_frame(memoryview(data), FILE_HEADER_BYTES, base, header.seed)
        if isinstance(found, FrameHeader):
            return header
    return None


def _body(file: WalFile, header: FrameHeader) -> memoryview:
    start = file.offset(header.lsn) + FRAME_HEADER_BYTES
    return file.view()[start : start + header.body_len]


def _names(payloads: set[tuple[int, int]], file: WalFile, header: FrameHeader) -> bool:
    if not payloads:
        return False
    try:
        rows = rows_of_frame(header, _body(file, header))
    except BadCopies:
        return False
    return any((row.shard, row.lsn) in payloads for row in rows)


def _counts_agree(header: FrameHeader, body: memoryview) -> bool:
    """Whether the table of ends in a damaged body is one of so many records."""
    if not header.record_count or header.flags & RecordFlags.EXTERNAL:
        return False
    view = RecordsView(header.flags, header.record_count, header.ext_len, body)
    try:
        ends = view.ends
        return len(ends) == header.record_count and ends[-1] == len(view.blob)
    except (IndexError, TypeError, ValueError):
        return False
