"""Rewriting: a segment is written in parts, and an install that is cut short is none or whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    comes_back,
    ended,
    extents,
    fill,
    seen,
    small_extents,
)
from topics.actors.shard.sealing import rewriting
from topics.storage.segments.file import SegmentWriter


def test_a_segment_is_written_in_parts_with_pauses_between_steps(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, pauses = list[int](), list[float]()
    original, pause = SegmentWriter.write, client.sealing.rewriting._pause

    def write(writer: SegmentWriter, pieces: Any) -> None:
        written.append(sum(map(len, pieces)))
        original(writer, pieces)

    async def noting(step_began: float) -> None:
        pauses.append(step_began)
        await pause(step_began)

    monkeypatch.setattr(SegmentWriter, "write", write)
    monkeypatch.setattr(rewriting, "WRITE_BYTES", 4096)
    monkeypatch.setattr(client.sealing.rewriting, "_pause", noting)
    fill(client, "a", "b", rounds=6)
    client.seal()
    assert extents(client)
    assert len(written) >= 2
    assert max(written) <= 2 * rewriting.WRITE_BYTES
    assert len(pauses) > len(written)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_an_end_in_the_middle_of_an_install_seals_nothing_twice(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.engine.replacing.STEP_EXTENTS", 1)
    small_extents(monkeypatch, 4)
    with ended(Sealer(tmp_path / "data", file_bytes=12 << 10)) as client:
        fill(client, "a", "b", "c", rounds=20)
        before = seen(client)
        while not client.sealing.rewriting.is_installing:
            assert client.step()
        client.step()
        assert seen(client) == before
        assert client.sealing.rewriting.is_installing
        getattr(client, how)()
        comes_back(client, before)
