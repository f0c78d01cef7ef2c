"""Request bodies on their way to a shard: bounded, inflated if they came under gzip, in shared
memory when they are long.
"""

from __future__ import annotations

import math
import zlib
from types import TracebackType

import trio

from topics.config import Settings
from topics.errors import InvalidRequest, PayloadTooLarge, Throttled
from topics.front.backend import Backend, Body, BodyBlock
from topics.front.http.pace import Pace

FIRST_BYTES = 64 * 1024  # room that a body has at once, as far as its declared length goes
GROW_WAIT_S = 5.0  # a body that has a block waits so long for a longer one: others may be done ...
GROW_LOOK_S = 0.1  # ... and looks so often

SHORT_BODY_BYTES = (
    128 * 1024
)  # of what is decoded in one turn of somebody's loop: 4 to 9 ms at worst
WATCH_TOPIC_BYTES = 512  # a name of 255 characters, and where to begin
ESCAPED = 8  # times as long as the text itself is a JSON string at most

STEP_BYTES = 64 * 1024  # inflated at once
STEPS_PER_TURN = 8  # then other connections run: 512 KiB is about 1 ms
WBITS_GZIP = 31


def too_large(limit: int) -> PayloadTooLarge:
    """The body is above ``limit`` bytes: TOPICS_MAX_BODY_BYTES or, for what is no append,
    `short_body_max`.
    """
    return PayloadTooLarge(f"the body is larger than {limit} bytes", max=limit)


def short_body_max(settings: Settings) -> int:
    """The most bytes that any request but an append has use for."""
    texts = ESCAPED * max(settings.max_tag_bytes, settings.max_node_bytes)
    wanted = max(SHORT_BODY_BYTES, WATCH_TOPIC_BYTES * settings.max_watch_topics, texts)
    return min(settings.max_body_bytes, wanted)


def no_room() -> Throttled:
    """The shared memory for long bodies is full."""
    return Throttled("no room for another large body at the moment", retry_after_ms=1000)


class BodySink:
    """Collects a body as it arrives; what it holds is at most twice that, and `FIRST_BYTES`.

    Up to ``inline_bytes`` the body is held here, past that in a block of shared memory that grows.
    Use it as a context manager: what has not been taken by `finish` is freed on the way out; there
    too is raised why it was told to give up.
    """

    def __init__(self, backend: Backend, shard: int, *, inline_bytes: int, max_bytes: int) -> None:
        self._backend = backend
        self._shard = shard
        self._inline_bytes = inline_bytes
        self._max_bytes = max_bytes
        self._view = memoryview(bytearray())
        self._block: BodyBlock | None = None
        self._wants = 0  # bytes of memory
        self._pace = Pace()
        self._scope = trio.CancelScope()
        self._failure: Exception | None = None
        self.length = 0

    def __enter__(self) -> BodySink:
        self._scope.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._block is not None:
            self._block.free()
            self._block = None
        swallowed = self._scope.__exit__(kind, error, trace)
        if self._scope.cancelled_caught and self._failure is not None:
            raise self._failure
        return swallowed

    def give_up(self, failure: Exception) -> None:
        """Part of `Holder`."""
        self._failure = failure
        self._scope.cancel()

    def turnover_s(self, now: float) -> float:
        """Part of `Holder`."""
        return math.inf if self._failure is not None else self._pace.turnover_s(self._wants, now)

    def count(self, received: int) -> None:
        """So many bytes came over the wire."""
        self._pace.count(received, trio.current_time())

    async def room(self, most: int) -> memoryview:
        """Memory for the next 1 to ``most`` bytes; say with `took` what came. Raises as `put`."""
        if self.length == len(self._view):
            await self._grow(self.length + 1)
        return self._view[self.length : self.length + most]

    def took(self, received: int) -> None:
        """So many bytes came over the wire into the ``room``."""
        self.count(received)
        self.length += received

    async def write(self, piece: bytes | memoryview) -> None:
        """Take a piece as it came over the wire. Raises as `put`."""
        self.count(len(piece))
        await self.put(piece)

    async def put(self, piece: bytes | memoryview) -> None:
        """Take a piece. Raises `PayloadTooLarge`, `Throttled` or, without a shard, `NotReady`."""
        end = self.length + len(piece)
        if end > len(self._view):
            await self._grow(end)
        self._view[self.length : end] = piece
        self.length = end

    def finish(self) -> Body:
        """The whole body; a block changes hands here."""
        if self._failure is not None:
            raise self._failure
        if self._block is None:
            return bytes(self._view[: self.length])
        block, self._block = self._block, None
        block.shrink(self.length)
        return block

    async def _grow(self, end: int) -> None:
        if end > self._max_bytes:
            raise too_large(self._max_bytes)
        size = min(self._max_bytes, max(2 * self.length, end, FIRST_BYTES))
        if end <= self._inline_bytes:
            larger = memoryview(bytearray(min(size, self._inline_bytes)))
            larger[: self.length] = self._view[: self.length]
            self._view = larger
            return
        self._wants = size
        if not await self._has_grown(size):
            await self._grow_later(size)

    async def _grow_later(self, size: int) -> None:
        """Others make room, or are done while a body with a block waits. Raises `Throttled`."""
        while self._backend.make_room(self._shard, self, trio.current_time()):
            await trio.lowlevel.checkpoint()  # who was told to give up does so now
            if await self._has_grown(size):
                return
        patience = trio.current_time() + (GROW_WAIT_S if self._block is not None else 0)
        while trio.current_time() < patience:
            await trio.sleep(GROW_LOOK_S)
            self._pace.skip_to(trio.current_time())
            if await self._has_grown(size):
                return
        raise no_room()

    async def _has_grown(self, size: int) -> bool:
        block = self._block
        if block is None:
            block = self._backend.reserve(self._shard, size, self)
            if block is None:
                return False
            self._block = block
            block.view[: self.length] = self._view[: self.length]
        else:
            steps = block.grow(size, self.length)
            if steps is None:
                return False
            for _ in steps:
                await trio.lowlevel.checkpoint()
        self._view = block.view
        return True


class GzipSink:
    """A `BodySink` behind gzip. ``max_bytes`` holds on the wire and, by the sink, after inflation."""

    def __init__(self, sink: BodySink, max_bytes: int) -> None:
        self._sink = sink
        self._max_bytes = max_bytes
        self._inflater = zlib.decompressobj(WBITS_GZIP)
        self._wire_bytes = 0

    async def write(self, piece: bytes | memoryview) -> None:
        """Inflate a piece in small steps. Raises `PayloadTooLarge`, `InvalidRequest` (not gzip) or
        `Throttled`.
        """
        self._wire_bytes += len(piece)
        self._sink.count(len(piece))
        if self._wire_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        rest: bytes | memoryview = piece
        steps = 0
        while rest or self._inflater.unconsumed_tail:
            rest = await self._step(rest)
            steps += 1
            if steps % STEPS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()

    async def _step(self, rest: bytes | memoryview) -> bytes:
        if self._inflater.eof:  # another member follows (RFC 1952 §2.2)
            self._inflater = zlib.decompressobj(WBITS_GZIP)
        try:
            inflated = self._inflater.decompress(rest, STEP_BYTES)
        except zlib.error:
            raise InvalidRequest("the body is not valid gzip") from None
        await self._sink.put(inflated)
        if self._inflater.eof:
            return self._inflater.unused_data
        return self._inflater.unconsumed_tail

    def check_end(self) -> None:
        """Raises `InvalidRequest` when the stream stops inside a member."""
        if self._wire_bytes and not self._inflater.eof:
            raise InvalidRequest("the gzip body is cut short")
