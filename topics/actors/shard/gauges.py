"""Gauges: measurements of a shard for the metrics, published on the board twice a second.

    commit, expiry --> changed topics --tick, some topics per iteration--> sums --> published
    a thread, at intervals --> sizes of the files ----------------------------^

Expensive measurements are not made in the path of a request. A tick recounts only the topics that
have changed since the last tick (`topics.engine.usage`). The values are published when the last of
these topics is counted. So the values are consistent as of a tick, and are published within two
ticks (``decisions/0031``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from topics.actors.link.counters import Values
from topics.actors.link.tick import wait_tick
from topics.actors.shard.context import ShardContext
from topics.actors.shard.sealing.sealing import Sealing
from topics.actors.shard.service import Service
from topics.engine.usage import Usage
from topics.storage.disk_usage import DiskUsage, ShardFolders, disk_usage
from topics.storage.recovery.shard_recovery import RecoveredShard

DISK_S: Final = 10.0  # seconds between two measurements of all files
FIRST_MEASURE_MAX_S: Final = 1.0  # a hanging disk must not delay the other values

log = structlog.get_logger()


class Gauges(Service):
    """Measures one shard. ``publish`` is called with the values by metric name.

    Nothing is counted before ``publish`` is set.
    """

    def __init__(self, context: ShardContext, shard: RecoveredShard, sealing: Sealing) -> None:
        self._context, self._commits, self._engine = context, context.commits, context.engine
        self._shard, self._sealing = shard, sealing
        self.publish: Callable[[Values], object] | None = None
        self._usage = Usage(self._engine.topics.values(), context.now.ms)
        context.note_changed = self._usage.touch
        self._is_counting = False
        self._losses = self._commits.rollback_count
        self._disk = DiskUsage._make([0] * len(DiskUsage._fields))  # zeros until measured

    # Ticks

    async def run(self) -> None:
        """Count with each tick, and measure the files at intervals."""
        deadlines = self._context.deadlines
        with trio.move_on_after(FIRST_MEASURE_MAX_S):  # if possible, the first values are complete
            await self._measure_files()
        deadlines.call_at(-math.inf, partial(deadlines.call_each_tick, self.update))
        while True:
            await wait_tick(DISK_S)
            await self._measure_files()

    async def _measure_files(self) -> None:
        shard = self._shard
        folders = ShardFolders(
            log=shard.wal.folder,
            blobs=shard.wal.blobs.folder,
            segments=shard.segments.folder,
            checkpoints=shard.folders.checkpoint,
        )
        try:
            self._disk = await trio.to_thread.run_sync(disk_usage, folders, abandon_on_cancel=True)
        except OSError as error:
            log.warning("disk usage unknown", error=str(error))

    def update(self) -> None:
        """Count the changed topics. `publish` is called in this iteration or in a later one."""
        if self.publish is None:
            return
        if self._losses != self._commits.rollback_count:
            # Undone changes may have created or deleted topics that are counted, so count all of
            # them again.
            self._losses = self._commits.rollback_count
            self._usage.reset(self._engine.topics.values())
        self._usage.begin(self._context.now.ms)
        if not self._is_counting:
            self._count()

    def _count(self) -> None:
        self._is_counting = self._usage.step(self._context.now.ms)
        if self._is_counting:
            # Continue in another iteration, so that messages are served in between.
            self._context.deadlines.call_at(-math.inf, self._count)
        elif self.publish is not None:
            self.publish(self._values())

    def _values(self) -> Values:
        sums, counted, disk = self._usage.sums, self._shard.wal.counters, self._disk
        age_ms = max(self._context.now.ts - disk.checkpoint_ts, 0) if disk.checkpoint_ts else 0
        return {
            "topics_topics": sum(sums.by_class),
            "topics_topics_by_class": sums.by_class,
            "topics_topics_ahead_of_clock": len(self._engine.future_timestamps.found),
            "topics_queue_topics": sums.queues,
            "topics_routers": len(self._engine.routers),
            "topics_records_live": sums.records,
            "topics_bytes_live": sums.bytes,
            "topics_idempotency_keys": sums.keys,
            "topics_queue_leases_in_flight": sums.leases,
            "topics_queue_delayed": sums.delayed,
            "topics_iterations_total": self._context.iteration_count,
            "topics_wal_frames_total": counted.frames,
            "topics_wal_batches_total": counted.batches,
            "topics_wal_fsyncs_total": counted.fsyncs,
            "topics_wal_loop_fsyncs_total": counted.loop_fsyncs,
            "topics_wal_bytes_written_total": counted.bytes_written,
            "topics_wal_rotations_total": counted.rotations,
            "topics_wal_queue_depth": len(self._commits),
            "topics_wal_queue_depth_peak": self._commits.waiting_peak,
            "topics_wal_submit_full_total": self._context.refused_writes,
            "topics_wal_read_only": int(self._context.disk_space.broken is not None),
            "topics_wal_fsync_latency_us": tuple(counted.sync_us),
            "topics_seal_backlog_files": self._sealing.backlog_files,
            "topics_segment_files": len(self._shard.segments.segments),
            "topics_segments_merged_total": self._sealing.rewriting.merged,
            "topics_segment_merged_bytes_total": self._sealing.rewriting.merged_bytes,
            "topics_disk_free_bytes": disk.free,
            "topics_log_bytes": disk.log,
            "topics_blob_bytes": disk.blobs,
            "topics_segment_bytes": disk.segments,
            "topics_checkpoint_bytes": disk.checkpoints,
            "topics_checkpoint_age_ms": age_ms,
        }
