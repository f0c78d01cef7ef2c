"""Heartbeat: publishes the state of a shard on the board.

Twice a second the heartbeat publishes that the loop runs, the number of topics and the state of the
disk. It also checks whether the data directory still belongs to the server, and whether topics have
records ahead of the clock. Such a topic is logged once, and again only if its records were not
ahead in the meantime.

Every `CHECK_INTERVAL_MS`, at the end of an iteration of the loop, the heartbeat publishes how long
a new message will wait. This is the sum of two waits. The first is the wait for an iteration, if
more messages are queued than one iteration handles. The second is the wait for the log, minus the
time of two writes and syncs, which is the maximum that a group waits at the usual speed of the
disk. The front combines the delay with its own load (pressure, §11). While there is a delay, a
timer repeats the calculation, so that the delay is also reset if no message arrives.
"""

from __future__ import annotations

import time
from typing import Final

import structlog
import trio

from topics.actors.link.liveness import Liveness
from topics.actors.shard.context import ShardContext
from topics.actors.shard.service import Service
from topics.process import logs

CHECK_INTERVAL_MS: Final = 20
NAMES_MAX: Final = 64  # maximum number of topic names in one log line

log = structlog.get_logger()


class Heartbeat(Service):
    """Maintains the fields of a shard on the board.

    ``checked_ms``: time at which the delay was last calculated.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._log = Liveness()
        self.checked_ms = 0
        self._is_queued = False

    async def run(self) -> None:
        """Publish a heartbeat now and with each tick."""
        self._context.deadlines.call_each_tick(self.publish)

    def publish(self) -> None:
        """Publish one heartbeat.

        Also remove some expired idempotency keys, and check some topics against the clock.
        """
        cells = self._context.cells
        cells.heartbeat_ms = time.monotonic_ns() // 1_000_000
        cells.topics = len(self._context.engine.topics)
        self._context.disk.check(trio.current_time())
        self._context.wal.check()
        for topic in self._context.engine.sweep_keys(self._context.now):
            self._context.note_changed(topic)
        self._check_clock()
        self._context.store.discard_prefetched()
        logs.report_dropped()

    def _check_clock(self) -> None:
        engine, now = self._context.engine, self._context.now
        if found := engine.future_timestamps.sweep(engine.by_id, now):
            log.warning(
                "records ahead of the clock",
                names=[topic.name for topic in found[:NAMES_MAX]],
                count=len(found),
                ahead_ms=max(topic.last_ts for topic in found) - now.ts,
                see="ClockAhead in runbook.md",
            )

    def publish_delay(self) -> None:
        """Publish the current delay on the board."""
        context = self._context
        self.checked_ms = context.now.ms
        delay_ms = int(1000 * (context.inbox.wait_s + self._log_wait_s(context.now.ms / 1000)))
        if delay_ms != context.cells.delay_ms:
            context.cells.delay_ms = delay_ms
        if delay_ms and not self._is_queued:
            self._is_queued = True
            context.deadlines.call_at(
                trio.current_time() + CHECK_INTERVAL_MS / 1000, self._publish_delay_again
            )

    def _publish_delay_again(self) -> None:
        self._is_queued = False
        self.publish_delay()

    def _log_wait_s(self, now: float) -> float:
        commits = self._context.commits
        if not len(commits) or self._context.disk_space.broken is not None:
            self._log.observe(now, now)
            return 0.0
        return max(0.0, self._log.observe(commits.oldest, now) - 2 * commits.average_s)
