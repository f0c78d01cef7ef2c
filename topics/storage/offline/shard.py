"""Offline shard: the topics of one shard as its next start would find them.

It takes those steps of a start (``recovery/steps.py``) that only read:

    read_checkpoints   the newest whole checkpoint
    open_segments      the segments that it names
    open_log           the files of the log
    restore_topics     topics and extents as the checkpoint knows them
    LogReplay.run      all frames from where the checkpoint says
    start.decide       what the end of the process before took
    retention.expire   what is too old now

So caps, age, deletes, acked jobs, deleted topics and records that no segment holds yet are decided
by the rules that the server has. A torn tail of the log is left out, as a start does.
"""

from __future__ import annotations

from pathlib import Path

from topics.engine.changes import start
from topics.engine.locators import is_extent
from topics.engine.now import Now
from topics.engine.replay import Replay
from topics.engine.retention import expire
from topics.engine.shard import ShardEngine
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.storage.checkpoints import Checkpoint
from topics.storage.disk import Damaged
from topics.storage.offline.files import Findings, OfflineLog, open_segments, shard_folders
from topics.storage.recovery.replay import LogReplay
from topics.storage.recovery.restore import restore_topics
from topics.storage.recovery.steps import read_checkpoints
from topics.storage.recovery.store import ReplayStore
from topics.storage.segments.store import SegmentStore
from topics.storage.start_progress import StartProgress


class OfflineShard:
    """The topics of one shard. Raises `Damaged`, unless ``findings`` takes the damage: then what
    stands before and beside it is there.
    """

    def __init__(
        self, data_dir: Path, shard: int, shards: int, now: Now, findings: Findings
    ) -> None:
        self.shard, self.data_dir = shard, data_dir
        folders, progress = shard_folders(data_dir, shard), StartProgress(lambda _: None)
        checkpoint = next(iter(read_checkpoints(folders.checkpoint, progress)), None)
        self._engine = ShardEngine(shard, shards)
        self._segments = SegmentStore(folders.segment, shard)
        for segment in open_segments(
            folders.segment, shard, checkpoint.segments if checkpoint else (), findings
        ):
            self._segments.add(segment)
        if checkpoint is not None:
            checkpoint.shard["segments"] = [
                number for number in checkpoint.segments if number in self._segments.segments
            ]
        self._log = OfflineLog(data_dir, shard, findings)
        try:
            self._replay(folders.wal, checkpoint, progress, now, findings)
        except BaseException:
            self.close()
            raise

    def _replay(
        self,
        wal: Path,
        checkpoint: Checkpoint | None,
        progress: StartProgress,
        now: Now,
        findings: Findings,
    ) -> None:
        log, replay = self._log, Replay(self._engine.table)
        store = ReplayStore(self._engine, self._segments, log.blobs, log.files, log.copies)
        self._engine.store = store
        try:
            restore_topics(replay, self._segments, store, checkpoint, log.files, progress)
            LogReplay(replay, log.blobs, log.linked, checkpoint, progress).run(wal, log.files)
        except Damaged as damage:
            findings.add(damage)
        start.decide(replay, now, clean=True, tail_may_be_lost=False)
        for topic in self.topics():
            expire(topic, now.ts, store)

    def topics(self) -> list[Topic]:
        """All topics."""
        return [*self._engine.topics.values()]

    def deleted(self, locator: int) -> Buffer | None:
        """A byte for each record at the locator, 1: deleted; None when none is."""
        if is_extent(locator):
            return self._segments.delete_flags(locator)
        return self._engine.delete_flags.of(locator)

    def close(self) -> None:
        """Close all files."""
        self._segments.close()
        self._log.close()
