"""Sealing check: damaged frames and blobs are never sealed, and their loss is reported for good."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.shard.sealing.damage_support import flip, lost, walk
from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    ended,
    files,
    findings,
)
from tests.support.log import append_streamed, failing
from tests.support.quota import Caps
from topics.actors.link.board import Board
from topics.actors.link.heads import HeadSlotReader, HeadSlotWriter
from topics.engine.changes.change import Change
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameKind, scan_frames
from topics.formats.disk.wal import FILE_HEADER_BYTES, decode_file_header


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Sealer]:
    """Return a shard whose log files contain about twenty small writes."""
    with ended(Sealer(tmp_path / "data", file_bytes=FILE_HEADER_BYTES + 4096)) as client:
        yield client


def first_log(path: Path) -> Path:
    """Return the oldest log file. A spare file with the same stem may exist at any time."""
    return min(found for found in files(path, "wal") if found.suffix == ".wal")


def frames_of(path: Path) -> list[Any]:
    data = memoryview(path.read_bytes())
    header = decode_file_header(data)
    return [*scan_frames(data, FILE_HEADER_BYTES, header.base, header.seed)]


def two_topics(client: Sealer, writes: int = 40) -> None:
    for number in range(writes):
        client.append("a", number, number)
        client.append("b", number, tag="t", key=f"k{number}")
    client.advance()


def damaged_by(header: Any) -> dict[int, list[tuple[int, int]]]:
    """Return the gaps that readers must receive if this frame is damaged, by topic id."""
    if header.kind != FrameKind.APPEND:
        return {}
    return {header.topic_id: [(header.first_seq, header.first_seq + header.record_count - 1)]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_frame_is_never_sealed_and_its_loss_is_reported_permanently(
    small: Sealer, seed: int, stepping: list[Any]
) -> None:
    rng = random.Random(seed)
    two_topics(small)
    first = first_log(small.path)
    header = rng.choice(frames_of(first))
    offset = FILE_HEADER_BYTES + header.lsn
    at = offset + rng.randrange(FRAME_HEADER_BYTES + header.body_len)
    flip(first, at, 1 << rng.randrange(8))
    hurt_bytes = first.read_bytes()
    small.checkpoint()
    expected = damaged_by(header)
    for run_number in range(3):
        for name in ("a", "b"):
            topic = small.engine.topic(name)
            head = topic.head_seq
            seqs, gaps = walk(small, topic)
            assert gaps == expected.get(topic.id, []), run_number
            assert seqs == sorted({*range(1, head + 1)} - lost(gaps)), run_number
            assert topic.count == len(seqs)
        assert findings(small.path) == []
        assert Path(f"{first}.damaged").exists()
        if run_number == 0:
            assert (str(first), offset) in [
                (log["path"], log["offset"]) for log in stepping if log["event"] == "data damaged"
            ]
            small.kill()
            small = small.again()
            two_topics(small)
            small.checkpoint()
            small.checkpoint()
            assert not first.exists(), "no checkpoint needs it any longer"
        if run_number == 1:
            small.stop()
            small = small.again()
    assert Path(f"{first}.damaged").read_bytes() == hurt_bytes, "its space is not reused"
    small.kill()


def test_bytes_lost_to_damage_are_freed_from_the_caps(small: Sealer) -> None:
    two_topics(small)
    caps = Caps(small.engine)
    first = first_log(small.path)
    header = next(header for header in frames_of(first) if header.kind == FrameKind.APPEND)
    flip(first, FILE_HEADER_BYTES + header.lsn + FRAME_HEADER_BYTES + 3)
    before = caps.held
    small.checkpoint()
    topics = small.engine.topics.values()
    assert caps.held == (2, sum(topic.bytes for topic in topics)) < before


def test_pages_read_ahead_are_void_when_a_frame_is_found_damaged(small: Sealer) -> None:
    two_topics(small)
    first = first_log(small.path)
    header = next(header for header in frames_of(first) if header.kind == FrameKind.APPEND)
    head_cells = Board(1).heads(0)
    writer, reader = HeadSlotWriter(head_cells), HeadSlotReader(head_cells)

    def committed(change: Change) -> None:
        for notify in change.topic.followers:
            notify(change)

    small.commits.on_commit = committed
    mark = writer.mark(small.engine.by_id[header.topic_id])
    flip(first, FILE_HEADER_BYTES + header.lsn + FRAME_HEADER_BYTES + 3)
    small.checkpoint()
    assert reader.head(mark) is None


def test_a_topic_reports_its_damage_after_it_is_configured_again(small: Sealer) -> None:
    two_topics(small)
    first = first_log(small.path)
    header = [header for header in frames_of(first) if header.kind == FrameKind.APPEND][4]
    flip(first, FILE_HEADER_BYTES + header.lsn + FRAME_HEADER_BYTES)
    small.checkpoint()
    topic = small.engine.by_id[header.topic_id]
    _, reported = walk(small, topic)
    assert reported == damaged_by(header)[topic.id]
    small.put(topic.name, ttl_ms=3_600_000)
    small.kill()
    small = small.again()
    assert walk(small, small.engine.topic(topic.name))[1] == reported
    small.put(topic.name, ttl_ms=0, cap_records=3)
    page = small.page(topic.name)
    assert page.tombstone is not None
    assert page.tombstone.reason == "mixed", "cap and damage"
    assert (page.tombstone.gap_from, page.count) == (1, 3)
    small.kill()


def test_a_damaged_write_stays_lost_when_its_segment_fails_and_the_shard_restarts(
    small: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.append("a", "before")
    blob = append_streamed(small, "a", *["x" * 3000] * 10)
    small.append("a", "after")
    small.stop()
    flip(blob, 20_000)
    small = small.again()
    two_topics(small)
    with monkeypatch.context() as patch:
        patch.setattr("topics.storage.segments.segment_file.write_all", failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            small.seal()
    seen = small.engine.topic("a").count, walk(small, small.engine.topic("a"))
    small.stop()
    small = small.again()
    assert (small.engine.topic("a").count, walk(small, small.engine.topic("a"))) == seen
    assert seen[1][1] == [(2, 11)]
    small.kill()


def test_a_damaged_blob_is_never_sealed_and_its_file_is_kept(small: Sealer) -> None:
    small.append("a", "before")
    blob = append_streamed(small, "a", *["x" * 3000] * 10)
    other = append_streamed(small, "a", *["y" * 3000] * 10)
    two_topics(small)
    flip(blob, 20_000)
    hurt_bytes = blob.read_bytes()
    for _ in range(3):
        small.checkpoint()
    for _ in range(2):
        topic = small.engine.topic("a")
        seqs, gaps = walk(small, topic)
        assert gaps == [(2, 11)]
        assert seqs == [1, *range(12, topic.head_seq + 1)]
        assert findings(small.path) == []
        assert Path(f"{blob}.damaged").exists()
        small.kill()
        small = small.again()
        two_topics(small)
        small.checkpoint()
        small.checkpoint()
    assert not blob.exists()
    assert not other.exists()
    assert Path(f"{blob}.damaged").read_bytes() == hurt_bytes
    small.kill()


def test_only_live_records_of_a_damaged_frame_are_reported(small: Sealer) -> None:
    for _ in range(60):
        small.append("a", *range(5))
    small.delete_records("a", before_seq=8)
    first = first_log(small.path)
    headers = [header for header in frames_of(first) if header.kind == FrameKind.APPEND]
    for header in headers[:2]:
        flip(first, FILE_HEADER_BYTES + header.lsn + FRAME_HEADER_BYTES)
    small.checkpoint()
    topic = small.engine.topic("a")
    assert (topic.count, topic.start_seq) == (300 - 10, 11)
    page = small.page("a", from_seq=7)
    assert page.tombstone is not None
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (
        8,
        10,
        "damaged",
    )
