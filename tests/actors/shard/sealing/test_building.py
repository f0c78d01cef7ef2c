"""Segment building: an error at any moment leaves no file."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.actors.shard.sealing.sealing_support import run
from tests.formats.disk.segment_support import plain, source
from topics.actors.shard.sealing import building
from topics.actors.shard.sealing.building import write_segment
from topics.formats.disk.segment import SegmentHeader
from topics.storage.segments.file import Segment
from topics.storage.segments.store import SegmentStore
from topics.storage.segments.writer import SegmentWriter

HEADER = SegmentHeader(3, 7, 100, 200)


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore.open(tmp_path, 3, [])


async def no_pause(_: float) -> None:
    """Go on at once."""


def build(store: SegmentStore, pauses: Any = no_pause) -> Segment:
    found: list[Segment] = []

    async def call() -> None:
        sources = [source(1, 5, [plain(900, 4000)])[0]]
        found.append(await write_segment(store, HEADER, sources, lambda *_: None, pauses))

    run(call())
    return found[0]


def test_a_segment_is_written_in_parts_with_pauses_between_steps(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    original, pauses = SegmentWriter.write, list[float]()

    def write(writer: SegmentWriter, pieces: Any) -> None:
        written.append(sum(map(len, pieces)))
        original(writer, pieces)

    async def pause(step_began: float) -> None:
        pauses.append(step_began)

    monkeypatch.setattr(SegmentWriter, "write", write)
    segment = build(store, pause)
    assert segment.header == HEADER
    assert segment.trailer.record_count == 900
    assert len(written) >= 3
    assert max(written) < 2 * building.WRITE_BYTES
    assert len(pauses) > len(written)


@pytest.mark.parametrize("what", ["write", "finish"])
def test_an_error_leaves_no_file(
    store: SegmentStore, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(SegmentWriter, what, fails)
    with pytest.raises(OSError, match="No space"):
        build(store)
    assert [*store.folder.iterdir()] == []
