"""Appends with bodies of many megabytes: decoded, rendered and written run by run, so that no one
else waits for them.

While such a write is under way its topic is its own: other changes of that topic wait here, in
order; reads go on. Its records are durable in a blob before the log gets the (small) frame that
speaks of them. The seqs are given once the body is known to be good.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from topics.actors.rpc.message_router import InboundMessage
from topics.actors.shard.commits import Commits
from topics.engine.changes.append import Append, keeps_key
from topics.engine.changes.put_topic import check_inline_config
from topics.engine.dedupe import DedupeEntry
from topics.engine.now import Now
from topics.engine.shard import ShardEngine
from topics.engine.topic import Topic
from topics.formats.api.requests import AppendBody, Limits, check_append, refusing_bad_bodies
from topics.formats.api.sliced import slices
from topics.formats.buffers import Buffer
from topics.formats.disk.records import RecordsView
from topics.formats.disk.rendering import Rendering
from topics.storage.disk import Damaged
from topics.storage.wal.file import NoRoom
from topics.storage.wal.writer import Progress

STREAMED_MIN_BYTES = 4 << 20  # a shorter body is done in a few milliseconds
RUN_BYTES = 512 << 10

Handler = Callable[[InboundMessage], None]


@dataclass(frozen=True, slots=True)
class Done:
    """A long write that was committed."""

    change: Append
    progress: Progress
    created: bool  # the topic, by a frame of its own before


Outcome = Done | DedupeEntry | OSError  # what it did, what its key stood for, or why it could not


class Sink(Protocol):
    """Takes a body piece by piece."""

    def write(self, pieces: Sequence[Buffer]) -> None: ...
    def finish(self) -> None: ...
    def abandon(self) -> None: ...


class MemorySink:
    """For a class that keeps its records in memory."""

    def __init__(self, body_len: int) -> None:
        self.body = memoryview(bytearray(body_len))
        self._at = 0

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Append to the body."""
        for piece in pieces:
            self.body[self._at : self._at + len(piece)] = piece
            self._at += len(piece)

    def finish(self) -> None:
        """Nothing is left to do."""

    def abandon(self) -> None:
        """Nothing is left to undo."""


class StreamedAppends:
    """The topics that belong to a long write right now, and who waits for them."""

    def __init__(
        self, engine: ShardEngine, commits: Commits, limits: Limits, clock: Callable[[], Now]
    ) -> None:
        self.engine, self.commits, self.limits, self._clock = engine, commits, limits, clock
        self._waiting: dict[str, list[tuple[Handler, InboundMessage]]] = {}
        self.pouring = self.poured = 0  # writes under way, and steps of all that are done

    def holds(self, topic: str, handler: Handler, message: InboundMessage) -> bool:
        """Whether ``topic`` is taken; the message then waits and is handled later."""
        waiting = self._waiting.get(topic)
        if waiting is None:
            return False
        waiting.append((handler, message))
        return True

    def take(self, topic: str) -> None:
        """From now on the topic is one write's own."""
        assert topic not in self._waiting, "one long write at a time"
        self._waiting[topic] = []

    def give_back(self, topic: str) -> list[tuple[Handler, InboundMessage]]:
        """The write is done; the messages that waited, to be handled now."""
        return self._waiting.pop(topic)

    async def run(
        self, name: str, body: Buffer, key: str | None, prefixes: list[str] | None
    ) -> Outcome:
        """Do the write. The caller has taken the topic. Raises as a short append does."""
        request = await self._decode(body)
        check_append(request, len(body), key, self.limits)
        check_inline_config(name, request)
        found = await self._topic(name, request, prefixes)
        if isinstance(found, OSError):
            return found
        topic, created = found
        if request.idempotency_key is not None:
            known = self.engine.known(topic, request.idempotency_key, self._clock())
            if known is not None:
                assert isinstance(known, DedupeEntry), "nothing else is under way on this topic"
                return known
        return await self._write(topic, request, created)

    async def _decode(self, body: Buffer) -> AppendBody:
        view = memoryview(body)
        with refusing_bad_bodies():
            utf8 = codecs.getincrementaldecoder("utf-8")()
            for start in range(0, len(view), RUN_BYTES):
                utf8.decode(view[start : start + RUN_BYTES], start + RUN_BYTES >= len(view))
                await trio.lowlevel.checkpoint()
            for request in slices(view, self.limits.batch_records):
                await trio.lowlevel.checkpoint()
                if request is not None:
                    return request
        raise AssertionError("slices end with the request")

    async def _topic(
        self, name: str, request: AppendBody, prefixes: list[str] | None
    ) -> tuple[Topic, bool] | OSError:
        """The topic with nothing under way on it, and whether it was made for this write."""
        while (topic := self.engine.topics.get(name)) is not None:
            await self.commits.idle(topic)
            if not topic.deleted:  # as one is whose making failed while we waited for it
                return topic, False
        now, size = self._clock(), 0
        if (
            request.config is not None and request.config.discard == "reject"
        ):  # what does not fit makes no topic either
            size = Rendering(request, keep_key=False).ends(1, now.ts)[-1]
        change = self.engine.create(name, request, now, prefixes, size)
        result = await self.commits.settled(change)
        return result if isinstance(result, OSError) else (change.topic, True)

    async def _write(self, topic: Topic, request: AppendBody, created: bool) -> Outcome:
        rendering = Rendering(request, keep_key=keeps_key(topic, request))
        await trio.lowlevel.checkpoint()
        now = self._clock()
        self._expire(topic, now)
        ends = rendering.ends(topic.next_seq, max(now.ts, topic.last_ts))
        await trio.lowlevel.checkpoint()
        head: list[Buffer] = [rendering.ext, ends.tobytes(), *rendering.tables]
        body_len = sum(map(len, head)) + ends[-1]
        change = self.engine.append_streamed(topic, request, rendering, ends[-1], now)
        resident_class = topic.config.durability == "ephemeral"
        resident: RecordsView | None = None
        try:
            if not resident_class:
                sink: Sink = self.commits.wal.blobs.begin(topic.id, change.first_seq, body_len)
            else:
                sink = memory = MemorySink(body_len)
                resident = RecordsView(
                    rendering.flags, change.count, len(rendering.ext), memory.body
                )
            await self._pour(sink, head, self._runs(rendering, list(ends), change))
        except OSError as error:
            self.engine.undo(change)
            return error
        except BaseException:  # a bug, or the shard stops: nothing may wait for this write any more
            self.engine.undo(change)
            raise
        result = await self.commits.settled(change, resident)
        if isinstance(result, NoRoom) and not resident_class:
            self.commits.wal.blobs.remove(
                topic.id, change.first_seq
            )  # its frame was not written: the room is needed
        return result if isinstance(result, OSError) else Done(change, result, created)

    def _expire(self, topic: Topic, now: Now) -> None:
        try:
            expired = self.engine.expire(topic, now)
        except Damaged as damage:
            return self.commits.tell(
                damage
            )  # what is damaged does not keep the rest of the topic from its users
        if expired is not None:
            self.commits.submit(expired, None)
        return None

    async def _pour(self, sink: Sink, head: list[Buffer], runs: Iterator[list[bytes]]) -> None:
        self.pouring += 1
        try:
            await trio.to_thread.run_sync(sink.write, head)
            for run in runs:
                self.poured += 1
                await trio.to_thread.run_sync(sink.write, run)
            self.poured += 1
            await trio.to_thread.run_sync(sink.finish)
        except BaseException:
            sink.abandon()
            raise
        finally:
            self.pouring -= 1

    @staticmethod
    def _runs(rendering: Rendering, ends: list[int], change: Append) -> Iterator[list[bytes]]:
        start = 0
        while start < len(ends):
            begin = ends[start - 1] if start else 0
            stop = start + 1
            while stop < len(ends) and ends[stop] - begin <= RUN_BYTES:
                stop += 1
            yield rendering.render(start, stop, change.first_seq, change.ts)
            start = stop
