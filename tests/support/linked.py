"""Logs of several shards in one data directory, whose frames name payloads of one another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.support.wal import FILE_BYTES, Log, frame
from topics.formats.disk.frames import Frame, FrameKind
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.storage.disk import make_directory
from topics.storage.linked_logs import LinkedLogs, ReplayedLog
from topics.storage.verify.log import frames
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.file import WalFile, log_paths

BLOB_BODY = (5).to_bytes(4, "little") + b"blob,"


class Named(NamedTuple):
    """A row, as far as it names a payload."""

    shard: int
    lsn: int


class ShardLog:
    """The log of one shard, with its links; opened anew it is what a start finds."""

    def __init__(self, data_dir: Path, shard: int, *, kept_from: int = 0) -> None:
        name = f"{shard:02d}"
        self.data_dir, self.shard, folder = data_dir, shard, data_dir / "wal" / name
        make_directory(folder)
        make_directory(data_dir / "linked" / name)
        files = [WalFile.open(path, shard) for path in log_paths(folder, shard)]
        self.linked = LinkedLogs(data_dir / "linked" / name, data_dir, shard, kept_from)
        self.linked.attach(ReplayedLog(files))
        self.wal = Log(
            folder,
            sync_ms=60_000,
            file_bytes=FILE_BYTES,
            files=files,
            lsn=_end(files),
            shard=shard,
            linked=self.linked,
            blobs=BlobStore(data_dir / "blob" / name),
        )

    def write(self, size: int = 100, seq: int = 1, kind: FrameKind = FrameKind.APPEND) -> int:
        """LSN of a frame that is on the disk."""
        return self.write_frame(frame(size, seq)._replace(kind=kind))

    def write_frame(self, each: Frame) -> int:
        """LSN of a frame that is on the disk."""
        lsn = self.wal.append(each)
        self.wal.flush(sync=True)
        self.wal.wait_synced()
        return lsn

    def write_blob(self, topic_id: int, first_seq: int) -> int:
        """LSN of an EXTERNAL frame, whose blob is on the disk."""
        writer = self.wal.blobs.begin(topic_id, first_seq, len(BLOB_BODY))
        writer.write([BLOB_BODY])
        writer.finish()
        lsn = self.write_frame(
            Frame(FrameKind.APPEND, topic_id, first_seq, 0, 1, int(RecordFlags.EXTERNAL))
        )
        self.wal.blobs.add(topic_id, first_seq, lsn)
        return lsn

    def name(self, *payloads: tuple[int, int]) -> int:
        """Link payloads, and write a frame that names them; its LSN."""
        self.linked.link(payloads)
        lsn = self.write(kind=FrameKind.ROUTER)
        self.linked.note(lsn, (Named(*payload) for payload in payloads))
        return lsn

    def next_file(self) -> int:
        """Base of the file that begins now."""
        self.wal.end_file()
        return self.write()

    def give_up(self, limit: int) -> None:
        """Give up the files that end at ``limit`` or before, as `Reclaim` does."""
        self.linked.keep(self.linked.unkept(self.wal.ending_at(limit), limit))
        self.wal.retire(self.wal.detach(limit))
        self.release()

    def release(self) -> None:
        """Release what no standing file names, as `Reclaim` does."""
        if self.linked.release(self.wal.oldest_lsn):
            self.linked.unlink_released()

    def links(self) -> list[str]:
        """Names of its links."""
        return sorted(path.name for path in self.linked.folder.iterdir())

    def stop(self) -> None:
        """End the threads."""
        self.wal.stop()


def blob_of(view: RecordsView) -> bytes:
    """The rendered records."""
    return bytes(view.blob)


def letters(size: int, seq: int) -> bytes:
    """What `frame` has for records."""
    return b"%c" % (65 + seq % 26) * size


def names(paths: Iterable[Path]) -> list[str]:
    """Names of files, sorted."""
    return sorted(path.name for path in paths)


def _end(files: list[WalFile]) -> int:
    ends = [file.base for file in files]
    for file in files[-1:]:
        ends += [header.end for header in frames(file.view(), file.header)]
    return max(ends, default=0)
