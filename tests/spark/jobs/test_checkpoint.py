"""Offsets from the files of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from topics.spark.errors import JobError
from topics.spark.jobs.checkpoint import check_job, claim, committed, positions
from topics.spark.jobs.files import LocalFiles
from topics.spark.source.offsets import Position

OFFSETS = '{"a":{"t":{"seq":12,"epoch":3,"lost":1},"s":{"seq":0,"epoch":4,"lost":0}},"b":{}}'


def test_the_last_batch_that_is_done_has_its_positions(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert committed(files, "c") is None
    assert positions(files, "c", None) == {}
    for batch in (9, 10):
        files.write(f"c/commits/{batch}", "v1\n{}")
        files.write(f"c/commits/.{batch}.crc", "")
        files.write(f"c/offsets/{batch}", f'v1\n{{"batchWatermarkMs":0}}\n{OFFSETS}')
    assert committed(files, "c") == 10
    assert positions(files, "c", 10) == {
        ("a", "t"): Position(12, 3, 1),
        ("a", "s"): Position(0, 4, 0),
    }


@pytest.mark.parametrize("text", ["v1\n{}", "v1\n{}\n-", 'v1\n{}\n{"a":{"t":7}}'])
def test_offsets_of_another_source_are_told(tmp_path: Path, text: str) -> None:
    files = LocalFiles(tmp_path)
    files.write("c/offsets/0", text)
    with pytest.raises(JobError, match=r"c/offsets/0: these are no offsets of topics"):
        positions(files, "c", 0)


def test_a_query_that_has_begun_is_of_one_job(tmp_path: Path) -> None:
    files, hourly = LocalFiles(tmp_path / "c"), {"window": "1 hour", "by": ""}
    claim(files, {"window": "1 day", "by": "data.a"})  # and nothing was read
    claim(files, hourly)
    files.write("offsets/0", "v1")
    claim(files, hourly)
    for other, told in [
        (hourly | {"window": "1 day"}, "its window is '1 hour', not '1 day'"),
        (hourly | {"by": "data.a"}, "its by is '', not 'data.a'"),
        (hourly | {"sum": "data.a"}, "its sum is '', not 'data.a'"),
    ]:
        with pytest.raises(JobError, match=told):
            check_job(files, other)
    check_job(files, hourly | {"sum": ""})
