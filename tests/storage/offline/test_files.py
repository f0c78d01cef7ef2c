"""A copy that is not whole: the file that is missing or cut is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.offline_scenes import Scene
from topics.storage.disk import Damaged
from topics.storage.offline.directory import OfflineDirectory
from topics.storage.offline.reader import PieceReader

pytestmark = pytest.mark.slow


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def refused(path: Path) -> Damaged:
    with pytest.raises(Damaged) as caught, OfflineDirectory(path):
        pass
    return caught.value


def salvaged(path: Path) -> tuple[dict[str, int], list[Damaged]]:
    """By topic, how many records are still read; what was told of the damage."""
    counts: dict[str, int] = {}
    with OfflineDirectory(path, ignore_damage=True) as directory:
        told = directory.damage
        for name, topic in directory.topics.items():
            readers = [PieceReader(piece, ignore_damage=True) for piece in topic.pieces()]
            counts[name] = sum(len(page) for reader in readers for page in reader.pages())
            told = told + [damage for reader in readers for damage in reader.damage]
    return counts, told


def test_a_missing_segment_is_named(hurt: Path, scene: Scene) -> None:
    path = sorted(hurt.glob("segment/*/*.seg"))[1]
    path.unlink()
    damage = refused(hurt)
    assert (damage.path, damage.reason) == (path, "segment named by the checkpoint is missing")
    counts, told = salvaged(hurt)
    assert [damage.path for damage in told] == [path]
    whole = {name: len(rows) for name, rows in scene.answers.items()}
    assert counts != whole
    assert all(count <= whole[name] for name, count in counts.items())
    assert sum(counts.values()) > sum(whole.values()) // 2


def test_a_cut_segment_is_named(hurt: Path) -> None:
    path = sorted(hurt.glob("segment/*/*.seg"))[0]
    cut(path)
    damage = refused(hurt)
    assert damage.path == path
    assert "has a damaged trailer, or is cut" in damage.reason
    assert path in {damage.path for damage in salvaged(hurt)[1]}


def test_a_missing_log_file_is_named(hurt: Path) -> None:
    logs = sorted(hurt.glob("wal/00/*.wal"))
    logs[-1].unlink()
    assert refused(hurt).path.parent == logs[-1].parent
    counts, told = salvaged(hurt)
    assert told
    assert sum(counts.values()) > 1000


def test_a_cut_log_file_is_named(hurt: Path) -> None:
    path = sorted(hurt.glob("wal/01/*.wal"))[-1]
    cut(path)
    damage = refused(hurt)
    assert damage.path == path
    assert "the file is cut" in damage.reason
    assert path in {damage.path for damage in salvaged(hurt)[1]}


@pytest.mark.parametrize("part", ["wal", "segment", "checkpoint", "blob"])
def test_a_missing_folder_is_named(hurt: Path, part: str) -> None:
    shutil.rmtree(hurt / part / "01")
    damage = refused(hurt)
    assert damage.path == hurt / part / "01"
    assert "no whole copy" in damage.reason
    counts, told = salvaged(hurt)
    assert [damage.path for damage in told] == [hurt / part / "01"]
    assert counts, "the other shard is read"
    assert not (hurt / part / "01").exists()


def test_without_a_whole_checkpoint_the_log_is_not_enough(hurt: Path) -> None:
    for path in hurt.glob("checkpoint/*/*.ckpt"):
        cut(path)
    assert "a file between is missing or cut" in refused(hurt).reason


def test_an_older_checkpoint_does_as_well(hurt: Path, scene: Scene) -> None:
    for shard in ("00", "01"):
        newest = max(hurt.glob(f"checkpoint/{shard}/*.ckpt"))
        cut(newest)
    counts, told = salvaged(hurt)
    assert told == []
    assert counts == {name: len(rows) for name, rows in scene.answers.items()}
