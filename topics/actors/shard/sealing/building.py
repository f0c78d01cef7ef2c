"""Segment building: runs a build in the shard's loop, in steps, and writes in a thread."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio

from topics.formats.buffers import Buffer
from topics.formats.disk.segment import SegmentHeader
from topics.formats.disk.segment_build import DeleteFlags, Source, build
from topics.storage.segments.file import Segment
from topics.storage.segments.store import SegmentStore

WRITE_BYTES: Final = 1 << 20  # handed to a thread at once

Pause = Callable[[float], Awaitable[None]]
"""Lets others run after a step that began at this time."""


async def write_segment(
    segments: SegmentStore,
    header: SegmentHeader,
    sources: Iterable[Source],
    delete_flags: DeleteFlags,
    pause: Pause,
) -> Segment:
    """Write a segment, whole and synced; an error leaves nothing of it."""
    writer = await trio.to_thread.run_sync(segments.begin, header.number, header.base, header.end)
    try:
        pieces: list[Buffer] = []
        size = 0
        step_began = time.monotonic()
        for piece in build(header, sources, delete_flags):
            pieces.append(piece)
            size += len(piece)
            if size >= WRITE_BYTES:
                await trio.to_thread.run_sync(writer.write, pieces)
                pieces, size = [], 0
            else:
                await pause(step_began)
            step_began = time.monotonic()
        await trio.to_thread.run_sync(writer.write, pieces)
        return await trio.to_thread.run_sync(writer.finish)
    except BaseException:
        writer.abandon()
        raise
