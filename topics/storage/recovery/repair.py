"""Repair: makes a shard that refuses to start able to start again (decision 0016).

A repair starts the shard as recovery does, but only reads. What recovery refuses is replaced in an
image of the hurt log file, in memory, until nothing is refused any more (``mending.py``). So
recovery alone decides what is damage, and what a repair writes is read as any log is. Then each
image takes the name of its file, one after the other, whole and durable; the hurt file is kept as
NAME.damaged. A repair that is interrupted leaves the rest of the damage to the next one.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from pathlib import Path

from topics.engine.changes.start import settle_doubt
from topics.engine.now import Now
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.frame_bodies import lost_frame
from topics.formats.disk.frames import (
    FRAME_HEADER_BYTES,
    FrameHeader,
    check_frame,
    encode_frame,
)
from topics.formats.disk.wal import (
    FILE_HEADER_BYTES,
    BadHeader,
    FileHeader,
    decode_file_header,
    encode_file_header,
)
from topics.storage import checkpoints
from topics.storage.disk import (
    DAMAGED,
    Damaged,
    FileAside,
    check_version,
    keep_aside,
    sync_directory,
    write_all,
)
from topics.storage.mapped_file import CANNOT_READ, MappedFile
from topics.storage.names import CHECKPOINT, own_files
from topics.storage.recovery.mending import (
    CannotRepair,
    Mending,
    RepairPlan,
    seqs_at_most,
)
from topics.storage.recovery.steps import ShardReader
from topics.storage.recovery.tail import HurtLog
from topics.storage.start_progress import StartProgress
from topics.storage.wal.blobs import blob_of, blob_paths, check_blob
from topics.storage.wal.file import LOG, NEW, WalFile, log_name, log_paths


class ShardRepair(RepairPlan):
    """A repair of one shard. `plan` finds out what is to be done, `apply` does it.

    Afterwards ``lines`` say what is lost, for people.
    """

    def __init__(self, data_dir: Path, shard: int, shards: int, now: Now) -> None:
        super().__init__(shard)
        self._data_dir, self._shards, self._now = data_dir, shards, now
        self._progress = StartProgress(lambda _: None)
        self._salvaged: set[Path] = set()
        self._seen: set[str] = set()  # what was refused

    # The plan

    def plan(self) -> None:
        """Find all that is to be done; no file changes. Raises `CannotRepair`."""
        folder = self._data_dir / "checkpoint" / f"{self.shard:02d}"
        logs = log_paths(self._data_dir / "wal" / f"{self.shard:02d}", self.shard)
        blobs = blob_paths(self._data_dir / "blob" / f"{self.shard:02d}")
        try:
            for path in (*logs, *blobs):  # a file of another version is not damaged
                check_version(path)
            whole = {each.path for each in checkpoints.whole(folder)}
        except Damaged as damage:
            raise CannotRepair(damage.path, damage.offset, damage.reason) from damage
        hurt = [path for path in own_files(folder, CHECKPOINT) if path not in whole]
        if whole:
            self.aside += hurt
            self.lines += [
                f"{path}: not a whole checkpoint; another is, and nothing is lost" for path in hurt
            ]
        while self._find_damage(0):
            pass
        if len(whole) > 1:
            self._plan_older(sorted(whole)[-2])
        for path in blobs:
            if path not in self.aside:
                try:
                    check_blob(path)  # also if only a backup needs it
                except BadBlob:
                    self.aside.append(path)

    def _plan_older(self, checkpoint: Path) -> None:
        """Let the older checkpoint stand on a whole log, too. What is lost there is in segments."""
        lines = [*self.lines]
        try:
            while self._find_damage(1):
                pass
        except CannotRepair:
            self.aside.append(checkpoint)
        self.lines = lines

    def _find_damage(self, age: int) -> bool:
        """Read as a start does, and replace what is refused; False when nothing was.

        ``age``: of the checkpoint.
        """
        try:
            reader = ShardReader(self._data_dir, self.shard, self._shards, self._progress, age=age)
        except Damaged as damage:
            raise CannotRepair(damage.path, damage.offset, damage.reason) from damage
        reader.files = self._open_log(reader)
        repair = Mending(reader, reader.files, self)
        try:
            reader.read(self._now, trusts_stop=False)
        except HurtLog as hurt:
            self._refuse_twice(hurt)
            repair.mend(hurt)
        except Damaged as damage:
            self._refuse_twice(damage)
            repair.leave_out(damage)
        else:
            self._tell_doubts(reader)
            if not age:
                self._keep_blobs(reader)
            return False
        finally:
            reader.close()
        return True

    def _refuse_twice(self, damage: Damaged) -> None:
        """Each pass must find something else. Raises `CannotRepair`."""
        if str(damage) in self._seen:
            raise CannotRepair(damage.path, damage.offset, damage.reason)
        self._seen.add(str(damage))

    def _open_log(self, reader: ShardReader) -> list[WalFile]:
        folder, files = reader.folders.wal, []
        known_to = reader.checkpoint.lsn if reader.checkpoint else 0
        for path in log_paths(folder, self.shard):
            if path not in self.images:
                try:
                    file = WalFile.open(path, self.shard, writable=False)
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
        missing = self.images.keys() - {file.path for file in files}
        return sorted([*files, *map(self._image_file, missing)], key=lambda file: file.base)

    def _image_file(self, path: Path) -> WalFile:
        return WalFile.of_image(path, *self.images[path])

    def _salvage(self, damage: Damaged, known_to: int) -> bool:
        """Take the bytes of a log file whose header is hurt, that is cut, or cannot be read; False
        when its frames cannot be read without its header.
        """
        path = damage.path
        data = bytearray(MappedFile.of(path).salvage()[0])
        header = _header_of(path, data, self.shard)
        if path not in self._salvaged:
            self.lines.append(f"{path}, offset {damage.offset}: {damage.reason}")
        self._salvaged.add(path)
        if header is None:
            self.aside += [] if path in self.aside else [path]
            if path.suffix != LOG or path != max(log_paths(path.parent, self.shard)):
                return False  # the next file tells how many of its frames are missing
            header, data = self._unknown(path, len(data), known_to)
        data.extend(bytes(max(header.size - len(data), 0)))
        data[:FILE_HEADER_BYTES] = encode_file_header(header._replace(size=len(data)))
        self.images[path] = header, data
        self.changed.add(path)
        return True

    def _unknown(self, path: Path, size: int, known_to: int) -> tuple[FileHeader, bytearray]:
        """In the place of the newest log file: behind ``known_to``, the LSN of the checkpoint, any
        topic may have lost what it has room for. The next pass fills what is before that.
        """
        base = int(path.stem, 16)
        lsn = max(base, known_to)
        size = max(size, 2 * FILE_HEADER_BYTES + lsn - base)
        header = FileHeader(self.shard, base, int.from_bytes(os.urandom(8), "little"), size)
        lost = lost_frame([(0, 0, seqs_at_most(size))], FRAME_HEADER_BYTES)
        pieces = encode_frame(lost, lsn, 0, header.seed)
        data = bytearray(encode_file_header(header)).ljust(FILE_HEADER_BYTES + lsn - base, b"\0")
        return header, (data + b"".join(map(bytes, pieces))).ljust(size, b"\0")

    def _keep_blobs(self, reader: ShardReader) -> None:
        """Keep the blobs of lost frames for the operator.

        No frame names these blobs any longer, and a start would remove them.
        """
        if not self.changed:
            return
        for path in blob_paths(reader.folders.blob):
            topic_id, first_seq = blob_of(path.name) or (0, 0)
            topic = reader.engine.by_id.get(topic_id)
            is_sealed = topic is not None and first_seq <= topic.sealed_seq
            is_needed = reader.blobs.is_added(topic_id, first_seq) or is_sealed
            if not is_needed and path not in self.aside:
                self.lines.append(f"{path}: no frame names it any more; it is kept as {DAMAGED}")
                self.aside.append(path)

    def _tell_doubts(self, reader: ShardReader) -> None:
        """Topics that may have lost more than is known."""
        for topic in reader.engine.by_id.values():
            head_seq, doubt = topic.head_seq, reader.topics.doubts.get(topic.id)
            if doubt is not None and self.changed and settle_doubt(reader.topics, topic):
                self.lines.append(
                    f'topic "{topic.name}": may have lost records behind seq {head_seq};'
                    f" it goes on behind {topic.head_seq}"
                )

    # Done

    @property
    def is_needed(self) -> bool:
        """Whether there is something to do."""
        return bool(self.changed or self.aside)

    def apply(self) -> None:
        """Do what was planned. Raises OSError: then a later repair does the rest."""
        for path in sorted(self.changed):
            _, data = self.images[path]
            if path.exists():
                keep_aside(path)
            file = FileAside(path, NEW)
            try:
                write_all(file.fd, [data], 0)
            except BaseException:
                file.abandon()
                raise
            file.publish()  # not abandoned: it may have the name by then
        for path in self.kept:
            keep_aside(path)
        for path in self.aside:
            if path in self.changed:  # replaced
                continue
            keep_aside(path)
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


SALT = struct.Struct("<24xQ")  # of the header of a log file


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
