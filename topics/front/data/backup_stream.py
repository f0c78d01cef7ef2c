"""Backup stream: coordinates the shards for a backup, and sends its files (``decisions/0067``).

    begin: all shards pin --> flags --> all hold, all cut, all resume --> files --> all confirm
       |                        |  one tar, in chunks, at the speed of its client          |
       '-- if a shard fails: 503  '-- on a failure or a drain: aborted                     v
                                                                        manifest, last chunk

The shards return the files, and the byte range of each file, that belong to the backup. A thread
with low priority reads and hashes them. They are sent slowly while other clients are sending
requests. An aborted backup must be recognizable: HTTP clients detect that the last chunk is
missing, and a tar that contains no manifest is not a backup.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import structlog
import trio

from topics import __version__
from topics.actors.rpc.session import Reply
from topics.actors.shard_client.shards import Shards
from topics.errors import NotReady, TopicsError
from topics.formats.api.backup_body import KnownFile
from topics.formats.api.response_heads import CHUNK_END, LAST_CHUNK, chunk_start
from topics.formats.disk.backup_archive import FORMAT, ArchiveFile, Manifest
from topics.formats.wire.calls import (
    BACKUP_ABANDONED,
    BACKUP_BEGIN,
    BACKUP_CUT,
    BACKUP_END,
    BACKUP_FILES,
    BACKUP_HOLD,
    BackupParams,
)
from topics.formats.wire.contract import Call, R
from topics.front.drain import Drain, shutting_down
from topics.front.http.connection import Connection
from topics.front.keys import Keys
from topics.front.limits import Cap, Slots
from topics.front.request import Request
from topics.storage.backup_writer import BackupWriter
from topics.storage.disk import Damaged

log = structlog.get_logger()

# Several attempts to cut the logs are needed if a move between topics takes longer than a hold.
CUT_ATTEMPTS_MAX: Final = 10
PAUSE_S: Final = 0.5  # pause between two attempts to cut the logs
READ_AHEAD_CHUNKS: Final = 8  # chunks that have been read but not sent
# The rate while other clients are sending requests. Reading, hashing and sending take 4 ms per MiB.
BUSY_BYTES_PER_S: Final = 32 << 20
# The nice value of the reader thread.
READER_NICENESS: Final = 15


class BackupSlots:
    """The single backup slot of a front, and counts of successful and failed backups."""

    def __init__(self) -> None:
        self.slots = Slots("another backup is in progress", in_all=Cap("max_backups", 1))
        self.counts = [0, 0]  # [finished, failed]
        self.finished_ms = 0


class Backup:
    """One backup. `begin` starts it, and `run` or `abandon` ends it.

    ``known`` contains the files that the client already has, for an incremental backup.
    """

    def __init__(
        self,
        shards: Shards,
        drain: Drain,
        keys: Keys,
        backups: BackupSlots,
        *,
        known: Sequence[KnownFile] | None = None,
    ) -> None:
        self._shards, self._drain, self._keys, self._backups = shards, drain, keys, backups
        self._known = known
        self._params = BackupParams(secrets.randbits(62), known is not None)
        self._flags: list[ArchiveFile] = []
        self._files: list[ArchiveFile] = []
        self._is_done = False
        self._seen_requests = 0  # number of requests from all clients at the last check

    async def begin(self) -> None:
        """Let all shards pin their files.

        Raise the exceptions of `Slots.acquire`, or `NotReady`.
        """
        self._backups.slots.acquire()
        try:
            for begun in await self._call_all(BACKUP_BEGIN):
                self._flags += map(ArchiveFile._make, begun.flags)
                self._files += map(ArchiveFile._make, begun.files)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Let the shards release their files, and permit another backup. Safe to call twice."""
        if not self._is_done:
            self._is_done = True
            # A stalled shard receives this message when it resumes.
            for shard in range(self._shards.count):
                self._shards.notify(shard, BACKUP_ABANDONED, self._params)
            self._backups.slots.release()

    async def run(self, request: Request, connection: Connection) -> None:
        """Send the backup. Raise `OSError` if it is aborted."""
        is_complete = False
        try:
            await self._send(request, connection)
            is_complete = True
        except (TopicsError, OSError, Damaged) as error:
            log.warning("backup aborted", error=str(error))
            raise ConnectionAbortedError("the backup was aborted") from error
        finally:
            self.abandon()
            self._backups.counts[not is_complete] += 1
        self._backups.finished_ms = time.time_ns() // 1_000_000

    async def _send(self, request: Request, connection: Connection) -> None:
        """Send the flags, the files up to the cut, and the manifest."""
        stream = BackupWriter(int(time.time()), self._known or ())
        await self._send_all(request, connection, stream.add(self._flags))
        created_ms = time.time_ns() // 1_000_000
        cuts, stream.runs, found = await self._cut()
        await self._send_all(request, connection, stream.add([*self._files, *found]))
        # All shards confirm that they still have the files of the backup.
        await self._call_all(BACKUP_END)
        # Permit the next backup before the last byte is sent, because the client may request it
        # immediately afterwards.
        self.abandon()
        manifest = Manifest(
            *(FORMAT, __version__, self._shards.count, created_ms, cuts),
            *(stream.members, stream.runs),
        )
        await connection.send(*_chunk(stream.end(manifest)), LAST_CHUNK)

    async def _send_all(
        self, request: Request, connection: Connection, pieces: Iterator[bytes]
    ) -> None:
        """Send the bytes that the reader thread produces.

        Raise the exceptions of the thread, or `TopicsError`.
        """
        async with reading(pieces) as found:
            async for piece in found:
                if self._drain.is_draining:
                    raise shutting_down()
                self._keys.check(request.principal)
                if piece:
                    await connection.send(*_chunk(piece))
                    await self._pace(connection, len(piece))

    async def _pace(self, connection: Connection, size: int) -> None:
        """Pause, so that other clients get CPU time, if they sent requests since the last chunk."""
        count = connection.connections.request_count
        if count != self._seen_requests:
            self._seen_requests = count
            await trio.sleep(size / BUSY_BYTES_PER_S)

    # Calls to the shards

    async def _cut(self) -> tuple[list[int], list[int], list[ArchiveFile]]:
        """Return the LSN up to which each log belongs to the backup, the run of each shard, and the
        files of all logs.

        Retry up to `CUT_ATTEMPTS_MAX` times. Raise `NotReady`.
        """
        for attempt in range(1, CUT_ATTEMPTS_MAX + 1):
            try:
                await self._call_all(BACKUP_HOLD)
                cuts = await self._call_all(BACKUP_CUT)
                answers = await self._call_all(BACKUP_FILES)
            except NotReady as failure:
                log.debug("backup cut failed", reason=failure.message)
                self._release()
                if attempt == CUT_ATTEMPTS_MAX:
                    raise
                await trio.sleep(PAUSE_S)
            else:
                break
        files = [ArchiveFile._make(row) for answer in answers for row in answer.files]
        return [cut.lsn for cut in cuts], [cut.run for cut in cuts], files

    async def _call_all(self, call: Call[BackupParams, R]) -> list[R]:
        """Call all shards and return their results. Raise the first failure."""
        found: dict[int, R] = {}
        failures: list[TopicsError] = []

        async def call_one(shard: int) -> None:
            try:
                reply = await self._shards.answer(shard, call, self._params)
            except TopicsError as failure:
                text = f"shard {shard} cannot take part in a backup: {failure.message}"
                failures.append(TopicsError.restore(type(failure), text, failure.detail))
            else:
                found[shard] = reply.result
                reply.release()

        async with trio.open_nursery() as nursery:
            for shard in range(self._shards.count):
                nursery.start_soon(call_one, shard)
        if failures:
            raise failures[0]
        return [found[shard] for shard in range(self._shards.count)]

    def _release(self) -> None:
        """End the holds of all shards with BACKUP_FILES, without waiting for the results."""

        def drop(answer: Reply[Any] | TopicsError) -> None:
            if isinstance(answer, Reply):
                answer.release()

        for shard in range(self._shards.count):
            self._shards.call(shard, BACKUP_FILES, self._params, b"", drop)


def _chunk(data: bytes) -> Sequence[bytes]:
    """Return the parts of one chunk of a chunked body."""
    return chunk_start(len(data)), data, CHUNK_END


@contextlib.asynccontextmanager
async def reading(pieces: Iterator[bytes]) -> AsyncIterator[trio.MemoryReceiveChannel[bytes]]:
    """Iterate ``pieces`` in a low-priority thread, up to `READ_AHEAD_CHUNKS` ahead of the reader.

    If the thread has failed, the context manager raises its exception on exit.
    """
    send, receive = trio.open_memory_channel[bytes](READ_AHEAD_CHUNKS)
    token = trio.lowlevel.current_trio_token()
    failures: list[Exception] = []

    def read() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), READER_NICENESS)
        with contextlib.suppress(trio.BrokenResourceError, trio.Cancelled, trio.RunFinishedError):
            try:
                for piece in pieces:
                    trio.from_thread.run(send.send, piece, trio_token=token)
            except (OSError, Damaged) as error:
                failures.append(error)
            finally:
                # Closing the channel ends the iteration of the reader.
                token.run_sync_soon(send.close)

    # Use a new thread, because trio reuses its threads and an unprivileged process cannot raise the
    # priority of a thread again.
    threading.Thread(target=read, name="backup", daemon=True).start()
    with receive:
        yield receive
    if failures:
        raise failures[0]
