"""Body sinks: bounded buffers for request bodies, in shared memory if they are long.

    up to inline_bytes    a buffer of the front
    above                 a block of the arena, which grows with the received data

A sink allocates at most twice the received bytes, plus `FIRST_BYTES`. It is aborted if its shard
goes down or if faster bodies need its memory.
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
from topics.front.body_limits import no_space, too_large
from topics.front.request import Body
from topics.front.transfer_rate import TransferRate

FIRST_BYTES = 64 * 1024  # first allocation of shared memory, at most the declared length
# First allocation of the front's own memory. It is small, because thousands of bodies may start
# together.
FIRST_INLINE_BYTES = 4096
GROW_WAIT_S = 5.0  # time for which a body that has a block waits for a longer block
GROW_POLL_S = 0.1  # interval between the attempts to get a longer block
STEP_BYTES = 64 * 1024  # maximum number of bytes inflated in one step
STEPS_PER_ITERATION = 8  # other connections run after these steps, which take about 1 ms
WBITS_GZIP = 31


OnSize: TypeAlias = Callable[["BodySink", int], None]


class BodySink:
    """Collects a body as it arrives.

    Use it as a context manager. The exit frees memory that `finish` has not transferred, and raises
    the failure that was passed to `abort`.
    """

    def __init__(
        self, shards: Shards, shard: int, *, inline_bytes: int, max_bytes: int, on_size: OnSize
    ) -> None:
        """``on_size`` is called with each new size of the front's buffer, and finally with 0."""
        self._on_size = on_size
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
        # The front's buffer is freed, so remove it from the ledger.
        self._on_size(self, 0)
        if self._block is not None:
            self._block.free()
            self._block = None
        swallowed = self._scope.__exit__(kind, error, trace)
        # Replace the cancellation with the failure that caused it.
        if self._scope.cancelled_caught and self._failure is not None:
            raise self._failure
        return swallowed

    def disconnect(self) -> None:
        """Implement `topics.front.held_memory.Client`."""
        self.abort(no_space())

    def abort(self, failure: Exception) -> None:
        """Implement `topics.actors.link.arena.BlockFiller`."""
        self._failure = failure
        self._scope.cancel()

    def turnover_s(self, now: float) -> float:
        """Implement `topics.actors.link.arena.BlockFiller`."""
        # A body that was aborted counts as the slowest one.
        if self._failure is not None:
            return math.inf
        return self._rate.turnover_s(self._wanted_bytes, now)

    def count(self, received: int) -> None:
        """Count ``received`` bytes from the network for the transfer rate."""
        self._rate.count(received, trio.current_time())

    async def writable(self, most: int) -> memoryview:
        """Return memory for the next 1 to ``most`` bytes.

        Call `advance` after writing to it. Raises the exceptions of `put`.
        """
        if self.length == len(self._view):
            await self._grow(self.length + 1)
        return self._view[self.length : self.length + most]

    def advance(self, received: int) -> None:
        """Add ``received`` bytes, which were read from the network into the memory of
        `writable`.
        """
        self.count(received)
        self.length += received

    async def write(self, piece: bytes | memoryview) -> None:
        """Append a chunk from the network, and count its bytes. Raises the exceptions of `put`."""
        self.count(len(piece))
        await self.put(piece)

    async def put(self, piece: bytes | memoryview) -> None:
        """Append a chunk.

        Raise `PayloadTooLarge` above ``max_bytes``, `Throttled` if the arena is full, or `NotReady`
        if the shard is down.
        """
        end = self.length + len(piece)
        if end > len(self._view):
            await self._grow(end)
        self._view[self.length : end] = piece
        self.length = end

    def finish(self) -> Body:
        """Return the complete body and transfer the ownership of its block to the caller."""
        if self._failure is not None:
            raise self._failure
        if self._block is None:
            return bytes(self._view[: self.length])
        block, self._block = self._block, None
        block.shrink(self.length)
        return block

    async def _grow(self, end: int) -> None:
        """Grow the memory to at least ``end`` bytes. Raises the exceptions of `put`."""
        if end > self._max_bytes:
            raise too_large(self._max_bytes)
        first = FIRST_INLINE_BYTES if end <= self._inline_bytes else FIRST_BYTES
        # Doubling bounds the cost of copies.
        size = min(self._max_bytes, max(2 * self.length, end, first))
        if end <= self._inline_bytes:
            larger = memoryview(bytearray(min(size, self._inline_bytes)))
            larger[: self.length] = self._view[: self.length]
            self._view = larger
            self._on_size(self, len(larger))
            return
        self._wanted_bytes = size
        if not await self._try_grow(size):
            await self._wait_and_grow(size)

    async def _wait_and_grow(self, size: int) -> None:
        """Grow after slower bodies have been aborted or other bodies have finished.

        A body that has no block does not wait for other bodies to finish, because little of it has
        been received. Raise `Throttled` if the memory stays full.
        """
        while self._shards.abort_slowest(self._shard, self, trio.current_time()):
            # Bodies that `abort_slowest` has aborted free their memory now.
            await trio.lowlevel.checkpoint()
            if await self._try_grow(size):
                return
        deadline = trio.current_time() + (GROW_WAIT_S if self._block is not None else 0)
        while trio.current_time() < deadline:
            await trio.sleep(GROW_POLL_S)
            # The body could not receive anything during the pause, so the pause must not reduce its
            # transfer rate.
            self._rate.skip_to(trio.current_time())
            if await self._try_grow(size):
                return
        raise no_space()

    async def _try_grow(self, size: int) -> bool:
        """Try to move the body to a block of ``size`` bytes, or to grow its block.

        Return whether it succeeded.
        """
        block = self._block
        if block is None:
            block = self._shards.reserve(self._shard, size, self)
            if block is None:
                return False
            self._block = block
            block.view[: self.length] = self._view[: self.length]
            # The data is in the block now, and the front's buffer is freed.
            self._on_size(self, 0)
        else:
            steps = block.grow(size, self.length)
            if steps is None:
                return False
            # A block is copied in steps.
            for _ in steps:
                await trio.lowlevel.checkpoint()
        self._view = block.view
        return True


class GzipSink:
    """Inflates a gzipped body into a `BodySink`.

    ``max_bytes`` bounds the compressed bytes. The sink has the same bound for the inflated bytes.
    """

    def __init__(self, sink: BodySink, max_bytes: int) -> None:
        self._sink = sink
        self._max_bytes = max_bytes
        self._inflater = zlib.decompressobj(WBITS_GZIP)
        self._wire_bytes = 0

    async def write(self, piece: bytes | memoryview) -> None:
        """Inflate a chunk.

        Raise `InvalidRequest` if the chunk is not valid gzip, or the exceptions of `BodySink.put`.
        """
        self._wire_bytes += len(piece)
        self._sink.count(len(piece))
        if self._wire_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        deflated: bytes | memoryview = piece
        steps = 0
        while deflated or self._inflater.unconsumed_tail:
            deflated = await self._step(deflated)
            steps += 1
            if steps % STEPS_PER_ITERATION == 0:
                await trio.lowlevel.checkpoint()

    async def _step(self, deflated: bytes | memoryview) -> bytes:
        """Inflate up to `STEP_BYTES`. Return the remaining input."""
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
        """Raise `InvalidRequest` if the stream ends within a member."""
        if self._wire_bytes and not self._inflater.eof:
            raise InvalidRequest("the gzip body is truncated")
