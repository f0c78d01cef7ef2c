"""Batches as commits of a Delta table: a repeated batch changes nothing, whatever was lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.jobs.test_archive_files import batch
from topics.spark.errors import JobError
from topics.spark.jobs.archive_delta import ArchiveDelta, check_installed
from topics.spark.jobs.archive_state import STATE, Figure, State
from topics.spark.jobs.files import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def offsets(root: Path) -> list[int]:
    from deltalake import DeltaTable

    return sorted(DeltaTable(root).to_pyarrow_table(columns=["offset"])["offset"].to_pylist())


def test_a_batch_is_committed_once_even_when_its_manifest_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    pytest.importorskip("deltalake")
    root = tmp_path / "a table"
    files = LocalFiles(root)
    delta = ArchiveDelta(files)
    assert delta.uris() == []
    assert delta.land(batch(spark, 1, 0), 0, "q") == []
    assert delta.land(batch(spark, 1, 10), 1, "q") == [Figure(0, "t", 10, 1, 10)]
    assert delta.land(batch(spark, 1, 10), 1, "q") == [Figure(0, "t", 10, 1, 10)]
    # A crash between the commit of the table and the manifest.
    files.remove(f"{STATE}/batch-{1:010d}.json")
    assert delta.land(batch(spark, 1, 10), 1, "q") == [Figure(0, "t", 10, 1, 10)]
    delta.land(batch(spark, 11, 5), 2, "q")
    assert offsets(root) == [*range(1, 16)]
    last = State(files).last()
    assert last is not None
    assert last.totals == [Figure(0, "t", 15, 1, 15)]
    assert sorted(path.name for path in root.glob("date=*")) == [
        "date=2025-11-22",
        "date=2025-11-23",
    ]
    read = spark.read.parquet(*delta.uris())
    assert read.count() == 15


def test_a_missing_package_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    monkeypatch.setattr("topics.spark.jobs.archive_delta.find_spec", lambda name: None)
    with pytest.raises(JobError, match=r"pip install 'topics-engine\[delta\]'"):
        check_installed()
