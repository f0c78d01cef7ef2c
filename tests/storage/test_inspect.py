"""Inspection: each kind of file in lines for people, damage among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.data_directory import topics
from tests.support.log import Client, log_files
from topics.engine.locators import in_extent
from topics.formats.buffers import Buffer
from topics.formats.disk.copies import ForwardBody, Row, Run, forward_frame
from topics.formats.disk.frame_bodies import (
    LeaseOp,
    LeaseRows,
    RouterBody,
    delete_runs_frame,
    encode_router,
    lease_frame,
    lost_frame,
    router_set_frame,
    routers_gone_frame,
    seqs_reserved_frame,
)
from topics.formats.disk.frames import Frame, FrameKind, encode_frame
from topics.formats.disk.wal import FileHeader, encode_file_header
from topics.formats.ranges import SeqRun
from topics.storage.inspect import ForeignFile, describe
from topics.storage.segments.store import SegmentStore


def test_each_kind_of_file_is_shown(data: Path) -> None:
    lines = {
        path.suffix or path.name: [*describe(path)]
        for path in sorted(data.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }
    assert lines["meta"] == ["data directory of 1 shards"]
    assert lines[".reserve"][0].endswith(" bytes of room, not in use")
    (data / "next.reserve").touch()  # as a full disk leaves it
    assert [*describe(data / "next.reserve")] == ["0 bytes of room, not in use"]
    with pytest.raises(ForeignFile, match="LOCK is no file of a data directory"):
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
    assert lines[".ckpt"][0].endswith(", of an orderly stop")
    done = topics("inspect", str(next(data.rglob("*.seg"))))
    assert done.stdout.splitlines() == lines[".seg"]


def test_a_delete_is_shown_with_what_it_takes(tmp_path: Path) -> None:
    client = Client(tmp_path / "data")
    client.append("t", records=[{"data": 1, "tag": tag} for tag in "abcab"])
    client.delete_records("t", before_seq=2)
    client.delete_records("t", match=["tag", "Eq", "a"])
    client.stop()
    shown = [
        line for path in log_files(tmp_path / "data") for line in describe(path) if "DELETE" in line
    ]
    assert "DELETE, topic 1, seqs below 2, 0 bytes" in shown[0]
    assert "DELETE, topic 1, 1 runs of seqs, 16 bytes" in shown[1]


def test_frames_about_jobs_are_shown_with_their_op(tmp_path: Path) -> None:
    seqs = (7, 9)
    said = [
        LeaseRows(LeaseOp.CLAIMED, seqs, (1, 2), "w\n1", 31_000, (5, 6)),
        LeaseRows(LeaseOp.RELEASED, seqs, (1, 2), until_ts=2_000),
        LeaseRows(LeaseOp.DYING, seqs, (3, 3)),
    ]
    frames = [
        *(lease_frame(1, 1_000, rows) for rows in said),
        lease_frame(1, 1_000, said[2])._replace(flags=9),
        delete_runs_frame(1, [SeqRun(7, 1), SeqRun(9, 1)], 1_000, dead_lettered=True),
    ]
    lines = [*describe(log_of(tmp_path, frames))][1:-1]
    day = "1970-01-01T00:0"
    assert lines[2].endswith(f": LEASE, topic 1, DYING, 2 jobs, 24 bytes, {day}0:01.000+00:00")
    assert [line.partition(": ")[2].rsplit(", ", 2)[0] for line in lines] == [
        f"LEASE, topic 1, CLAIMED, 2 jobs, node 'w\\n1', until {day}0:31.000+00:00",
        f"LEASE, topic 1, RELEASED, 2 jobs, from {day}0:02.000+00:00",
        "LEASE, topic 1, DYING, 2 jobs",
        "LEASE, topic 1, op 9, 2 jobs",
        "DELETE, topic 1, 2 runs of seqs, dead-lettered",
    ]


def test_a_frame_without_a_time_shows_none(tmp_path: Path) -> None:
    lines = [*describe(log_of(tmp_path, [seqs_reserved_frame(3, 1024)]))]
    assert lines[1] == "offset 4096: SEQS_RESERVED, topic 3, seqs up to 1024, 0 bytes"


def log_of(folder: Path, frames: list[Frame]) -> Path:
    """A log file that holds these frames."""
    header, lsn = FileHeader(shard=0, base=0, salt=1), 0
    pieces: list[Buffer] = [encode_file_header(header)]
    for frame in frames:
        pieces += encode_frame(frame, lsn, 0, header.seed)
        lsn += frame.length
    path = folder / "0.wal"
    path.write_bytes(b"".join(pieces))
    return path


def test_damage_is_shown_in_its_line(data: Path) -> None:
    path = next(data.rglob("*.seg"))
    store = SegmentStore.open(path.parent, 0, [1])
    store.punch([in_extent(1, 0)])
    (_, entry), *_ = [*store.entries(1)][1:]
    whole = bytearray(path.read_bytes())
    whole[entry.tables_at] ^= 1
    path.write_bytes(whole)
    shown = [*describe(path)]
    assert shown[2].endswith("; its room was given back")
    assert shown[3].endswith(f"; offset {entry.tables_at}: the tables of the extent are damaged")


def test_a_frame_of_a_repair_says_what_is_lost(tmp_path: Path) -> None:
    lines = [
        *describe(log_of(tmp_path, [lost_frame([(5, 7, 3)], 80), lost_frame([(0, 0, 9)], 64)]))
    ]
    assert lines[1:3] == [
        "offset 4096: LOST, topic 5, 3 seqs from 7 on, 16 bytes",
        "offset 4176: LOST, 9 seqs of any topic at most, 0 bytes",
    ]


def test_frames_of_routers_are_shown_with_what_they_name(tmp_path: Path) -> None:
    rows = [Row(0, 9, 5, 7), Row(0, 11, 6, 0)]
    config = {"source": "a", "dest": "b"}
    said = [
        forward_frame(
            1_000, 3, 0, ForwardBody(40, 2, rows, [Run(0x1000, 0, 3, 5), Run(0, 0, 0, 1)])
        ),
        forward_frame(1_000, 0, 0, ForwardBody(44, 0, rows[:1], burnt=4)),
        Frame(FrameKind.PAYLOAD, 1, 5, 1_000, 2, 0, 0, (b"12345678",)),
        router_set_frame(encode_router(RouterBody("r", 9, config, 1, 1, 2, 5, 0)), 1_000),
        routers_gone_frame([9, 11], 1_000),
        Frame(FrameKind.FORWARD, 0, 0, 1_000, 2, 0, 0, (b"\xff",)),
        Frame(FrameKind.ROUTER, 1, 5, 1_000, 2, 0, 0, (b"\xff",)),
    ]
    lines = [*describe(log_of(tmp_path, said))]
    shown = [line.partition(": ")[2] for line in lines[1:] if line.startswith("offset")]
    assert shown[0].startswith("FORWARD, 3 copies, cursor 40, hop 2, ")
    assert lines[2:6] == [
        "  router 9: topic 5 from seq 7",
        "  router 11: cursor",
        "  records 3 to 4 of the frame at 0x1000",
        "  records 0 to 0 of this frame",
    ]
    assert shown[1].startswith("FORWARD, 0 copies, 4 seqs burnt, cursor 44, hop 0,")
    assert shown[2].startswith("PAYLOAD, topic 1, seqs 5 to 6, 8 bytes")
    assert shown[3].startswith("ROUTER_SET, router 9 'r', 'a' to 'b', ")
    assert shown[4].startswith("ROUTERS_GONE, routers 9, 11, ")
    assert shown[5].startswith("FORWARD, the map of a FORWARD frame: ")
    assert shown[6].startswith("ROUTER, topic 1, seqs 5 to 6, the map of a ROUTER frame: ")
