"""Body sinks: request bodies on their way to a shard, bounded, in shared memory when they are long.

    up to inline_bytes    a buffer of the front
    above                 a block of the arena, which grows with what arrives

A sink holds at most twice what has arrived, and `FIRST_BYTES`. It gives up when its shard goes down
or when faster bodies need its memory.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

import trio

from topics.actors.link.arena import ArenaBlock
from topics.actors.shard_client.shards import Shards
from topics.errors import InvalidRequest
from topics.front.body_limits import no_room, too_large
from topics.front.request import Body
from topics.front.transfer_rate import TransferRate

FIRST_BYTES = 64 * 1024  # first allocation of shared memory, at most the declared length ...
FIRST_INLINE_BYTES = (
    4096  # ... and of the front's own memory: thousands of bodies may begin together
)
GROW_WAIT_S = 5.0  # how long a body that has a block waits for a longer one ...
GROW_POLL_S = 0.1  # ... and how often it tries
STEP_BYTES = 64 * 1024  # inflated at once
STEPS_PER_TURN = 8  # then other connections run: 512 KiB takes about 1 ms
WBITS_GZIP = 31


Keep: TypeAlias = Callable[["BodySink", int], None]


class BodySink:
    """Collects a body as it arrives.

    Use it as a context manager: its exit frees whatever `finish` has not handed over, and raises
    the failure with which the sink was told to give up.
    """

    def __init__(
        self, shards: Shards, shard: int, *, inline_bytes: int, max_bytes: int, keep: Keep
    ) -> None:
        """``keep`` is called with each new length of the buffer, and finally with 0."""
        self._keep = keep
        self._shards = shards
        self._shard = shard
        self._inline_bytes = inline_bytes
        self._max_bytes = max_bytes
        self._view = memoryview(bytearray())
        self._block: ArenaBlock | None = None
        self._wanted_bytes = 0
        self._rate = TransferRate()
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
        self._keep(self, 0)
        if self._block is not None:
            self._block.free()
            self._block = None
        swallowed = self._scope.__exit__(kind, error, trace)
        if self._scope.cancelled_caught and self._failure is not None:
            raise self._failure
        return swallowed

    def shed(self) -> None:
        """Part of `Client`."""
        self.give_up(no_room())

    def give_up(self, failure: Exception) -> None:
        """Part of `Holder`."""
        self._failure = failure
        self._scope.cancel()

    def turnover_s(self, now: float) -> float:
        """Part of `Holder`."""
        if self._failure is not None:
            return math.inf
        return self._rate.turnover_s(self._wanted_bytes, now)

    def count(self, received: int) -> None:
        """So many bytes came over the wire."""
        self._rate.count(received, trio.current_time())

    async def room(self, most: int) -> memoryview:
        """Memory for the next 1 to ``most`` bytes; pair it with `took`. Raises as `put`."""
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
        """Take a piece. Raises `PayloadTooLarge`, `Throttled`, or `NotReady` without a shard."""
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
        first = FIRST_INLINE_BYTES if end <= self._inline_bytes else FIRST_BYTES
        size = min(self._max_bytes, max(2 * self.length, end, first))
        if end <= self._inline_bytes:
            larger = memoryview(bytearray(min(size, self._inline_bytes)))
            larger[: self.length] = self._view[: self.length]
            self._view = larger
            self._keep(self, len(larger))
            return
        self._wanted_bytes = size
        if not await self._try_grow(size):
            await self._wait_and_grow(size)

    async def _wait_and_grow(self, size: int) -> None:
        """Slower bodies make room, or others finish while a body with a block waits. Raises
        `Throttled`.
        """
        while self._shards.make_room(self._shard, self, trio.current_time()):
            await trio.lowlevel.checkpoint()  # a body that was told to give up does so now
            if await self._try_grow(size):
                return
        deadline = trio.current_time() + (GROW_WAIT_S if self._block is not None else 0)
        while trio.current_time() < deadline:
            await trio.sleep(GROW_POLL_S)
            self._rate.skip_to(trio.current_time())
            if await self._try_grow(size):
                return
        raise no_room()

    async def _try_grow(self, size: int) -> bool:
        block = self._block
        if block is None:
            block = self._shards.reserve(self._shard, size, self)
            if block is None:
                return False
            self._block = block
            block.view[: self.length] = self._view[: self.length]
            self._keep(self, 0)
        else:
            steps = block.grow(size, self.length)
            if steps is None:
                return False
            for _ in steps:
                await trio.lowlevel.checkpoint()
        self._view = block.view
        return True


class GzipSink:
    """A `BodySink` behind gzip. ``max_bytes`` holds on the wire; the sink has the same bound."""

    def __init__(self, sink: BodySink, max_bytes: int) -> None:
        self._sink = sink
        self._max_bytes = max_bytes
        self._inflater = zlib.decompressobj(WBITS_GZIP)
        self._wire_bytes = 0

    async def write(self, piece: bytes | memoryview) -> None:
        """Inflate a piece. Raises `PayloadTooLarge`, `InvalidRequest` (not gzip) or `Throttled`."""
        self._wire_bytes += len(piece)
        self._sink.count(len(piece))
        if self._wire_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        deflated: bytes | memoryview = piece
        steps = 0
        while deflated or self._inflater.unconsumed_tail:
            deflated = await self._step(deflated)
            steps += 1
            if steps % STEPS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()

    async def _step(self, deflated: bytes | memoryview) -> bytes:
        """Inflate some of it; what is left."""
        if self._inflater.eof:  # another member follows (RFC 1952 §2.2)
            self._inflater = zlib.decompressobj(WBITS_GZIP)
        try:
            inflated = self._inflater.decompress(deflated, STEP_BYTES)
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
