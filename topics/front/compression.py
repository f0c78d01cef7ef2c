"""Compression of answers: gzip in steps, so that a large answer does not hold the event loop."""

from __future__ import annotations

import zlib

import trio

from topics.errors import NotReady
from topics.front.answers import Answer

COMPRESS_MIN_BYTES = 1024  # below this the header costs more than gzip saves
GZIP_LEVEL = 1  # a large answer must not hold the loop
STEP_BYTES = 64 * 1024
WBITS_GZIP = 31
GZIP_HEADERS = ((b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))


async def compressed(answer: Answer) -> Answer:
    """The same answer under gzip; a small answer unchanged.

    Raises `NotReady` when the shard goes down and its successor needs the memory.
    """
    if len(answer.body) < COMPRESS_MIN_BYTES:
        return answer
    try:
        with trio.CancelScope() as scope:
            answer.on_lost(scope.cancel)
            body = await _gzip(memoryview(answer.body))
            headers = (*answer.headers, *GZIP_HEADERS)
            packed = Answer(answer.status, body, headers=headers, media_type=answer.media_type)
            packed.on_unsent = answer.on_unsent
            return packed
        raise NotReady("the shard of this topic went down")
    except BaseException:
        answer.unsent()
        raise
    finally:
        answer.done()


async def _gzip(view: memoryview) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, WBITS_GZIP)
    parts = []
    for start in range(0, len(view), STEP_BYTES):
        parts.append(packer.compress(view[start : start + STEP_BYTES]))
        await trio.lowlevel.checkpoint()
    parts.append(packer.flush())
    return b"".join(parts)
