"""Inspection: readable lines for each kind of file, including damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.data_directory import topics
from topics.engine.locators import in_extent
from topics.formats.buffers import Buffer
from topics.formats.disk.copies import ForwardBody, Row, Run, forward_frame
from topics.formats.disk.frame_bodies import (
    LeaseOp,
    LeaseRows,
    RouterBody,
    delete_below_frame,
    delete_runs_frame,
    encode_router,
    lease_frame,
    lost_frame,
    router_set_frame,
    routers_removed_frame,
    seqs_reserved_frame,
)
from topics.formats.disk.frames import Frame, FrameKind, encode_frame
from topics.formats.disk.wal import FileHeader, encode_file_header
from topics.formats.ranges import SeqRun
from topics.storage.inspect import ForeignFile, describe
from topics.storage.segments.segment_store import SegmentStore


@pytest.mark.slow
def test_each_kind_of_file_is_shown(data: Path) -> None:
    lines = {
        path.suffix or path.name: [*describe(path)]
        for path in sorted(data.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }
    assert lines["meta"] == ["data directory with 1 shards"]
    assert lines[".reserve"][0].endswith(" unused bytes")
    (data / "next.reserve").touch()  # As a full disk leaves it
    assert [*describe(data / "next.reserve")] == ["0 unused bytes"]
    with pytest.raises(ForeignFile, match="LOCK is not a file of a data directory"):
        [*describe(data / "LOCK")]
    assert lines[".seg"][:2] == [
        f"segment 1 of shard 0, log 0x64 to 0xc8, {next(data.rglob('*.seg')).stat().st_size} bytes",
        "3 extents, 50 records",
    ]
    assert lines[".seg"][2].endswith("nodes+tags+metas; 1 nodes, 41 tags, 1 keys")
    assert "topic 1, seqs 5 to 46, 0 deleted" in lines[".seg"][2]
    assert lines[".wal"][0].startswith("log of shard 0 from 0x")
    assert lines[".wal"][-1].endswith("zeros follow")
    assert any("APPEND, topic 1, seqs " in line for line in lines[".wal"])
    assert lines[".ckpt"][0].endswith(", from a clean shutdown")
    done = topics("inspect", str(next(data.rglob("*.seg"))))
    assert done.stdout.splitlines() == lines[".seg"]


def test_frames_of_records_and_jobs_are_shown_with_their_contents(tmp_path: Path) -> None:
    seqs = (7, 9)
    claimed = LeaseRows(LeaseOp.CLAIMED, seqs, (1, 2), "w\n1", 31_000, (5, 6))
    frames = [
        lease_frame(1, 1_000, claimed),
        lease_frame(1, 1_000, claimed)._replace(flags=9),
        delete_runs_frame(1, [SeqRun(7, 1), SeqRun(9, 1)], 1_000, dead_lettered=True),
        delete_below_frame(1, 7, 1_000),
        seqs_reserved_frame(3, 1024),
        lost_frame([(5, 7, 3), (6, 1, 2)], 104),
        lost_frame([(0, 0, 9)], 64),
    ]
    when = "1970-01-01T00:00:01.000+00:00"
    assert shown(log_of(tmp_path, frames)) == [
        f"LEASE, topic 1, record_count 2, 52 bytes, {when}, flags 1",
        repr(claimed),
        f"LEASE, topic 1, record_count 2, 52 bytes, {when}, flags 9",
        "9 is not a valid LeaseOp",
        f"DELETE, topic 1, record_count 2, 32 bytes, {when}, flags 1",
        "[SeqRun(first=7, length=1), SeqRun(first=9, length=1)]",
        f"DELETE, topic 1, first_seq 7, 0 bytes, {when}",
        "SEQS_RESERVED, topic 3, first_seq 1024, 0 bytes",
        "LOST, topic 5, first_seq 7, record_count 3, 40 bytes",
        "[(5, 7, 3), (6, 1, 2)]",
        "LOST, record_count 9, 0 bytes",
    ]


def shown(path: Path) -> list[str]:
    """Return the lines about frames, without their offsets."""
    lines = [*describe(path)][1:-1]
    return [line.strip() if line[0] == " " else line.partition(": ")[2] for line in lines]


def log_of(folder: Path, frames: list[Frame]) -> Path:
    """Return a log file with these frames."""
    header, lsn = FileHeader(shard=0, base=0, salt=1, size=0), 0
    chunks: list[Buffer] = [encode_file_header(header)]
    for frame in frames:
        chunks += encode_frame(frame, lsn, 0, header.seed)
        lsn += frame.length
    path = folder / "0.wal"
    path.write_bytes(b"".join(chunks))
    return path


def test_damage_is_shown_in_the_line_of_its_extent(data: Path) -> None:
    path = next(data.rglob("*.seg"))
    store = SegmentStore.open(path.parent, 0, [1])
    store.punch([in_extent(1, 0)])
    (_, entry), *_ = [*store.entries(1)][1:]
    content = bytearray(path.read_bytes())
    content[entry.tables_at] ^= 1
    path.write_bytes(content)
    shown = [*describe(path)]
    assert shown[2].endswith("; its space was freed")
    assert shown[3].endswith(f"; offset {entry.tables_at}: the tables of the extent are damaged")


def test_frames_of_routers_are_shown_with_their_contents(tmp_path: Path) -> None:
    rows = [Row(0, 9, 5, 7), Row(0, 11, 6, 0)]
    config = {"source": "a", "dest": "b"}
    frames = [
        forward_frame(
            1_000, 3, 0, ForwardBody(40, 2, rows, [Run(0x1000, 0, 3, 5), Run(0, 0, 0, 1)])
        ),
        forward_frame(1_000, 0, 0, ForwardBody(44, 0, rows[:1], skipped=4)),
        router_set_frame(encode_router(RouterBody("r", 9, config, 1, 1, 2, 5, 0)), 1_000),
        routers_removed_frame([9, 11], 1_000),
        Frame(FrameKind.FORWARD, 0, 0, 1_000, 2, 0, 0, (b"\xff",)),
    ]
    lines = shown(log_of(tmp_path, frames))
    assert [line.partition(",")[0] for line in lines if line[:3].isupper()] == [
        *("FORWARD", "FORWARD", "ROUTER_SET", "ROUTERS_GONE", "FORWARD")
    ]
    assert "cursor=40, hop=2, rows=[Row(back=" in lines[1]
    assert "runs=[Run(lsn=4096, stamp_seq=0, start=3, stop=5, " in lines[1]
    assert "cursor=44, hop=0" in lines[3]
    assert "skipped=4" in lines[3]
    assert lines[5].startswith("RouterBody(name='r', id=9, config={'source': 'a', 'dest': 'b'}, ")
    assert lines[7] == "[9, 11]"
    assert lines[9].startswith("the map of a FORWARD frame is invalid: ")
