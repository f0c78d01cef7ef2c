"""The job ``topics-spark offline``: what is on the disk, in Parquet or counted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from tests.support.offline_scenes import Scene, write_scene
from topics.errors import ExitCode
from topics.spark.jobs.cli import main
from topics.spark.jobs.offline import Figures, Summary
from topics.storage.data_dir import DataDirectory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return write_scene(tmp_path_factory.mktemp("job") / "data")


def job(*arguments: object) -> ExitCode:
    return main(["offline", *map(str, arguments), "--quiet"])


def test_all_records_of_a_topic_are_written(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert job(scene.path, "erased", out) == ExitCode.DONE
    count = len(scene.answers["erased"])
    said = capsys.readouterr().out
    assert f"erased: {count:,} records, earliest" in said
    assert f"{count:,} records written to {out}" in said
    rows = ds.dataset(out, partitioning="hive").to_table().sort_by("offset").to_pylist()
    assert [
        (row["offset"], row["node"], row["key"], row["value"].encode(), row["headers"] or "")
        for row in rows
    ] == [
        (seq, node, tag, data, meta.decode())
        for seq, _, node, tag, data, meta in scene.answers["erased"]
    ]


def test_topics_with_a_prefix_are_written(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert job(scene.path, "copies.*", out) == ExitCode.DONE
    topics = ds.dataset(out, partitioning="hive").to_table(["topic"]).column("topic").to_pylist()
    assert {topic: topics.count(topic) for topic in set(topics)} == {
        name: len(scene.answers[name]) for name in ("copies.a", "copies.b", "copies.c")
    }


def test_all_topics_are_counted(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    assert job(scene.path, "*", "--count") == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(scene.answers)
    assert f"capped: 700 records, earliest {3301:,}, head 4,000" in lines


def test_mistakes_are_one_line_with_their_exit_code(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    for arguments, code, line in [
        ((tmp_path / "nowhere", "t", "--count"), 2, "no such directory"),
        ((tmp_path / "there", "t", "--count"), 2, "is no data directory"),
        ((scene.path, "gone", "--count"), 1, 'there is no topic "gone"'),
        ((scene.path, "gone*", "--count"), 1, 'there is no topic that begins with "gone"'),
        ((scene.path, "plain"), 2, "a folder OUT for the files or --count"),
        ((scene.path, "plain", tmp_path / "there"), 1, "is there already"),
    ]:
        assert job(*arguments) == code, arguments
        said = capsys.readouterr()
        assert line in said.err
        assert said.err.count("\n") == 1
        assert said.out == ""


def test_a_directory_in_use_is_refused(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "copy"
    shutil.copytree(scene.path, path, copy_function=shutil.copyfile)
    held = DataDirectory(path, shards=2)
    try:
        assert job(path, "plain", "--count") == ExitCode.FAILED
    finally:
        held.close()
    assert "in use by process" in capsys.readouterr().err


def test_damage_is_exit_code_3_or_a_counted_loss(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "copy", tmp_path / "out"
    shutil.copytree(scene.path, path, copy_function=shutil.copyfile)
    for segment in path.glob("segment/*/*.seg"):
        whole = bytearray(segment.read_bytes())
        whole[4096 + 100] ^= 1  # in the first extent
        segment.write_bytes(whole)
    assert job(path, "*", out) == ExitCode.DAMAGED
    assert "records are damaged (--ignore-damage reads the rest)" in capsys.readouterr().err
    assert [*tmp_path.glob("out*")] == []
    assert job(path, "*", out, "--ignore-damage") == ExitCode.DONE
    said = capsys.readouterr().out
    assert "lost to damage" in said
    assert "damaged: " in said
    assert 0 < ds.dataset(out).count_rows() < sum(map(len, scene.answers.values()))


def test_a_count_that_differs_is_told() -> None:
    figures = Figures("t", 10, 8, 1, 1, 10)
    summary = Summary([figures], [f"finding {number}" for number in range(25)], Path("out"), 2.0)
    assert not summary.agrees
    assert "MISMATCH: the directory has 10 records" in summary.text()
    assert "and 5 more places" in summary.text()
