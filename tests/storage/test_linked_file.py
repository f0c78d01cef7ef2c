"""A linked file is what its name says, or it is damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.linked import ShardLog, letters
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameKind
from topics.storage.disk import Damaged
from topics.storage.linked_file import LinkedFile, Place, blob_file, check_payload
from topics.storage.payload_sources import PayloadFields

NAME = f"02-{0:016x}.wal"


@pytest.fixture
def source(tmp_path: Path) -> ShardLog:
    """The log of shard 2, with a payload, another frame and a blob; it is stopped."""
    log = ShardLog(tmp_path, 2)
    log.write(50, seq=3)
    log.write(kind=FrameKind.ROUTER)
    log.write_blob(9, 4)
    log.stop()
    return log


def linked(source: ShardLog, tmp_path: Path) -> LinkedFile:
    path = tmp_path / NAME
    path.hardlink_to(source.wal.folder / f"{0:016x}.wal")
    return LinkedFile(path, 2, 0, -1)


def test_payloads_are_found_and_nothing_else(source: ShardLog, tmp_path: Path) -> None:
    link = linked(source, tmp_path)
    fields = link.fields(0)
    assert fields is not None
    assert (fields.topic_id, fields.first_seq, fields.record_count) == (1, 3, 1)
    at = link.offset(0) + FRAME_HEADER_BYTES
    assert bytes(link.mapped().data[at + 4 : at + fields.body_len]) == letters(50, 3)
    router = FRAME_HEADER_BYTES + fields.body_len + -fields.body_len % 8
    assert link.fields(router) is None
    assert link.fields(8) is None
    assert link.fields(1 << 40) is None
    place = Place(link.mapped(), link.offset(0), link.seed)
    assert check_payload(place, 0) == fields


@pytest.mark.parametrize("hurt", ["cut", "header", "missing", "shard", "empty"])
def test_a_link_that_is_not_what_its_name_says_is_damage(
    source: ShardLog, tmp_path: Path, hurt: str
) -> None:
    link = linked(source, tmp_path)
    whole = link.path.read_bytes()
    link.path.unlink()
    if hurt == "shard":
        link.path.write_bytes(whole)
        link.shard = 3
    elif hurt != "missing":
        hurt_bytes = {"cut": whole[:-1], "header": b"x" + whole[1:], "empty": b""}
        link.path.write_bytes(hurt_bytes[hurt])
    with pytest.raises(Damaged) as damage:
        link.mapped()
    assert damage.value.path == link.path
    assert link.find(0) is None


def test_a_flipped_bit_in_a_payload_is_damage(source: ShardLog, tmp_path: Path) -> None:
    link = linked(source, tmp_path)
    with link.path.open("r+b") as file:
        file.seek(link.offset(0) + FRAME_HEADER_BYTES + 20)
        file.write(b"\x00")
    with pytest.raises(Damaged) as damage:
        check_payload(Place(link.mapped(), link.offset(0), link.seed), 0)
    assert (damage.value.path, damage.value.offset) == (link.path, link.offset(0))


def test_a_blob_is_that_of_the_write(source: ShardLog) -> None:
    path = source.wal.blobs.path(9, 4)
    assert len(blob_file(path, PayloadFields(9, 4, 0, 1, 0, 16)).data) == path.stat().st_size
    for fields in (PayloadFields(9, 5, 0, 1, 0, 16), PayloadFields(8, 4, 0, 1, 0, 16)):
        with pytest.raises(Damaged, match="another write"):
            blob_file(path, fields)
    with pytest.raises(Damaged, match="missing"):
        blob_file(path.with_name("none"), PayloadFields(9, 4, 0, 1, 0, 16))
