"""Repair: changes the damaged files of a shard so that it can start again (decision 0016).

A repair reads the shard as recovery does, but writes nothing. It replaces frames that recovery
rejects, in an in-memory image of the damaged log file, until recovery rejects nothing any longer
(``log_repair.py``). So only recovery determines which data is damaged, and a repaired log is read
like any other log. Finally, each image replaces its file atomically and durably, one file at a
time. The damaged file is kept as NAME.damaged. After an interrupted repair, the next repair handles
the remaining damage.
"""

from __future__ import annotations

import contextlib
import math
import struct
import time
from pathlib import Path

from topics.engine.changes.start import settle_uncertain_head
from topics.engine.now import Now
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameHeader, check_frame
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
    AtomicFile,
    Damaged,
    check_version,
    preserve_damaged,
    sync_directory,
    write_all,
)
from topics.storage.mapped_file import CANNOT_READ, PAGE_BYTES, MappedFile
from topics.storage.recovery.log_repair import CannotRepair, LogRepair, RepairPlan
from topics.storage.recovery.log_tail import DamagedLog
from topics.storage.recovery.shard_recovery import ShardReader
from topics.storage.start_progress import StartProgress
from topics.storage.wal.blobs import blob_of, blob_paths, check_blob
from topics.storage.wal.log_file import LOG, NEW, WalFile, log_name, log_paths


class ShardRepair(RepairPlan):
    """The repair of one shard. `plan` finds the necessary changes, `apply` makes them.

    Afterwards ``lines`` describes the lost data for the operator.
    """

    def __init__(self, data_dir: Path, shard: int, shards: int, now: Now) -> None:
        super().__init__(shard)
        self._data_dir, self._shards, self._now = data_dir, shards, now
        self._progress = StartProgress(lambda _: None)
        # Log files whose damage has already been described, so that later passes add no second
        # line.
        self._salvaged: set[Path] = set()
        self._found: set[str] = set()  # messages of the damage that earlier passes found

    # The plan

    def plan(self) -> None:
        """Find all necessary changes. No file is changed. Raise `CannotRepair`."""
        folder = self._data_dir / "checkpoint" / f"{self.shard:02d}"
        logs = log_paths(self._data_dir / "wal" / f"{self.shard:02d}", self.shard)
        blobs = blob_paths(self._data_dir / "blob" / f"{self.shard:02d}")
        try:
            for path in (*logs, *blobs):  # a file with a different version is not damaged
                check_version(path)
            intact = checkpoints.intact_checkpoints(folder)
        except Damaged as damage:
            raise CannotRepair(damage.path, damage.offset, damage.reason) from damage
        # Damaged checkpoints are not needed. Startup uses an intact checkpoint. If there is none,
        # recovery refuses a log that does not begin with its first frame.
        self.damaged_files += checkpoints.damaged_checkpoints(folder, intact)
        source = "another one is intact" if intact else "startup replays the entire log"
        self.lines += [
            f"{path}: incomplete checkpoint; {source}, no record is lost"
            for path in self.damaged_files
        ]
        # Each pass reads the images of the earlier passes and replaces the first damage that
        # recovery rejects. The passes end, because `_refuse_repeated` raises an error if the same
        # damage is found twice.
        while self._find_damage(0):
            pass
        # Also plan the repair for the older checkpoint, so that startup can still fall back to it.
        if len(intact) > 1:
            self._plan_older(intact[1].path)
        for path in blobs:
            if path not in self.damaged_files:
                try:
                    check_blob(path)  # even if only a backup needs it
                except BadBlob:
                    self.damaged_files.append(path)

    def _plan_older(self, checkpoint: Path) -> None:
        """Also plan the repair for the older checkpoint.

        Records that its part of the log has lost are stored in segments, so this adds no lines.
        """
        # Lines of this second run would report losses that did not occur.
        lines = [*self.lines]
        try:
            while self._find_damage(1):
                pass
        except CannotRepair:
            # Startup cannot use the older checkpoint, so it is not needed.
            self.damaged_files.append(checkpoint)
        self.lines = lines

    def _find_damage(self, age: int) -> bool:
        """Read the shard as on startup, and replace the frames that recovery rejects.

        Return False if recovery rejects nothing. ``age`` 1 selects the checkpoint before the
        newest.
        """
        try:
            # `ShardReader` raises only for checkpoints and segments, which this repair cannot
            # replace.
            reader = ShardReader(self._data_dir, self.shard, self._shards, self._progress, age=age)
        except Damaged as damage:
            raise CannotRepair(damage.path, damage.offset, damage.reason) from damage
        # Use the images instead of the damaged files.
        reader.files = self._open_log(reader)
        repair = LogRepair(reader, reader.files, self)
        try:
            # A clean shutdown is not trusted, so that the blobs are verified completely.
            end, _ = reader.read(self._now, trusts_stop=False)
        except DamagedLog as damage:
            self._refuse_repeated(damage)
            repair.repair_damage(damage)
        except Damaged as damage:
            self._refuse_repeated(damage)
            repair.drop_dependent_frames(damage)
        # Recovery accepts the log.
        else:
            if end.lsn < self.lost_to:
                repair.lose_end(end.lsn)
                return True
            self._describe_uncertain_heads(reader)
            if not age:
                self._keep_blobs(reader)
            return False
        finally:
            reader.close()
        return True

    def _refuse_repeated(self, damage: Damaged) -> None:
        """Raise `CannotRepair` if an earlier pass has found the same damage."""
        # The change of the last pass had no effect, so another pass would have none either.
        if str(damage) in self._found:
            raise CannotRepair(damage.path, damage.offset, damage.reason)
        self._found.add(str(damage))

    def _open_log(self, reader: ShardReader) -> list[WalFile]:
        """Return the files of the log, in which images replace damaged and missing files."""
        folder, files = reader.folders.wal, []
        # Below this LSN the log was synced. Frames there are lost, not torn.
        known_to = reader.checkpoint.lsn if reader.checkpoint else 0
        for path in log_paths(folder, self.shard):
            if path not in self.images:
                try:
                    file = WalFile.open(path, self.shard, writable=False)
                except Damaged as damage:
                    # The header is damaged, or the file is truncated.
                    if not self._salvage(damage, known_to):
                        continue
                else:
                    at = file.mapped().first_unreadable(0, file.size)
                    if at is None:
                        files.append(file)
                        continue
                    # Some pages of the file cannot be read.
                    file.close()
                    self._salvage(Damaged(path, at, CANNOT_READ), known_to)
            # The file was salvaged in this or an earlier pass.
            files.append(self._image_file(path))
        # These files exist only as images, because an earlier pass found them missing.
        missing = self.images.keys() - {file.path for file in files}
        return sorted([*files, *map(self._image_file, missing)], key=lambda file: file.base)

    def _image_file(self, path: Path) -> WalFile:
        """Return a read-only log file with the bytes of an image."""
        return WalFile.of_image(path, *self.images[path])

    def _salvage(self, damage: Damaged, known_to: int) -> bool:
        """Create an image of a log file that has a damaged header or unreadable pages, or is
        truncated.

        Return False if its frames cannot be read because the header is lost.
        """
        path = damage.path
        is_newest = path == log_paths(path.parent, self.shard)[-1]
        # Unreadable pages are zeros in ``data``.
        found, unreadable = MappedFile.of(path).salvage()
        data = bytearray(found)
        header = _header_of(path, data, self.shard)
        if path not in self._salvaged:
            self.lines.append(f"{path}, offset {damage.offset}: {damage.reason}")
        self._salvaged.add(path)
        if header is None:
            # The header is lost. The frames cannot be checked without its seed.
            self.damaged_files += [] if path in self.damaged_files else [path]
            if path.suffix != LOG or not is_newest:
                return False  # the next file shows how many frames are missing
            # The checkpoint contains the frames below its LSN. All others are lost.
            base = int(path.stem, 16)
            self.make_missing(path.parent, base, max(base, known_to))
            self.lost_to = math.inf
            return True
        if is_newest:
            # The last frames may be in the part that was truncated or cannot be read.
            is_truncated = header.size > len(data)
            lost_to = header.size if is_truncated else sum(unreadable[-1:], PAGE_BYTES)
            self.lost_to = header.base + lost_to - FILE_HEADER_BYTES
        # Restore the length of a truncated file with zeros, and write an intact header.
        data.extend(bytes(max(header.size - len(data), 0)))
        data[:FILE_HEADER_BYTES] = encode_file_header(header._replace(size=len(data)))
        self.images[path] = header, data
        self.changed.add(path)
        return True

    def _keep_blobs(self, reader: ShardReader) -> None:
        """Keep the blobs of lost frames for the operator.

        No frame refers to these blobs any longer, and startup would remove them.
        """
        # If nothing was changed, nothing was lost, and startup itself handles blobs without a
        # frame.
        if not self.changed:
            return
        for path in blob_paths(reader.folders.blob):
            topic_id, first_seq = blob_of(path.name) or (0, 0)
            topic = reader.engine.by_id.get(topic_id)
            # The records of such a blob are in a segment as well.
            is_sealed = topic is not None and first_seq <= topic.sealed_seq
            is_needed = reader.blobs.is_added(topic_id, first_seq) or is_sealed
            if not is_needed and path not in self.damaged_files:
                self.lines.append(f"{path}: no frame refers to it; it is kept as {DAMAGED}")
                self.damaged_files.append(path)

    def _describe_uncertain_heads(self, reader: ShardReader) -> None:
        """Add lines for the topics that may have lost more records than are known."""
        for topic in reader.engine.by_id.values():
            head_seq, uncertain = topic.head_seq, reader.topics.uncertain_heads.get(topic.id)
            if (
                uncertain is not None
                and self.changed
                and settle_uncertain_head(reader.topics, topic)
            ):
                self.lines.append(
                    f'topic "{topic.name}": may have lost records after seq {head_seq};'
                    f" new records continue after {topic.head_seq}"
                )

    # Applying the plan

    @property
    def is_needed(self) -> bool:
        """Whether there are changes to make."""
        return bool(self.changed or self.damaged_files)

    def apply(self) -> None:
        """Make the planned changes. After an OSError, a later repair makes the remaining ones."""
        # Each replacement is atomic, so an interrupted repair leaves a state that the next one can
        # handle. The newest file is first, because it may be a new file that reports the loss of
        # the log's end. The next repair could not detect that it is missing.
        for path in sorted(self.changed, reverse=True):
            _, data = self.images[path]
            if path.exists():
                # Keep the damaged file first, so that no step destroys the only copy.
                preserve_damaged(path)
            file = AtomicFile(path, NEW)
            try:
                write_all(file.fd, [data], 0)
            except BaseException:
                file.abandon()
                raise
            # Do not remove the file after an error, because it may already have its final name.
            file.publish()
        for path in self.kept:
            preserve_damaged(path)
        for path in self.damaged_files:
            if path in self.changed:  # already replaced by its image
                continue
            preserve_damaged(path)
            path.unlink()
            sync_directory(path.parent)


def repairs(data_dir: Path, shards: int) -> list[ShardRepair]:
    """Return the planned repairs of the shards that need one. No file is changed.

    Raise `CannotRepair` or OSError.
    """
    now = Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)
    planned = [ShardRepair(data_dir, shard, shards, now) for shard in range(shards)]
    for repair in planned:
        repair.plan()
    return [repair for repair in planned if repair.is_needed]


SALT = struct.Struct("<24xQ")  # the salt in the header of a log file


def _header_of(path: Path, data: bytearray, shard: int) -> FileHeader | None:
    """Return the header of a log file, or None.

    If the header is damaged, it is derived from the file's name and confirmed by the checksum of
    the first frame, with at most one flipped bit in the salt.
    """
    with contextlib.suppress(BadHeader):
        header = decode_file_header(data[:FILE_HEADER_BYTES])
        if header.shard == shard and (path.suffix != LOG or path.name == log_name(header.base)):
            return header
    if path.suffix != LOG or len(data) < FILE_HEADER_BYTES + FRAME_HEADER_BYTES:
        return None
    base, (salt,) = int(path.stem, 16), SALT.unpack_from(data)
    # If one bit has flipped, the header was damaged and not replaced. Correcting more bits would be
    # a guess. Try the salt as it is, and then with each of its bits flipped.
    for flipped in (0, *(1 << bit for bit in range(64))):
        header = FileHeader(shard, base, salt ^ flipped, len(data))
        found = check_frame(memoryview(data), FILE_HEADER_BYTES, base, header.seed)
        if isinstance(found, FrameHeader):
            return header
    return None
