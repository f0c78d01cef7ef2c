"""Backups: a shard's role in a backup that the front creates (``decisions/0067``).

    begin   write a checkpoint, unless the backup is incremental and a checkpoint exists; a pin
            keeps the files that the checkpoint refers to
    hold    stop new moves between topics; reply when no move is in flight
    cut     add the log up to its current end to the backup; requested when all shards hold moves
    files   resume moves; reply when the log is synced up to the cut
    end     release the pin; reply with an error if the pin is broken

A pin is released at the end of the backup, or when the link session with the front closes. It
breaks if the shard needs the space that the kept files occupy. A hold expires after `HOLD_MAX_S`. A
cut is valid only if the hold of each shard lasted until all shards had cut their logs; `files`
checks this.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import trio

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error
from topics.actors.rpc.session import InboundMessage, LinkSession
from topics.actors.shard.context import ShardContext
from topics.actors.shard.deadlines import Deadline
from topics.actors.shard.disk_space import unwritable
from topics.actors.shard.sealing.reclaim import Pin
from topics.actors.shard.sealing.sealing import Sealing
from topics.actors.shard.service import Service
from topics.errors import NotReady, Throttled
from topics.formats.disk.backup_archive import FLAGS, ArchiveFile
from topics.formats.wire.calls import (
    BACKUP_ABANDONED,
    BACKUP_BEGIN,
    BACKUP_CUT,
    BACKUP_END,
    BACKUP_FILES,
    BACKUP_HOLD,
    NO_RESULT,
    BackupBegun,
    BackupCut,
    BackupFiles,
    BackupParams,
    NoResult,
)
from topics.storage.recovery.shard_recovery import RecoveredShard

BeginCall: TypeAlias = InboundMessage[BackupParams, BackupBegun]
HoldCall: TypeAlias = InboundMessage[BackupParams, NoResult]
CutCall: TypeAlias = InboundMessage[BackupParams, BackupCut]
FilesCall: TypeAlias = InboundMessage[BackupParams, BackupFiles]
EndCall: TypeAlias = InboundMessage[BackupParams, NoResult]

HOLD_MAX_S: Final = 0.8  # maximum time for which a backup delays routers and dead letters


# States of a backup in its shard:
#
#     begin --> pinning --checkpoint written--> pinned --hold--> holding --no move in flight--> held
#                  |                              ^                 |                             |
#                  '--error--> over               |<--HOLD_MAX_S----'                             |
#                                                 '<--files, or HOLD_MAX_S------------------------'
#
# `cut` is valid only in the state held. `end`, the end of the link session and an abandoned backup
# release the pin in every state. If the disk is full, the pin breaks, and the next call gets an
# error.
@dataclass(eq=False, slots=True)
class _Backup:
    """The backup in progress.

    ``hold_deadline``: the deadline of its hold, or None. ``holding``: the request for the hold, or
    None after its reply. ``cut``: the LSN of the cut, and the number of rollbacks at that time.
    """

    session: LinkSession
    number: int
    pin: Pin = field(default_factory=Pin)
    hold_deadline: Deadline | None = None
    holding: HoldCall | None = None
    cut: tuple[int, int] | None = None


class Backups(Service):
    """Handles the `backup.*` requests."""

    def __init__(self, context: ShardContext, shard: RecoveredShard, sealing: Sealing) -> None:
        self._context, self._shard, self._sealing = context, shard, sealing
        # At most one backup at a time, because a pin keeps files that nothing else needs.
        self._backup: _Backup | None = None
        # Identifies this run of the process. A restarted process may have another log, for example
        # after a restore, whose files have the same names (`backup_archive.identity_ranges`).
        self._run = secrets.randbits(62)

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(BACKUP_BEGIN, self._begin)
        router.serve(BACKUP_HOLD, self._hold)
        router.serve(BACKUP_CUT, self._cut)
        router.serve(BACKUP_FILES, self._files)
        router.serve(BACKUP_END, self._end)
        router.subscribe(BACKUP_ABANDONED, self._abandoned)

    def on_session_closed(self, session: LinkSession) -> None:
        """End the backup of a front that has disconnected, releasing its pin and its hold."""
        if self._backup is not None and self._backup.session is session:
            self._end_backup()

    def _end_backup(self) -> None:
        backup, self._backup = self._backup, None
        if backup is not None:
            self._release(backup)
            self._sealing.release_pin(backup.pin)

    def _of(self, request: InboundMessage[BackupParams, Any]) -> _Backup:
        """Return the backup of the request. Raises `NotReady` if it has ended or lost its pin."""
        backup = self._backup
        if backup is None or not self._is_about(request):
            raise NotReady("this backup is not in progress on the shard")
        if backup.pin.is_broken:
            raise NotReady("the disk has no space for the files that the backup keeps")
        return backup

    def _is_about(self, request: InboundMessage[BackupParams, Any]) -> bool:
        """Return whether the request belongs to the backup in progress."""
        backup, wanted = self._backup, (request.session, request.params.number)
        return backup is not None and (backup.session, backup.number) == wanted

    # The pin

    def _begin(self, request: BeginCall) -> None:
        self._context.check_writable(grows=True)
        if self._backup is not None:
            raise Throttled("another backup is in progress", limit="max_backups", max=1)
        backup = self._backup = _Backup(request.session, request.params.number)
        backup.pin.takes_newest = request.params.is_incremental
        request.disable_timeout()
        self._sealing.request_checkpoint(backup.pin, partial(self._begun, request, backup))

    def _begun(self, request: BeginCall, backup: _Backup, error: OSError | None) -> None:
        """Reply when the checkpoint has been written or has failed. Called outside an iteration."""
        with self._context.iteration():
            try:
                # The backup may have ended while the checkpoint was being written, for example
                # because its session has closed.
                if error is not None:
                    raise error
                self._of(request)
                request.reply(self._pinned(backup.pin))
            except (NotReady, OSError) as failure:
                if self._backup is backup:
                    self._end_backup()
                refusal = failure if isinstance(failure, NotReady) else unwritable(failure)
                answer_error(request, refusal)

    def _pinned(self, pin: Pin) -> BackupBegun:
        """Return the files that the pinned checkpoint refers to."""
        kept, segments = pin.kept, self._shard.segments
        assert pin.checkpoint is not None, "the checkpoint was written"
        found = [segments.segments[number] for number in sorted(kept.segments)]
        # The front reads the delete flags before the cut and stores them separately, because a
        # segment may get more flags before it is copied.
        flags = [
            ArchiveFile(
                f"{FLAGS}/{self._shard.wal.shard:02d}/{segment.path.name}",
                str(segment.path),
                segment.trailer.flags_at,
                segment.trailer.record_count,
                segment.trailer.record_count,
            )
            for segment in found
            if 1 in segment.has_deleted
        ]
        paths = [pin.checkpoint, *(segment.path for segment in found)]
        if not self._shard.wal.shard:
            # ``meta`` belongs to the server and not to a shard. The first shard adds it.
            paths.insert(0, self._shard.folders.root / "meta")
        return BackupBegun(flags, [*self._whole_files(paths)])

    def _whole_files(self, paths: list[Path]) -> Iterator[ArchiveFile]:
        for path in paths:
            size = path.stat().st_size
            yield ArchiveFile(self._shard.folders.name_of(path), str(path), 0, size, size)

    def _end(self, request: EndCall) -> None:
        try:
            self._of(request)
        finally:
            if self._is_about(request):
                self._end_backup()
        request.reply(NO_RESULT)

    def _abandoned(self, message: InboundMessage[BackupParams, Any]) -> None:
        if self._is_about(message):
            self._end_backup()

    # The cut

    def _hold(self, request: HoldCall) -> None:
        backup = self._of(request)
        # A repeated hold replaces the earlier one, with a full new deadline.
        self._release(backup)
        request.disable_timeout()
        # An earlier cut is void, because moves may have run since then.
        backup.holding, backup.cut = request, None
        hold_deadline = trio.current_time() + HOLD_MAX_S
        backup.hold_deadline = self._context.deadlines.call_at(
            hold_deadline, partial(self._release, backup)
        )
        self._context.moves.hold(partial(self._held, backup, request))

    def _held(self, backup: _Backup, request: HoldCall) -> None:
        if backup.holding is request:
            backup.holding = None
            request.reply(NO_RESULT)

    def _release(self, backup: _Backup) -> None:
        """Resume moves if this backup holds them. A pending request for the hold gets an error."""
        if backup.hold_deadline is not None:
            backup.hold_deadline.cancel()
            backup.hold_deadline = None
            self._context.moves.release()
        if backup.holding is not None:
            request, backup.holding = backup.holding, None
            answer_error(request, _hold_expired())

    def _cut(self, request: CutCall) -> None:
        backup = self._of(request)
        # The cut is valid only while no move is in flight. Otherwise a record could be in the cut
        # of neither shard, or of both.
        if backup.hold_deadline is None or backup.holding is not None:
            raise _hold_expired()
        # Also store the number of rollbacks. If changes are undone before the sync, the LSN may
        # refer to other frames.
        backup.cut = self._context.wal.next_lsn, self._context.commits.rollback_count
        request.reply(BackupCut(backup.cut[0], self._run))

    def _files(self, request: FilesCall) -> None:
        backup = self._of(request)
        is_held = backup.hold_deadline is not None
        # Moves may continue as soon as all shards have cut. The sync below may take longer.
        self._release(backup)
        if backup.cut is None or not is_held:
            raise _hold_expired()
        request.disable_timeout()
        self._context.start(self._answer_files, request, backup, *backup.cut)

    async def _answer_files(
        self, request: FilesCall, backup: _Backup, lsn: int, losses: int
    ) -> None:
        try:
            # The files may be copied only up to the cut, and the log must be on disk up to there.
            await self._sealing.checkpoints.sync_log(lsn, losses)
            found = BackupFiles([*self._log(backup, lsn)])
        except OSError as error:
            with self._context.iteration():
                answer_error(request, unwritable(error))
        else:
            with self._context.iteration():
                request.reply(found)

    def _log(self, backup: _Backup, lsn: int) -> Iterator[ArchiveFile]:
        """Yield the log that a replay of the checkpoint needs, up to ``lsn``, and its blobs."""
        wal = self._context.wal
        for file, length in wal.files_between(backup.pin.kept.replay_from, lsn):
            yield ArchiveFile(
                self._shard.folders.name_of(file.path), str(file.path), 0, length, file.size
            )
        # Add the blobs to which frames below the cut refer, or referred when the pin was set.
        yield from self._whole_files(sorted({*wal.blobs.below(lsn), *backup.pin.blobs}))


def _hold_expired() -> NotReady:
    return NotReady("moves between topics resumed before all shards had cut their logs")
