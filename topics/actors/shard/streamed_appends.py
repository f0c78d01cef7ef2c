"""Streamed appends: bodies of many megabytes, handled in chunks so that other requests are served.

    hold the topic -> decode -> topic ready -> render and write a blob, chunk by chunk
        -> write the change to the log -> reply -> release the topic

A streamed append holds its topic: other changes of that topic wait, and reads continue. Its records
are durable in a blob before the log gets the small frame that refers to the blob. Seqs are assigned
only after the complete body has been validated.
"""

from __future__ import annotations

import codecs
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from topics.actors.shard.append_batch import AppendBatch, AppendCall
from topics.actors.shard.context import ShardContext
from topics.actors.shard.service import Service
from topics.engine.changes import append
from topics.engine.changes.append import Append, due_times, keeps_key
from topics.engine.changes.put_topic import check_inline_config
from topics.engine.dedupe import DedupeEntry
from topics.engine.topic import Topic
from topics.formats.api.append_body import AppendBody, check_append, check_may_configure
from topics.formats.api.append_slices import slices
from topics.formats.api.decoding import refusing_bad_bodies
from topics.formats.api.nesting import check_nesting
from topics.formats.buffers import Buffer
from topics.formats.disk.records import RecordsView
from topics.formats.disk.rendering import Rendering
from topics.formats.wire.calls import AppendParams
from topics.storage.disk import FULL
from topics.storage.wal.log_file import NoSpace
from topics.storage.wal.log_progress import LogProgress

STREAMED_MIN_BYTES = 4 << 20  # a shorter body is handled in a few milliseconds
RUN_BYTES = 512 << 10  # bytes of a body that are processed before other tasks may run


@dataclass(frozen=True, slots=True)
class Done:
    """A committed streamed append. ``created``: an earlier frame created its topic."""

    change: Append
    progress: LogProgress
    created: bool


FreeSpace = Callable[[], Awaitable[bool]]
"""Releases the files that a backup keeps on a full disk.

Returns whether any files were released. This is `Sealing.break_pin_and_wait`.
"""

Outcome = Done | DedupeEntry | OSError
"""The committed append, an earlier append with the same key, or the log's error."""


class StreamedAppends(Service):
    """Handles the streamed appends of a shard, each in its own task."""

    def __init__(self, context: ShardContext, free_space: FreeSpace) -> None:
        self._context, self._commits, self._free_space = context, context.commits, free_space
        self._engine, self._limits = context.engine, context.limits

    def begin(self, request: AppendCall) -> None:
        """Hold the topic, and start a task that handles the request.

        The topic must not be held by another change.
        """
        # The hold keeps other changes of the topic out until the reply. Seqs are assigned from the
        # head before the change is committed, so a change in between would use the same seqs.
        self._context.held.hold(request.params.topic)
        request.disable_timeout()  # writing a long body may take longer than the timeout
        self._context.start(self._handle, request)

    async def _handle(self, request: AppendCall) -> None:
        params = request.params
        batch = AppendBatch(request, self._context.band_of(params.topic))
        # Every path below replies to the request once, and then releases its memory and the topic.
        try:
            outcome = await self.append(params, request.attachment)
        except Exception as error:
            batch.fail(0, error)
        else:
            _answer(batch, outcome)
        request.release()
        self._context.release_topic(params.topic)

    async def append(self, params: AppendParams, body: Buffer) -> Outcome:
        """Append ``body`` to a held topic. Raises the same errors as a short append.

        The caller must have called ``held.hold`` for the topic. Returns the OSError of the log
        instead of raising it. A topic that was created for the append remains if the append fails
        afterwards.
        """
        # All checks that need only the body come first, so that an invalid body changes nothing.
        request = await self._decode(body)
        largest = check_append(request, len(body), params.key, self._limits)
        # Each level of nesting takes at least two bytes, so shorter records need no check. The
        # check lets other tasks run after each step.
        if largest > 2 * self._limits.nesting:
            for _ in check_nesting(request.records, self._limits.nesting):
                await trio.lowlevel.checkpoint()
        if request.config is not None:
            check_may_configure(params.may_configure)
            check_inline_config(params.topic, request.config)
        # On a full disk, each write is retried once if a backup releases files.
        found = await self._topic(params.topic, request, params.prefixes)
        if isinstance(found, OSError):
            if not await self._frees(found):
                return found
            found = await self._topic(params.topic, request, params.prefixes)
            if isinstance(found, OSError):
                return found
        topic, created = found
        # The topic is held, so no other attempt with this key can be in flight.
        if request.idempotency_key is not None:
            known = append.find_duplicate(topic, request.idempotency_key, self._context.clock())
            if known is not None:
                assert isinstance(known, DedupeEntry), "no other write to this topic is in progress"
                return known
        # Release the byte quota that `make_topic` has reserved, even if the append fails.
        try:
            outcome = await self._store(topic, request, created)
            if isinstance(outcome, OSError) and await self._frees(outcome):
                outcome = await self._store(topic, request, created)
            return outcome
        finally:
            self._engine.table.release_reserved_bytes(topic)

    async def _frees(self, error: OSError) -> bool:
        """Return whether the disk is full and breaking a backup's pin has freed space."""
        return error.errno in FULL and await self._free_space()

    async def _decode(self, body: Buffer) -> AppendBody:
        view = memoryview(body)
        with refusing_bad_bodies():
            # Validate the encoding in chunks first, then decode the body in slices.
            utf8 = codecs.getincrementaldecoder("utf-8")()
            for start in range(0, len(view), RUN_BYTES):
                utf8.decode(view[start : start + RUN_BYTES], start + RUN_BYTES >= len(view))
                await trio.lowlevel.checkpoint()
            for request in slices(view, self._limits.batch_records):
                await trio.lowlevel.checkpoint()
                if request is not None:
                    return request
        raise AssertionError("the last slice returns the request")

    async def _topic(
        self, name: str, request: AppendBody, prefixes: list[str] | None
    ) -> tuple[Topic, bool] | OSError:
        """Return the topic, with no change pending, and whether this append created it."""
        # Repeat the look-up, because the topic that was found may no longer exist after the wait.
        while (topic := self._engine.topics.get(name)) is not None:
            await self._commits.wait_idle(topic)
            if not topic.deleted:  # otherwise its creation failed during the wait
                return topic, False
        # There is no topic. Create it before the records are rendered, so that its config is
        # durable before them.
        now, size = self._context.clock(), 0
        may_reject = request.config is not None and request.config.discard == "reject"
        if may_reject or self._limits.total_bytes:
            # Check the size first, so that a body that does not fit creates no topic either.
            size = Rendering(request, keep_key=False).ends(1, now.ts)[-1]
        change = append.make_topic(self._engine.table, name, request, now, prefixes, size)
        result = await self._commits.submit_and_wait(change)
        return result if isinstance(result, OSError) else (change.topic, True)

    async def _store(self, topic: Topic, request: AppendBody, created: bool) -> Outcome:
        due = due_times(topic, request, self._context.clock())
        key = request.idempotency_key
        keep_key = key is not None and keeps_key(topic, key)
        rendering = Rendering(request, keep_key=keep_key, due=due or None)
        # Rendering the tables and computing the ends take milliseconds each. Let other tasks run in
        # between.
        await trio.lowlevel.checkpoint()
        self._context.begin_iteration()
        # Expired records are removed first, because their capacity may be needed.
        self._context.remove_expired(topic)
        now = self._context.now
        ends = rendering.ends(topic.next_seq, max(now.ts, topic.last_ts))
        await trio.lowlevel.checkpoint()
        # The tables are written before the records. This is possible because the ends of the
        # records are known before they are rendered.
        head: list[Buffer] = [rendering.ext, ends.tobytes(), *rendering.tables]
        body_len = sum(map(len, head)) + ends[-1]
        # From here on the seqs belong to this write. Each error below must undo the change.
        change = append.decide_streamed(
            self._engine.table, topic, request, rendering, ends[-1], now, due
        )
        try:
            sink, resident = self._sink(change, rendering, body_len)
            # The body is written and synced before the frame. So a frame in the log proves that
            # its blob exists.
            await self._write(sink, head, _runs(rendering, list(ends), change))
        except OSError as error:
            self._engine.undo(change)
            return error
        except BaseException:  # a bug, or the shard stops: undo the change in both cases
            self._engine.undo(change)
            raise
        result = await self._commits.submit_and_wait(change, resident)
        # With `NoSpace` the log continues, and the change was undone. After other errors the log
        # is broken, and the next startup keeps or removes the blob.
        if isinstance(result, NoSpace) and resident is None:
            # The frame of the change was not written. Remove the blob to free its space.
            self._context.wal.blobs.remove(topic.id, change.first_seq)
        return result if isinstance(result, OSError) else Done(change, result, created)

    def _sink(
        self, change: Append, rendering: Rendering, body_len: int
    ) -> tuple[Sink, RecordsView | None]:
        """Return the blob to write to. For class `ephemeral`, return a memory buffer, and the view
        of the records that it will contain.
        """
        topic = change.topic
        if topic.config.durability != "ephemeral":
            return self._context.wal.blobs.begin(topic.id, change.first_seq, body_len), None
        memory = MemorySink(body_len)
        return memory, RecordsView(rendering.flags, change.count, len(rendering.ext), memory.body)

    async def _write(self, sink: Sink, head: list[Buffer], runs: Iterator[list[bytes]]) -> None:
        # Report each step to the disk watch, which distinguishes a long write that makes progress
        # from a call that hangs.
        with self._context.disk.streaming() as note_step:
            try:
                await trio.to_thread.run_sync(sink.write, head)
                for run in runs:
                    note_step()
                    await trio.to_thread.run_sync(sink.write, run)
                note_step()
                await trio.to_thread.run_sync(sink.finish)
            # Also abandon the blob on cancellation. A partial blob must not remain under a name
            # that a later append would use.
            except BaseException:
                sink.abandon()
                raise


class Sink(Protocol):
    """Receives a body in chunks. The methods block, so they are called in a thread."""

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Append ``pieces`` to the body."""

    def finish(self) -> None:
        """Make the complete body durable."""

    def abandon(self) -> None:
        """Discard all written data."""


class MemorySink:
    """Keeps the body in memory, for the durability class `ephemeral`."""

    def __init__(self, body_len: int) -> None:
        self.body = memoryview(bytearray(body_len))
        self._end = 0

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Append copies of ``pieces``."""
        for piece in pieces:
            self.body[self._end : self._end + len(piece)] = piece
            self._end += len(piece)

    def finish(self) -> None:
        """Do nothing: memory needs no sync."""

    def abandon(self) -> None:
        """Do nothing: the memory is freed with this object."""


def _answer(batch: AppendBatch, outcome: Outcome) -> None:
    if isinstance(outcome, Done):
        batch.end(0, outcome.change, outcome.progress, created=outcome.created)
    elif isinstance(outcome, OSError):
        batch.refuse(0, outcome)
    else:
        batch.answer_known(0, outcome)


def _runs(rendering: Rendering, ends: list[int], change: Append) -> Iterator[list[bytes]]:
    """Yield the rendered records in runs of at most `RUN_BYTES`. A larger record is its own run."""
    start = 0
    while start < len(ends):
        begin = ends[start - 1] if start else 0
        # Extend the run while it stays within `RUN_BYTES`. A single record may be longer.
        stop = start + 1
        while stop < len(ends) and ends[stop] - begin <= RUN_BYTES:
            stop += 1
        yield rendering.render(start, stop, change.first_seq, change.ts)
        start = stop
