"""Files of a job: the same on a local disk and through Hadoop."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.spark.errors import JobError
from topics.spark.jobs.files import PENDING, Files, HadoopFiles, LocalFiles, local_path


@pytest.fixture(params=["local", pytest.param("hadoop", marks=pytest.mark.spark)])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    root = tmp_path / "a folder é"
    if request.param == "local":
        yield LocalFiles(root)
    else:
        yield HadoopFiles(request.getfixturevalue("spark"), f"file:{root}")


@pytest.mark.timeout(300)
def test_files_are_written_moved_listed_and_removed(files: Files) -> None:
    assert files.names("") == []
    files.write("state/one.json", '{"é":1}')
    assert files.read("state/one.json") == '{"é":1}'
    assert files.size("state/one.json") == 8
    assert not files.exists(f"state/one.json{PENDING}")
    files.move("state/one.json", "date=2026-11-23/two.json")
    files.settle(["date=2026-11-23/two.json", "date=2026-11-23"])
    assert [name for name in files.names("") if not name.startswith(".")] == [
        "date=2026-11-23",
        "state",
    ]
    assert not files.exists("state/one.json")
    files.remove("date=2026-11-23")
    files.remove("date=2026-11-23")
    files.remove("nothing.json")
    assert not files.exists("date=2026-11-23")


@pytest.mark.timeout(300)
def test_a_staged_folder_takes_the_place_of_another_and_of_none(files: Files) -> None:
    for number in (1, 2):
        files.write(f"staging/new/{number}", "new")
        if number == 1:
            files.write("date/old", "old")
        files.swap("staging/new", "date", "staging/aside")
        assert [name for name in files.names("date") if not name.startswith(".")] == [str(number)]
        files.remove("staging")
        files.remove("date")


def test_an_exchange_leaves_the_old_folder_where_the_new_one_was(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.write("new/a", "")
    files.write("old/b", "")
    files.swap("new", "old", "aside")
    assert (files.names("old"), files.names("new"), files.names("aside")) == (["a"], ["b"], [])


def test_a_system_without_exchange_renames_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.spark.jobs.files._exchange", lambda one, other: False)
    files = LocalFiles(tmp_path)
    files.write("new/a", "")
    files.write("old/b", "")
    files.swap("new", "old", "aside")
    assert (files.names("old"), files.names("new"), files.names("aside")) == (["a"], [], ["b"])


@pytest.mark.parametrize(
    ("directory", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b%20c", "/a/b%20c"),
        ("file:///a/b", "/a/b"),
        ("hdfs://name/a", None),
        ("s3a://bucket/a", None),
    ],
)
def test_a_directory_is_local_or_not(directory: str, path: str | None) -> None:
    assert local_path(directory) == (None if path is None else Path(path))


def test_a_directory_that_spark_reads_as_a_pattern_is_refused() -> None:
    with pytest.raises(JobError, match=r"/a/\*/b: Spark reads \* in a path as a pattern"):
        local_path("/a/*/b")


def test_a_second_process_is_kept_out_until_the_first_one_ends(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    hold = (
        "import sys; from pathlib import Path; from topics.spark.jobs.files import LocalFiles;"
        "LocalFiles(Path(sys.argv[1])).lock(); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(JobError, match="another job is at work in this folder"):
            LocalFiles(root).lock()
        holder.kill()
        holder.wait()
    files = LocalFiles(root)
    files.lock()
    files.unlock()
