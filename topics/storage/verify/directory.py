"""Verifies a data directory: every byte of every file, without a server and without a change.

Bytes that a crash may leave are no finding: a torn tail of the newest log file, files that were
being written. Neither are files that were kept as damaged: readers are told of what was in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from topics.storage.checkpoints import SUFFIX as CHECKPOINT_SUFFIX
from topics.storage.checkpoints import Checkpoint
from topics.storage.linked import LinkedPayloads
from topics.storage.segments.file import SUFFIX as SEGMENT_SUFFIX
from topics.storage.verify.blobs import verify_blob
from topics.storage.verify.checkpoints import (
    standing_checkpoints,
    unfounded,
    verify_checkpoint,
)
from topics.storage.verify.finding import Finding
from topics.storage.verify.log import LogCheck
from topics.storage.verify.segments import verify_segment
from topics.storage.wal.blobs import SUFFIX as BLOB_SUFFIX
from topics.storage.wal.file import log_paths


def verify_directory(data_dir: Path, shards: int) -> Iterator[Finding | Path]:
    """Findings in every file of a data directory; each path when it has been looked at."""
    for shard in range(shards):
        yield from ShardCheck(data_dir, shard).run()


class ShardCheck:
    """The files of one shard. What the log says is compared with the files beside it."""

    def __init__(self, data_dir: Path, shard: int) -> None:
        self._shard = shard
        self._wal, self._checkpoint, self._segment, self._blob = (
            data_dir / part / f"{shard:02d}" for part in ("wal", "checkpoint", "segment", "blob")
        )
        self._log_end = 0
        self._blobs_wanted: set[tuple[int, int]] = set()
        self._linked = LinkedPayloads(data_dir, shard)

    def run(self) -> Iterator[Finding | Path]:
        """Findings; each path when it has been looked at."""
        standing = standing_checkpoints(self._checkpoint)
        needed = min((checkpoint.replay_from for checkpoint in standing.values()), default=0)
        yield from self._verify_log(needed)
        yield from self._verify_checkpoints(standing)
        for path in sorted(self._segment.glob(f"*{SEGMENT_SUFFIX}")):
            yield from verify_segment(path, self._shard)
            yield path
        yield from self._verify_blobs()

    def _verify_log(self, needed: int) -> Iterator[Finding | Path]:
        """``needed``: a start replays the log from this LSN on."""
        end: int | None = None
        paths = log_paths(self._wal, self._shard)
        for path in paths:
            log = LogCheck(path, self._shard, self._linked, needed)
            yield from log.run(begins_at=end, last=path is paths[-1])
            if path is paths[0] and log.base > needed:
                reason = (
                    f"the log begins at {log.base:#x}, and a start needs it from {needed:#x} on"
                )
                yield Finding(path, 0, reason)
            self._blobs_wanted = (self._blobs_wanted | log.blobs) - {
                named for named in self._blobs_wanted if named[0] in log.deleted
            }
            end = log.end
            yield path
        self._log_end = end or 0

    def _verify_checkpoints(self, standing: Mapping[Path, Checkpoint]) -> Iterator[Finding | Path]:
        for path in sorted(self._checkpoint.glob(f"*{CHECKPOINT_SUFFIX}")):
            yield from verify_checkpoint(path)
            if path in standing:
                yield from unfounded(path, standing[path], self._log_end, self._segment)
            yield path

    def _verify_blobs(self) -> Iterator[Finding | Path]:
        for path in sorted(self._blob.glob(f"*{BLOB_SUFFIX}")):
            yield from verify_blob(path)
            yield path
        for topic_id, first_seq in sorted(self._blobs_wanted):
            path = self._blob / f"{topic_id:x}-{first_seq:x}{BLOB_SUFFIX}"
            if not path.exists():
                yield Finding(path, 0, "blob named by the log is missing")
