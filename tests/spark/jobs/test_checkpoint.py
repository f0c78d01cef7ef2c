"""A checkpoint belongs to one job, on any file system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from topics.spark.job_errors import JobError, UsageError
from topics.spark.jobs.checkpoint import Folder, claim, uri_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEMPORARY = ".0.ae82a34e-5e0a-411d-ad86-96a72f32d121.tmp"  # a name that Spark would choose


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_checkpoint_of_a_started_query_belongs_to_one_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = Folder(spark, uri_of(str(tmp_path / "a folder é")))
    assert (folder.names(), folder.read("job.json")) == ([], None)
    hourly = {"window": "1 hour", "by": ""}
    claim(folder, {"window": "1 day", "by": "data.a"})  # no batch was read
    claim(folder, hourly)
    folder.write("offsets/0", "v1")
    claim(folder, hourly)
    for other, message in [
        (hourly | {"window": "1 day"}, "its window is '1 hour', not '1 day'"),
        (hourly | {"by": "data.é"}, "its by is '', not 'data.é'"),
        (hourly | {"sum": "data.a"}, "its sum is '', not 'data.a'"),
    ]:
        with pytest.raises(JobError, match=message):
            claim(folder, other)
    claim(folder, hourly | {"sum": ""})


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("log", ["offsets", "commits"])
@pytest.mark.parametrize(
    "begun", ["", "offsets/0", "commits/0", "state/0/1.delta", "offsets/a.tmp"]
)
def test_temporary_files_are_removed_unless_a_batch_has_begun(
    spark: SparkSession, tmp_path: Path, log: str, begun: str
) -> None:
    folder = Folder(spark, uri_of(str(tmp_path)))
    folder.write(f"{log}/{TEMPORARY}", "v1")
    folder.write("sources/0/0", "v1")
    if begun:
        folder.write(begun, "v1")
    before = {*tmp_path.rglob("*")}
    claim(folder, {"topic": "a"})
    removed = {path.name for path in before.difference(tmp_path.rglob("*"))}
    assert removed == (set() if begun else {TEMPORARY, f".{TEMPORARY}.crc"})
    assert folder.names("sources/0") == ["0"]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_file_is_complete_or_absent(spark: SparkSession, tmp_path: Path) -> None:
    """This also holds if a process was killed during a write and the checksum of ``a.tmp`` is
    that of another file.
    """
    folder = Folder(spark, uri_of(str(tmp_path)))
    for text in ("one", "two"):
        (tmp_path / "a.tmp").write_text("on")
        (tmp_path / ".a.tmp.crc").write_bytes(b"crc\0\0\0\x02\0")
        folder.write("a", text)
        assert (folder.names(), folder.read("a")) == (["a"], text)


@pytest.mark.parametrize(
    ("directory", "uri"),
    [
        ("/a/b c", "file:///a/b c"),
        ("file:/a/b%20c", "file:///a/b%20c"),
        ("file:///a/b", "file:///a/b"),
        ("hdfs://name/a/", "hdfs://name/a"),
    ],
)
def test_a_directory_is_a_path_or_a_uri(directory: str, uri: str) -> None:
    assert uri_of(directory) == uri


def test_a_directory_that_spark_reads_as_a_pattern_is_refused() -> None:
    with pytest.raises(UsageError, match=r"/a/\*/b: Spark reads \* in a path as a pattern"):
        uri_of("/a/*/b")
