"""Files of an archive, from DataFrames made by hand; read by Spark, DuckDB and Polars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest

from topics.spark.errors import JobError
from topics.spark.jobs.archive_files import COLUMNS, ArchiveFiles
from topics.spark.jobs.archive_state import Figure, State
from topics.spark.jobs.files import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
EVE = 1_763_855_999_000  # 2025-11-22T23:59:59Z


def batch(spark: SparkSession, first: int, count: int, *, topic: str = "t") -> DataFrame:
    """Records of seqs from ``first``, one a second from the last second of a day on."""
    return spark.range(first, first + count, 1, 3).selectExpr(
        "if(id % 2 = 0, 'even', null) as key",
        "concat('{\"id\":', id, '}') as value",
        f"'{topic}' as topic",
        "0 as partition",
        "id as offset",
        f"timestamp_millis({EVE} + (id - 1) * 1000) as timestamp",
        "cast(null as string) as node",
        "cast(null as string) as headers",
    )


def rows(root: Path) -> list[tuple[object, ...]]:
    """What DuckDB finds: date, topic, offset, value, in order."""
    sql = (
        'select cast(date as varchar), topic, "offset", value from'
        f" read_parquet('{root}/date=*/*.parquet', hive_partitioning=true) order by all"
    )
    with duckdb.connect() as connection:
        return connection.sql(sql).fetchall()


def test_batches_become_files_by_utc_date_and_repeated_ones_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        files = ArchiveFiles(LocalFiles(tmp_path))
        assert files.land(batch(spark, 1, 10), 0, "q") == [Figure(0, "t", 10, 1, 10)]
        assert files.land(batch(spark, 11, 5), 1, "q") == [Figure(0, "t", 5, 11, 15)]
        # What Spark repeats has no say: the files are there.
        assert files.land(batch(spark, 100, 1), 1, "q") == [Figure(0, "t", 5, 11, 15)]
        assert files.land(batch(spark, 1, 0), 2, "q") == []
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    expected = [
        ("2025-11-22" if seq == 1 else "2025-11-23", "t", seq, f'{{"id":{seq}}}')
        for seq in range(1, 16)
    ]
    assert rows(tmp_path) == expected
    last = State(LocalFiles(tmp_path)).last()
    assert last is not None
    assert (last.batch, last.totals) == (2, [Figure(0, "t", 15, 1, 15)])
    with pytest.raises(JobError, match="the checkpoint is older than the files"):
        files.land(batch(spark, 1, 10), 0, "q")
    assert rows(tmp_path) == expected


def test_the_files_have_all_columns_plain_times_and_zstd(
    spark: SparkSession, tmp_path: Path
) -> None:
    ArchiveFiles(LocalFiles(tmp_path)).land(batch(spark, 2, 10), 0, "q")
    found = sorted(tmp_path.glob("date=*/*"))
    assert [path.name for path in found if path.name.startswith(".")] == []
    assert all(path.name.startswith("batch-0000000000-") for path in found)
    for path in found:
        meta = pq.ParquetFile(path)
        assert tuple(meta.schema_arrow.names) == COLUMNS
        assert str(meta.schema_arrow.field("timestamp").type) == "timestamp[us, tz=UTC]"
        assert meta.metadata.row_group(0).column(0).compression == "ZSTD"
        offsets = meta.read(["offset"])["offset"].to_pylist()
        assert offsets == sorted(offsets)


def test_many_files_of_a_date_are_merged_in_order_and_open_dates_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = ArchiveFiles(LocalFiles(tmp_path))
    for number in range(3):
        for topic in ("t", "s"):
            done = 2 * number + (topic == "s")
            files.land(batch(spark, 10 * number + 1, 10, topic=topic), done, "q")
    before = rows(tmp_path)
    assert len(before) == 60
    assert files.merge(spark, files_max=2, file_bytes=1 << 20, before="2025-11-23") == 0
    assert files.merge(spark, files_max=50, file_bytes=1 << 20, before="2025-11-24") == 0
    assert files.merge(spark, files_max=2, file_bytes=1 << 20, before="2025-11-24") == 1
    (merged,) = (tmp_path / "date=2025-11-23").iterdir()
    assert merged.name == "merged-0000000005-00000.parquet"
    assert rows(tmp_path) == before
    table = pq.read_table(merged, columns=["topic", "offset"], partitioning=None)
    keys = [*zip(*(table[name].to_pylist() for name in ("topic", "offset")), strict=True)]
    assert keys == sorted(keys)
    # Once more there is nothing to do; the next batches come beside.
    assert files.merge(spark, files_max=2, file_bytes=1 << 20, before="2025-11-24") == 0
    files.land(batch(spark, 31, 10), 6, "q")
    assert len(rows(tmp_path)) == 70


def test_a_large_date_becomes_several_files_and_is_then_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = ArchiveFiles(LocalFiles(tmp_path))
    for number in range(3):
        files.land(batch(spark, 100 * number + 2, 100), number, "q")
    folder = tmp_path / "date=2025-11-23"
    count, held = len([*folder.iterdir()]), sum(path.stat().st_size for path in folder.iterdir())
    before = rows(tmp_path)
    limits = {"files_max": 2, "file_bytes": held // 2, "before": "2026-01-01"}
    assert count >= 6
    assert files.merge(spark, **limits) == 1  # type: ignore[arg-type]
    assert 2 <= len([*folder.iterdir()]) <= 3
    assert rows(tmp_path) == before
    assert files.merge(spark, **limits) == 0  # type: ignore[arg-type]
