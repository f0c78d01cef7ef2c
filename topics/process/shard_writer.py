"""The shard writer: the process that owns the topics of one shard.

It recovers the shard from its files and then serves requests until SIGTERM. Before it exits, it
writes a checkpoint.
"""

from __future__ import annotations

import errno
import secrets
import sys
import time
from collections.abc import Sequence
from typing import Final

import structlog
import trio

from topics.actors.link.board import Board, ShardCells, ShardState, StartFailure
from topics.actors.link.counters import CounterCells
from topics.actors.link.event_loop import EventLoop
from topics.actors.link.link import Link
from topics.actors.link.link_memory import LinkMemory
from topics.actors.link.process_id import shard_id
from topics.actors.link.tick import TICK_INTERVAL_S
from topics.actors.shard.context import clock
from topics.actors.shard.loop import ShardLoop
from topics.config import Settings
from topics.errors import ExitCode
from topics.formats.api.limits import limits_of
from topics.process.children import on_sigterm
from topics.process.collector import freeze_survivors
from topics.process.measure import measure
from topics.storage.disk import BOOT_ID, Damaged
from topics.storage.folders import DirectoryLost, Folders
from topics.storage.recovery.shard_recovery import RecoveredShard, recover

LEASE_NUMBER_BITS: Final = 60
# A thread that needs the interpreter lock waits for one interval before the running thread must
# release it. The threads of the log need the lock briefly after each system call, so Python's
# default of 5 ms would delay them. A measurement with 0.1 ms during sealing showed no benefit.
SWITCH_INTERVAL_S: Final = 0.0005

log = structlog.get_logger()


def main(
    settings: Settings, folders: Folders, board: Board, links: Sequence[LinkMemory], index: int
) -> None:
    """Run shard ``index``, and return after SIGTERM.

    ``folders`` are the folders of the shard, and ``links`` are its links to the other processes.
    Exits with an `ExitCode` if the shard cannot be recovered.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    cells = board.shard(index)
    cells.progress_ppm = 0
    cells.state = ShardState.RECOVERING
    shard = _recover(settings, folders, cells, index)
    cells.start_failure = StartFailure.NONE
    # Start at a random lease number, so that no lease token from an earlier process is valid.
    shard.engine.table.next_lease_number = 1 + secrets.randbits(LEASE_NUMBER_BITS)
    freeze_survivors()
    EventLoop().run(_serve, settings, board, links, index, shard)
    cells.state = ShardState.STOPPED


def _recover(settings: Settings, folders: Folders, cells: ShardCells, index: int) -> RecoveredShard:
    """Recover the shard from its files. Exits if they cannot be read or are damaged."""

    # Called several times a second during the recovery. Without the heartbeat, the supervisor
    # would kill a shard with a long log.
    def report(share: float) -> None:
        cells.progress_ppm = int(share * 1e6)
        cells.heartbeat_ms = time.monotonic_ns() // 1_000_000

    # Wait first: recovery in the wrong directory would find only some of the files.
    _wait_for_directory(folders, cells)
    began = time.monotonic()
    try:
        shard = recover(
            folders,
            index,
            settings.shards,
            clock(),
            wal_file_bytes=settings.wal_file_bytes,
            wal_sync_ms=settings.wal_sync_ms,
            report=report,
        )
    # The exit code informs the supervisor whether a restart can help. Damage must be handled by an
    # operator.
    except Damaged as error:
        log.critical(
            "data damaged",
            path=str(error.path),
            offset=error.offset,
            reason=error.reason,
            repair=f"stop the server, then: topics repair --dry-run {settings.data_dir}",
        )
        sys.exit(ExitCode.DAMAGED)
    except DirectoryLost as error:
        # The supervisor starts another process, which waits in `_wait_for_directory`.
        log.critical("data directory lost", refused="the start", reason=error.strerror)
        sys.exit(ExitCode.FAILED)
    except OSError as error:  # The supervisor starts another process after a delay.
        cells.start_failure = failure_of(error)
        log.critical("start failed", path=error.filename, error=str(error))
        sys.exit(ExitCode.FAILED)
    except Exception:
        cells.start_failure = StartFailure.START_FAILED
        raise
    log.info(
        "shard recovered",
        topics=len(shard.engine.topics),
        duration_s=round(time.monotonic() - began, 3),
        truncated_bytes=shard.cut_bytes,
    )
    for path in shard.damaged_checkpoints:
        reason = "is not a complete checkpoint; startup did not need it, no record is lost"
        log.error("data damaged", path=str(path), offset=0, reason=reason)
    if not shard.boot:
        log.warning(
            "boot id unreadable",
            path=str(BOOT_ID),
            effect="unsynced records count as lost after each kill",
        )
    return shard


def _wait_for_directory(folders: Folders, cells: ShardCells) -> None:
    """Wait while the data directory is not at its path, or may belong to another server.

    Otherwise a shard that was killed in this state would start from the remaining files only.
    """
    while True:
        try:
            return folders.check()
        except DirectoryLost as error:
            if cells.state is not ShardState.DIRECTORY_LOST:
                reason = error.strerror
                log.critical("data directory lost", refused="the start", reason=reason)
        cells.state = ShardState.DIRECTORY_LOST
        cells.heartbeat_ms = time.monotonic_ns() // 1_000_000
        time.sleep(TICK_INTERVAL_S)


def failure_of(error: OSError) -> StartFailure:
    """Return the cause that is reported for a startup that failed with this error."""
    match error.errno:
        case errno.EACCES | errno.EPERM:
            return StartFailure.PERMISSION_DENIED
        case errno.ENOSPC | errno.EDQUOT:
            return StartFailure.DISK_FULL
        case errno.EIO | errno.EROFS | errno.ENXIO | errno.ENODEV:
            return StartFailure.DISK_FAILED
    return StartFailure.START_FAILED


async def _serve(
    settings: Settings, board: Board, links: Sequence[LinkMemory], index: int, shard: RecoveredShard
) -> None:
    loop = ShardLoop(shard, index, board, limits_of(settings))
    # SIGTERM sets the event. `loop.run` then completes the requests in flight and returns.
    stop = trio.Event()
    on_sigterm(stop.set)
    async with trio.open_nursery() as nursery:
        own = [Link(memory, board, shard_id(index)) for memory in links]
        counters = CounterCells(board, shard_id(index))
        loop.services.gauges.publish = counters.store
        nursery.start_soon(
            measure, counters, own, lambda: {"topics_inbox_messages": loop.inbox.count}
        )
        await loop.run(own, stop)
        nursery.cancel_scope.cancel()
    # All requests have been completed. The checkpoint is the last write of this process. Stop the
    # log first, then write the checkpoint, which covers the complete log.
    try:
        shard.wal.stop()
    except DirectoryLost as error:
        loop.context.disk_space.show(error)
    # The disk or the directory has failed. A checkpoint could not be written either.
    if loop.context.disk_space.broken is None:
        try:
            loop.services.sealing.write_last()
        except OSError as error:  # The next startup replays more of the log instead.
            log.warning("last checkpoint not written", error=str(error))
