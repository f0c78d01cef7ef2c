"""Gzip request bodies: inflated in small steps on their way into a body sink."""

from __future__ import annotations

import zlib

import trio

from topics.errors import InvalidRequest
from topics.front.body_limits import too_large
from topics.front.http.body_sink import BodySink

STEP_BYTES = 64 * 1024  # inflated at once
STEPS_PER_TURN = 8  # then other connections run: 512 KiB takes about 1 ms
WBITS_GZIP = 31


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
