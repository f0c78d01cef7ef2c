"""The process that owns the topics of one shard: recover, then serve until told to stop."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence

import structlog
import trio

from topics.actors.link.board import Board, ShardState
from topics.actors.link.link import Link, LinkMemory, Side
from topics.actors.shard import interpreter
from topics.actors.shard.context import clock
from topics.actors.shard.loop import ShardLoop
from topics.config import Settings
from topics.formats.api.requests import limits_of
from topics.process.children import DAMAGED, FAILED, note_sigterm
from topics.storage.disk import BOOT_ID, Damaged
from topics.storage.recovery import Shard, recover

log = structlog.get_logger()


def main(settings: Settings, board: Board, links: Sequence[LinkMemory], index: int) -> None:
    """Run shard ``index``; returns after SIGTERM. ``links`` are its links, one to each front."""
    interpreter.favour_log_threads()
    words = board.shard(index)
    words.progress_ppm = 0
    words.state = ShardState.RECOVERING

    def report(share: float) -> None:
        words.progress_ppm = int(share * 1e6)
        words.heartbeat_ms = time.monotonic_ns() // 1_000_000

    began = time.monotonic()
    try:
        shard = recover(
            settings.data_dir, index, settings.shards, clock(),
            wal_file_bytes=settings.wal_file_bytes, wal_sync_ms=settings.wal_sync_ms, report=report,
        )  # fmt: skip
    except Damaged as error:
        log.critical("data damaged", path=str(error.path), offset=error.offset, reason=error.reason)
        sys.exit(DAMAGED)
    except OSError as error:  # the supervisor tries again
        log.critical("start failed", path=error.filename, error=str(error))
        sys.exit(FAILED)
    log.info(
        "recovered",
        topics=len(shard.engine.topics),
        seconds=round(time.monotonic() - began, 3),
        cut_bytes=shard.cut_bytes,
    )
    if not shard.boot:
        log.warning(
            "boot id unreadable: after each kill, unsynced records count as lost", path=str(BOOT_ID)
        )
    gc.freeze()  # what recovery built stays: the collector need not look at it again
    trio.run(_serve, settings, board, links, index, shard)
    words.state = ShardState.STOPPED


async def _serve(
    settings: Settings, board: Board, links: Sequence[LinkMemory], index: int, shard: Shard
) -> None:
    loop = ShardLoop(shard, index, board, limits_of(settings))
    stop = trio.Event()
    told_early = note_sigterm()
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        if told_early():
            stop.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on, signals, stop)
            await loop.run([Link(memory, board, Side.SHARD, settings) for memory in links], stop)
            nursery.cancel_scope.cancel()
    # Nothing is answered any more: what the checkpoint says is the last word.
    shard.wal.stop()
    if loop.context.room.broken is None:
        try:
            loop.services.sealing.write_last()
        except OSError as error:  # the next start replays more of the log
            log.warning("last checkpoint not written", error=str(error))


async def _stop_on(signals: AsyncIterator[int], stop: trio.Event) -> None:
    async for _ in signals:
        stop.set()
