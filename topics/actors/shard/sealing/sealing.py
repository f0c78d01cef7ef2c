"""Sealing: converts full log files into segments, one file after another (decision 0009).

    full log file, committed and synced
        -> check      damaged writes are removed from the index, and the file is kept for analysis
                      (``checking.py``)
        -> rewrite    its records by topic, in a new segment (``rewriting.py``)
        -> checkpoint (``checkpointing.py``)
        -> reclaim    data that neither checkpoint on disk needs (``reclaim.py``)
        -> merge      segments with few live records are rewritten (``merging.py``)

All phases run in the shard's loop in steps of about a millisecond. Only file calls run in a thread.
After an error, the state is unchanged and the work is retried later. The log grows in the meantime.
A broken log stops sealing, because its files are found by name, and the names may belong to other
files.

A backup keeps files that the shard no longer needs (`Pin`). If the disk has no space for a file of
the shard, the pin breaks, the files that it kept are deleted, and the write is retried once. The
task that writes a blob waits in `break_pin_and_wait` and then retries. Appends that the log has
lost are retried in the same way (``space_waits.py``). The sealing task retries segments and
checkpoints. A spare log file is created when the file before it is half full. If that fails, the
pin breaks before the log needs the spare. A full disk during a merge does not break the pin,
because no client waits for a merge.

A full log file is sealed immediately, unless the log grows fast: during a burst of a few files,
sealing waits, so that it does not compete with the writes for the disk and the interpreter. Each
step is followed by a pause, in which the loop serves requests and the log's threads get the
interpreter. In measurements, graded pauses increased the append rate during sealing by a factor of
1.3 to 1.55. With steps of a quarter of this length and without pauses, the latency of the slowest
appends doubled. A thread instead of steps would compete for the interpreter.

    backlog (full log files)           pause after a step
    up to BACKLOG_NORMAL_FILES         PAUSE_RATIO times as long as the step, PAUSE_MAX_S at most
    above it                           shorter with each additional file
    BACKLOG_MAX_FILES or more          none; other tasks still run between two steps

Pacing only affects timing. It never affects which data is sealed, or in which order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import structlog
import trio

from topics.actors.link.tick import wait_tick
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.sealing.checking import SealingCheck
from topics.actors.shard.sealing.checkpointing import Checkpointing
from topics.actors.shard.sealing.merging import Merging
from topics.actors.shard.sealing.reclaim import Pin, Reclaim
from topics.actors.shard.sealing.rewriting import Rewriting
from topics.actors.shard.sealing.sources import LogFile
from topics.actors.shard.service import Service
from topics.engine.changes.floor import FloorMoved
from topics.engine.losses import mark_damaged
from topics.engine.record_index import IndexEntry
from topics.engine.topic import Topic
from topics.storage import checkpoints
from topics.storage.disk import FULL, Damaged, preserve_damaged
from topics.storage.recovery.shard_recovery import RecoveredShard

FILES_PER_CHECKPOINT = 2
ROUND_INTERVAL_S = 0.1  # time between two checks for full log files while the log grows
RETRY_INTERVAL_S = 5.0  # pause after an error, and between checkpoints that only reclaim space
GROWTH_MIN_BYTES = 512 << 10  # growth of the log between two checks that counts as a burst
BACKLOG_NORMAL_FILES = 2
BACKLOG_MAX_FILES = 8
PAUSE_RATIO = 6.0
PAUSE_MAX_S = 0.010
log = structlog.get_logger()


# A round, and how the disk gets space (`_work`):
#
#     IDLE --ROUND_INTERVAL_S, tick--> release --> log space --> broken pins --> requested pin
#       ^                                                                          |
#       |                              .--burst: wait for its end------------------|
#       |                              v                                           v
#       '--- merge if due <-- checkpoint if due <------------- seal full files; a checkpoint
#                                                              after every FILES_PER_CHECKPOINT
#
# An OSError ends a round, and the next one begins after RETRY_INTERVAL_S. If the disk is full, the
# pin of a backup is broken first, and the round is repeated immediately.
class Sealing(Service):
    """The task of a shard that moves records from its log into segments."""

    def __init__(self, shard: RecoveredShard, commits: GroupCommit) -> None:
        self.engine, self.wal, self.segments = shard.engine, shard.wal, shard.segments
        self.commits, self.store = commits, commits.store
        self.reclaim = Reclaim(shard)
        self.checkpoints = Checkpointing(shard, commits, self.reclaim)
        self.rewriting = Rewriting(shard, commits, self.reclaim, self._pause)
        self.merging = Merging(shard, commits, self.reclaim, self.rewriting)
        # The end of the log at the last check. If the log has not grown since then, the next round
        # may wait for the common tick of the process.
        self._seen_lsn = self.wal.next_lsn
        # The store reports extents and blobs that it no longer needs. `Reclaim` decides when
        # their files are deleted.
        self.store.on_release = self.reclaim.release_extent
        self.store.on_blobs_removed = self.reclaim.drop_blobs
        # The request of a backup that waits for the next round, and the function that gets its
        # result. At most one backup runs at a time.
        self._pin_request: tuple[Pin, Callable[[OSError | None], object]] | None = None
        self._freed: trio.Event | None = None  # set when the files of a broken pin are deleted
        self._pause_between = trio.CancelScope()  # the pause between two rounds

    # For backups

    def request_checkpoint(self, pin: Pin, then: Callable[[OSError | None], object]) -> None:
        """Write a checkpoint soon if necessary, and make ``pin`` keep its files.

        Afterwards ``then`` is called with the error or None.
        """
        self._pin_request = pin, then

    def release_pin(self, pin: Pin) -> None:
        """Release the files that are kept for ``pin``."""
        if self.reclaim.pin is pin:
            self.reclaim.pin = None
        if self._pin_request is not None and self._pin_request[0] is pin:
            self._pin_request = None

    async def _pin_requested(self) -> None:
        if self._pin_request is None:
            return
        # Clear the request first, because `then` may make the next one.
        (pin, then), self._pin_request = self._pin_request, None
        error = None
        # Set the pin before the checkpoint is written: the checkpoint frees files, and the files
        # that the backup needs must be kept.
        self.reclaim.pin = pin
        try:
            # The newest checkpoint is sufficient if the backup permits an older state. This saves
            # writing one.
            if pin.takes_newest and self.checkpoints.newest is not None:
                pin.checkpoint = self.checkpoints.newest
                pin.blobs += self.reclaim.absorbed_blobs
            else:
                pin.checkpoint = await self.checkpoints.write()
            pin.kept = self.reclaim.newest
        except OSError as failure:
            error = failure
            self._break_pin()
        then(error)

    # For writers that found the disk full

    def on_rollback(self) -> None:
        """Start the next round early, because a pin may keep the space that the log lacks."""
        if self.reclaim.pin is not None:
            self._pause_between.cancel()

    @property
    def keeps_files(self) -> bool:
        """Whether a pin keeps files, or the files of a broken pin have not been deleted yet."""
        return self.reclaim.pin is not None or self._freed is not None

    async def break_pin_and_wait(self) -> bool:
        """Break the pin of a backup, and wait until the files that it kept are deleted.

        Return False if a retry would find no more space, for example because there is no backup.
        """
        # If no files were kept or the log is broken, a retry would find no additional space.
        if self.wal.failed is not None or not (self._break_pin() or self._freed is not None):
            return False
        assert self._freed is not None, "the pin was broken"
        freed = self._freed
        # Do not wait for the end of the pause, because a client waits for the space.
        self._pause_between.cancel()
        await freed.wait()
        return True

    def _break_pin(self) -> bool:
        """Break the pin, so that the next round deletes its files.

        Return False if there is no pin.
        """
        if not self.reclaim.break_pin():
            return False
        log.warning("backup aborted", path=str(self.wal.folder), reason="the disk is full")
        self._freed = self._freed or trio.Event()
        return True

    async def _ensure_log_space(self) -> None:
        """Break the pin if the disk has no space for the next log file or the reserve."""
        # Nothing needs to be done if there is no pin to break, or if no file is missing.
        if self.reclaim.pin is None or not self.wal.lacks_files:
            return
        if not await trio.to_thread.run_sync(self.wal.allocate_files):
            self._break_pin()

    async def _free_broken(self, *, is_last: bool) -> None:
        """Delete the files that a broken pin kept, and notify the waiting writers.

        Unless ``is_last``, the writers continue to wait if the log still lacks space. The rest of
        the round may free more, because a full log file with only deleted data needs no segment.
        """
        if self._freed is None:
            return
        await self.reclaim.free()
        # A file is deleted when no kept checkpoint needs it. So as many checkpoints are written
        # as are kept.
        for _ in range(checkpoints.CHECKPOINTS_KEPT):
            if self.reclaim.has_garbage:
                await self.checkpoint()
        if self.wal.lacks_files:
            await trio.to_thread.run_sync(self.wal.allocate_files)
        if is_last or not self.wal.lacks_files:
            self._notify_freed()

    def _notify_freed(self) -> None:
        if self._freed is not None:
            self._freed.set()
            self._freed = None

    # The task

    async def run(self) -> None:
        """Seal until cancelled, or until the log is broken."""
        while self.wal.failed is None:
            # If the log has not grown by the end of the round, the next round can wait longer.
            interval_s, begun_lsn = ROUND_INTERVAL_S, self._seen_lsn
            try:
                await self._round()
            # The log keeps its files until a later round succeeds.
            except (OSError, Damaged) as error:
                interval_s = RETRY_INTERVAL_S
                log.warning("sealing failed", error=str(error), retry_in_s=interval_s)
            with trio.CancelScope() as self._pause_between:
                if self._freed is not None:
                    pass  # no pause, because a writer waits for space
                elif self._seen_lsn == begun_lsn and interval_s == ROUND_INTERVAL_S:
                    await wait_tick()
                else:
                    await trio.sleep(interval_s)
        # The log is broken. Waiting writers and backups must not wait forever.
        self._notify_freed()
        if self._pin_request is not None:
            self._pin_request[1](self.wal.failed)

    async def _round(self) -> None:
        """Perform the due work. If the disk is full and there is a pin, break it and retry once.

        The retry uses the space that the backup kept.
        """
        losses = self.commits.rollback_count
        try:
            # Two attempts: the second one uses the space of the broken pin.
            try:
                await self._work()
            except OSError as error:
                if error.errno not in FULL or not (self._break_pin() or self._freed is not None):
                    raise
                losses = self.commits.rollback_count
                await self._work()
        except BaseException:
            # If changes were lost, the checkpoint was abandoned. Then the writers wait for the next
            # round, which writes it.
            if self.commits.rollback_count == losses:
                self._notify_freed()
            raise

    async def _work(self) -> None:
        """Write delete flags, seal full log files, write a checkpoint and merge, if each is due."""
        # Cheap steps first. They may free space that the following steps need.
        await self._release()
        await self._ensure_log_space()
        await self._free_broken(is_last=False)
        await self._pin_requested()
        # The growth since the last round shows a burst. It is measured once, before the round
        # takes time.
        grown, self._seen_lsn = self.wal.next_lsn - self._seen_lsn, self.wal.next_lsn
        # A short burst is sealed when it is over. A normal backlog is sealed immediately.
        waits = (
            grown >= GROWTH_MIN_BYTES
            and self.backlog_files < BACKLOG_NORMAL_FILES
            and self._freed is None
        )
        if self.segments.flags.is_due(self.wal.synced_lsn):
            with contextlib.suppress(OSError):  # the next checkpoint reports the error
                await trio.to_thread.run_sync(self.segments.flags.write, self.wal.synced_lsn)
        sealed, failure = 0, None
        # Seal file by file, in the order of the log. An error ends the loop, but the checkpoint
        # below is still written for the files that have been sealed.
        try:
            # Write a checkpoint after every few files, so that their log space is freed early.
            for base, end in () if waits else self._ready_files():
                await self._seal(base, end)
                sealed += 1
                await self._pin_requested()
                if sealed == FILES_PER_CHECKPOINT:
                    await self.checkpoint()
                    sealed = 0
        except OSError as error:
            failure = error  # on a full disk, a checkpoint may free the space that a segment needs
        if sealed or self._reclaim_is_due:
            await self.checkpoint()
        await self._free_broken(is_last=True)
        if failure is not None:
            raise failure
        # Deletes may have left segments with few live records.
        self.merging.check_for_deletes()
        if self.merging.is_due and not waits:
            try:
                await self.merging.merge()
            except (OSError, Damaged) as error:  # an error of a merge does not delay sealing
                log.warning("merging failed", error=str(error))

    async def _release(self) -> None:
        """Free the records in memory and in the log that are no longer in any index, in steps."""
        step_began = time.monotonic()
        while self.store.release_next():
            await self._pause(step_began)
            step_began = time.monotonic()

    async def checkpoint(self) -> None:
        """Write a checkpoint, then free data that is no longer needed. Raises OSError."""
        assert not self.rewriting.is_installing, (
            "all topics refer to the same segments as the checkpoint"
        )
        await self.checkpoints.write()
        self.merging.is_due = True
        await self.reclaim.free()

    def write_last(self) -> None:
        """Write the checkpoint of a clean shutdown, after the log is closed. Raises OSError."""
        self.rewriting.finish_now()
        self.checkpoints.write_last()

    def _ready_files(self) -> Iterator[tuple[int, int]]:
        """Yield ``(base, end)`` of the log files that can be sealed, in order."""
        # Files below ``replay_from`` have already been sealed. They still exist because a
        # checkpoint or a pin needs them.
        for base, end in self.wal.full_files():
            if base < self.reclaim.replay_from:
                continue
            # Sealing reads the index, so all changes of the file must be committed. The segment
            # replaces the file, so the file must be synced.
            if self.commits.reached < end or self.wal.synced_lsn < end:
                return
            yield base, end

    @property
    def backlog_files(self) -> int:
        """Number of full log files that have not been sealed."""
        return self.wal.count_full_files(self.reclaim.replay_from)

    @property
    def _reclaim_is_due(self) -> bool:
        since_s = time.monotonic() - self.checkpoints.written_at
        return self.reclaim.has_garbage and since_s > RETRY_INTERVAL_S

    async def _pause(self, step_began: float) -> None:
        """Let other tasks run after a step that began at ``step_began``."""
        pause_s = pause_after(time.monotonic() - step_began, self.backlog_files)
        if pause_s:
            await trio.sleep(pause_s)
        else:
            await trio.lowlevel.checkpoint()

    # One log file

    async def _seal(self, base: int, end: int) -> None:
        file = LogFile(self.store, base, end)
        # Find the records first. If none is live, no segment is needed.
        await self.rewriting.find(file)
        if not file.spans:
            # All records of the file are dead. Write no empty segment: the disk may be full.
            self.reclaim.seal_up_to(end)
            return
        # Check before the rewrite, because the rewrite computes new checksums.
        await self._check(file)
        await self.rewriting.move(file)

    async def _check(self, sealed: LogFile) -> None:
        """Remove damaged writes from the index, and keep their files for analysis.

        This ensures that damaged bytes never get a new checksum.
        """
        check = SealingCheck(self.wal.file(sealed.base), sealed, self.wal.blobs)
        step_began = time.monotonic()
        for _ in check.steps():
            await self._pause(step_began)
            step_began = time.monotonic()
        for damage in check.damage:
            self.store.report(damage)
            if damage.path.exists():
                await trio.to_thread.run_sync(preserve_damaged, damage.path)
        for topic, entry in check.writes:
            self._report_lost(topic, entry)

    def _report_lost(self, topic: Topic, entry: IndexEntry) -> None:
        """Report a damaged write as lost to its readers, if it is still in the index."""
        index = topic.index.find(entry.first_seq)
        # The write may have been deleted, or evicted, since the check found it.
        if index < len(topic.index) and topic.index.entry(index)[2] == entry.locator:
            mark_damaged(topic, index, self.store)
            self.commits.engine.recharge(topic)
            # A page that was read ahead may contain the write.
            self.commits.on_commit(FloorMoved(topic, [], sync=False))


def pause_after(step_s: float, backlog_files: int) -> float:
    """Return the seconds to pause after a step of ``step_s`` seconds."""
    share = (BACKLOG_MAX_FILES - backlog_files) / (BACKLOG_MAX_FILES - BACKLOG_NORMAL_FILES)
    return min(max(min(share, 1.0), 0.0) * PAUSE_RATIO * step_s, PAUSE_MAX_S)
