"""Damage costs the smallest checked block: an error that names the file, or a counted loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.offline_scenes import Row, Scene, row
from topics.engine.locators import split_locator
from topics.storage.data_dir import DataDirectory, DataDirectoryInUse
from topics.storage.disk import Damaged
from topics.storage.offline.directory import OfflineDirectory
from topics.storage.offline.pieces import Piece
from topics.storage.offline.reader import PieceReader
from topics.storage.segments.file import Segment, segment_path

pytestmark = pytest.mark.slow


def planned(path: Path, topic: str, **options: bool) -> list[Piece]:
    with OfflineDirectory(path, names=[topic], **options) as directory:
        return [*directory.topics[topic].pieces(max_records=1000)]


def read(piece: Piece) -> list[Row]:
    return [row(record) for page in PieceReader(piece).pages() for record in page]


def first_extent(piece: Piece) -> tuple[Path, int]:
    """The segment of the piece's first span, and where the extent begins in it."""
    number, extent = split_locator(piece.spans[0].locator)
    folder = piece.data_dir / "segment" / f"{piece.shard:02d}"
    path = segment_path(folder, number)
    return path, [*Segment(path, piece.shard, number).entries()][extent].offset


def flip(path: Path, offset: int) -> None:
    whole = bytearray(path.read_bytes())
    whole[offset] ^= 1
    path.write_bytes(whole)


def test_a_flipped_byte_is_an_error_that_names_file_and_offset(hurt: Path) -> None:
    piece = planned(hurt, "plain")[0]
    path, offset = first_extent(piece)
    flip(path, offset + 20)
    with pytest.raises(Damaged, match=rf"{path.name}, offset {offset}: records are damaged"):
        read(piece)


def test_damaged_records_are_a_counted_loss_and_all_others_are_there(
    hurt: Path, scene: Scene
) -> None:
    pieces = planned(hurt, "plain")
    path, offset = first_extent(pieces[0])
    flip(path, offset + 20)
    found: list[Row] = []
    lost = 0
    for piece in pieces:
        reader = PieceReader(piece, ignore_damage=True)
        found += [row(record) for page in reader.pages() for record in page]
        lost += reader.lost
        assert [damage.path for damage in reader.damage] == ([path] if reader.lost else [])
    whole = scene.answers["plain"]
    assert 0 < lost < 1000
    assert len(found) + lost == len(whole)
    assert found == whole[lost:]


def test_damaged_tables_cost_the_extent(hurt: Path) -> None:
    piece = planned(hurt, "plain")[0]
    number, extent = split_locator(piece.spans[0].locator)
    path, _ = first_extent(piece)
    entry = [*Segment(path, piece.shard, number).entries()][extent]
    flip(path, entry.tables_at + 40)
    with pytest.raises(Damaged, match="the tables of the extent are damaged"):
        read(piece)
    reader = PieceReader(piece, ignore_damage=True)
    found = [record.seq for page in reader.pages() for record in page]
    assert reader.lost == piece.spans[0].live
    assert len(found) == piece.count - reader.lost


def test_a_damaged_blob_is_an_error_that_names_it(hurt_unsealed: Path) -> None:
    pieces = planned(hurt_unsealed, "long")
    for path in hurt_unsealed.glob("blob/*/*.blob"):
        flip(path, path.stat().st_size // 2)
    with pytest.raises(Damaged, match=r"\.blob, offset \d+: blob is damaged"):
        [read(piece) for piece in pieces]


def test_a_missing_blob_costs_its_records(hurt_unsealed: Path) -> None:
    pieces = planned(hurt_unsealed, "long")
    for path in hurt_unsealed.glob("blob/*/*.blob"):
        path.unlink()
    with pytest.raises(Damaged, match="blob named by the log is missing"):
        [read(piece) for piece in pieces]
    readers = [PieceReader(piece, ignore_damage=True) for piece in pieces]
    assert sum(len(page) for reader in readers for page in reader.pages()) == 12
    assert sum(reader.lost for reader in readers) == 6


def test_copies_whose_blob_is_missing_are_a_counted_loss(hurt_unsealed: Path) -> None:
    pieces = [
        piece
        for dest in ("copies.a", "copies.b", "copies.c")
        for piece in planned(hurt_unsealed, dest)
    ]
    for path in hurt_unsealed.glob("blob/*/*"):
        path.unlink()
    readers = [PieceReader(piece, ignore_damage=True) for piece in pieces]
    found = sum(len(page) for reader in readers for page in reader.pages())
    lost = sum(reader.lost for reader in readers)
    assert lost > 0, "of dests in the shard of the source"
    assert found + lost == 3 * 1205


def test_a_directory_that_has_changed_since_the_plan_is_noticed(
    hurt: Path, hurt_unsealed: Path
) -> None:
    piece, other = planned(hurt, "plain")[0], planned(hurt, "filler")[0]
    moved = Piece(hurt, piece.shard, piece.topic, other.topic_id, piece.spans)
    with pytest.raises(Damaged, match="a server has had the directory since"):
        read(moved)
    tail = planned(hurt_unsealed, "long")[-1]
    with pytest.raises(Damaged, match="a server has had the directory since"):
        read(Piece(hurt_unsealed, tail.shard, tail.topic, 1 << 40, tail.spans))


def test_a_server_that_has_the_directory_meanwhile_is_an_error(hurt: Path) -> None:
    piece = planned(hurt, "plain")[0]
    held = DataDirectory(hurt, shards=2)
    try:
        with pytest.raises(DataDirectoryInUse, match="in use by process"):
            read(piece)
    finally:
        held.close()


def test_no_server_can_have_the_directory_while_it_is_read(hurt: Path) -> None:
    pages = PieceReader(planned(hurt, "plain")[0]).pages()
    next(pages)
    with pytest.raises(DataDirectoryInUse):
        DataDirectory(hurt, shards=2)
    pages.close()  # type: ignore[attr-defined]
    DataDirectory(hurt, shards=2).close()
