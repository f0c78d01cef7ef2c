"""Whose a checkpoint is, wherever it lies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from topics.spark.errors import JobError, WrongPath
from topics.spark.jobs.checkpoint import Folder, claim, uri_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_query_that_has_begun_is_of_one_job(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, uri_of(str(tmp_path / "a folder é")))
    assert (folder.names(), folder.read("job.json")) == ([], None)
    hourly = {"window": "1 hour", "by": ""}
    claim(folder, {"window": "1 day", "by": "data.a"})  # and nothing was read
    claim(folder, hourly)
    folder.write("offsets/0", "v1")
    claim(folder, hourly)
    for other, told in [
        (hourly | {"window": "1 day"}, "its window is '1 hour', not '1 day'"),
        (hourly | {"by": "data.é"}, "its by is '', not 'data.é'"),
        (hourly | {"sum": "data.a"}, "its sum is '', not 'data.a'"),
    ]:
        with pytest.raises(JobError, match=told):
            claim(folder, other)
    claim(folder, hourly | {"sum": ""})


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
    with pytest.raises(WrongPath, match=r"/a/\*/b: Spark reads \* in a path as a pattern"):
        uri_of("/a/*/b")
