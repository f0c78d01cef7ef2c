"""Where payloads of other shards stand: what a file holds is only believed when its checksum says
so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.linked import ShardLog
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameHeader, FrameKind
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.payload_sources import (
    PayloadFields,
    PayloadSources,
    blob_link_name,
    log_link_name,
    payload_fields,
    read_payload,
)


def test_links_are_named_by_shard_and_place() -> None:
    assert log_link_name(3, 0x1000) == "03-0000000000001000.wal"
    assert blob_link_name(12, 0x20) == "12-0000000000000020.blob"


def test_the_fields_of_a_payload_are_those_of_its_header(tmp_path: Path) -> None:
    log = ShardLog(tmp_path, 0)
    lsn = log.write(33, seq=7)
    header, body = log.wal.frame_at(lsn)
    assert isinstance(header, FrameHeader)
    file = log.wal.file(lsn)
    found = payload_fields(file.view(), file.offset(lsn), lsn)
    assert found == PayloadFields(1, 7, 37, 1, 0, 0)
    assert (header.topic_id, header.first_seq, header.body_len) == found[:3]
    held = read_payload(file.path, 0, lsn)
    assert held is not None
    assert held == (found, body)
    log.stop()


@pytest.mark.parametrize("at", range(FRAME_HEADER_BYTES + 40))
def test_a_flipped_bit_is_noticed(tmp_path: Path, at: int) -> None:
    log = ShardLog(tmp_path, 0)
    lsn, path = log.write(36), log.wal.folder / f"{0:016x}.wal"
    log.stop()
    whole = bytearray(path.read_bytes())
    whole[FILE_HEADER_BYTES + at] ^= 0x10
    path.write_bytes(whole)
    assert read_payload(path, 0, lsn) is None


def test_a_cut_file_holds_no_payload(tmp_path: Path) -> None:
    log = ShardLog(tmp_path, 0)
    lsn, path = log.write(36), log.wal.folder / f"{0:016x}.wal"
    log.stop()
    whole = path.read_bytes()
    for length in (0, 20, FILE_HEADER_BYTES, FILE_HEADER_BYTES + 63, FILE_HEADER_BYTES + 103):
        path.write_bytes(whole[:length])
        assert read_payload(path, 0, lsn) is None
    path.write_bytes(whole[: FILE_HEADER_BYTES + 104])
    assert read_payload(path, 0, lsn) is not None
    assert read_payload(path, 1, lsn) is None, "it is of another shard"
    assert read_payload(path, 0, lsn + 8) is None


def test_files_are_looked_for_in_the_log_then_among_all_links(tmp_path: Path) -> None:
    source, middle = ShardLog(tmp_path, 2), ShardLog(tmp_path, 1)
    sources = PayloadSources(tmp_path)
    first = source.write()
    assert [*sources.log_files(2, first)] == [
        (0, source.wal.folder / f"{0:016x}.wal"),
        (0, source.wal.folder / f"{0:016x}.wal"),
    ], "it may be there again when it is looked for anew"
    second = source.next_file()
    middle.name((2, first), (2, second))
    assert [path.name for _, path in sources.log_files(2, second)] == [
        f"{0:016x}.wal",
        f"{second:016x}.wal",
        log_link_name(2, second),
        log_link_name(2, 0),
    ]
    source.give_up(source.next_file())
    assert [path.name for _, path in PayloadSources(tmp_path).log_files(2, first)] == [
        log_link_name(2, 0)
    ]
    assert [*PayloadSources(tmp_path).log_files(7, 0)] == []
    for log in (source, middle):
        log.stop()


def test_blobs_are_looked_for_in_their_folder_then_among_all_links(tmp_path: Path) -> None:
    source, middle = ShardLog(tmp_path, 2), ShardLog(tmp_path, 1)
    lsn = source.write_blob(9, 4)
    middle.name((2, lsn))
    fields = PayloadFields(9, 4, 0, 1, 0, 16)
    assert [*PayloadSources(tmp_path).blobs(2, lsn, fields)] == [
        tmp_path / "blob" / "02" / "9-4.blob",
        middle.linked.folder / blob_link_name(2, lsn),
    ]
    for log in (source, middle):
        log.stop()


def test_router_frames_are_no_payloads(tmp_path: Path) -> None:
    log = ShardLog(tmp_path, 0)
    lsn = log.write(kind=FrameKind.ROUTER)
    assert read_payload(log.wal.file(lsn).path, 0, lsn) is None
    log.stop()
