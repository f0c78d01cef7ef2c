"""Request bodies on their way to a shard: bounded, inflated if they came under gzip, in shared memory when they are long."""

from __future__ import annotations

import zlib

import trio

from topics.errors import InvalidRequest, PayloadTooLarge, Throttled
from topics.front.backend import Backend, Body, BodyBlock

STEP_BYTES = 64 * 1024  # inflated at once
STEPS_PER_TURN = 8  # then other connections run: 512 KiB is about 1 ms
WBITS_GZIP = 31


def too_large(limit: int) -> PayloadTooLarge:
    """The body is above ``limit`` bytes (TOPICS_MAX_BODY_BYTES)."""
    return PayloadTooLarge(f"the body is larger than {limit} bytes", max=limit)


def reserve(backend: Backend, shard: int, length: int) -> BodyBlock:
    """Shared memory for ``length`` bytes. Raises `Throttled` when there is none."""
    block = backend.reserve(shard, length)
    if block is None:
        raise Throttled("no room for another large body at the moment", retry_after_ms=1000)
    return block


class BodySink:
    """Collects a body whose length is not known beforehand.

    Up to ``inline_bytes`` it is held here; past that it lives in blocks of doubling size. Use it as a context manager:
    what has not been taken by `finish` is freed on the way out.
    """

    def __init__(self, backend: Backend, shard: int, *, inline_bytes: int, max_bytes: int) -> None:
        self._backend = backend
        self._shard = shard
        self._inline_bytes = inline_bytes
        self._max_bytes = max_bytes
        self._small = bytearray()
        self._block: BodyBlock | None = None
        self.length = 0

    def __enter__(self) -> BodySink:
        return self

    def __exit__(self, *_: object) -> None:
        if self._block is not None:
            self._block.free()
            self._block = None

    def write(self, piece: bytes | memoryview) -> None:
        """Take a piece. Raises `PayloadTooLarge`, or `Throttled` without shared memory."""
        end = self.length + len(piece)
        if end > self._max_bytes:
            raise too_large(self._max_bytes)
        if end <= self._inline_bytes:
            self._small += piece
        else:
            self._room_for(end)[self.length : end] = piece
        self.length = end

    def finish(self) -> Body:
        """The whole body; a block changes hands here."""
        if self._block is None:
            return bytes(self._small)
        block, self._block = self._block, None
        block.shrink(self.length)
        return block

    def _room_for(self, end: int) -> memoryview:
        block = self._block
        if block is not None and len(block.view) >= end:
            return block.view
        larger = reserve(self._backend, self._shard, min(self._max_bytes, max(2 * end, 4 * self._inline_bytes)))
        old = self._small if block is None else block.view[: self.length]
        larger.view[: self.length] = old
        self._block = larger
        if block is None:
            self._small = bytearray()
        else:
            block.free()
        return larger.view


class GzipSink:
    """A `BodySink` behind gzip. ``max_bytes`` holds on the wire and, by the sink, after inflation."""

    def __init__(self, sink: BodySink, max_bytes: int) -> None:
        self._sink = sink
        self._max_bytes = max_bytes
        self._inflater = zlib.decompressobj(WBITS_GZIP)
        self._wire_bytes = 0

    async def write(self, piece: bytes | memoryview) -> None:
        """Inflate a piece in small steps. Raises `PayloadTooLarge`, `InvalidRequest` (not gzip) or `Throttled`."""
        self._wire_bytes += len(piece)
        if self._wire_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        rest: bytes | memoryview = piece
        steps = 0
        while rest or self._inflater.unconsumed_tail:
            rest = self._step(rest)
            steps += 1
            if steps % STEPS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()

    def _step(self, rest: bytes | memoryview) -> bytes:
        if self._inflater.eof:  # another member follows (RFC 1952 §2.2)
            self._inflater = zlib.decompressobj(WBITS_GZIP)
        try:
            self._sink.write(self._inflater.decompress(rest, STEP_BYTES))
        except zlib.error:
            raise InvalidRequest("the body is not valid gzip") from None
        if self._inflater.eof:
            return self._inflater.unused_data
        return self._inflater.unconsumed_tail

    def check_end(self) -> None:
        """Raises `InvalidRequest` when the stream stops inside a member."""
        if self._wire_bytes and not self._inflater.eof:
            raise InvalidRequest("the gzip body is cut short")
