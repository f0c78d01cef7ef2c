"""Files of an archive: batches of records as Parquet, in folders by date, each record exactly once.

Readers need know nothing of Spark: there is no log of valid files to obey, every file under
``date=*/`` is whole and counts. Spark's own file sink gives that promise only to readers of its
``_spark_metadata``: what a failed attempt left lies among the good files.

How a batch becomes files, and what a crash leaves, is told in `topics.spark.jobs.archive_state`.
The date is that of the timestamp in UTC. Within a file, records are sorted by topic, partition and
offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.spark.errors import JobError
from topics.spark.jobs.archive_state import (
    STAGING,
    Figure,
    Manifest,
    Merge,
    State,
    add_figures,
    staging,
)
from topics.spark.jobs.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "key STRING, value STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " node STRING, headers STRING"
)
COLUMNS = tuple(column.split()[0] for column in SCHEMA.split(","))
ORDER = ("topic", "partition", "offset")
DAY_MS = 24 * 60 * 60 * 1000
CODEC = "zstd"


class ArchiveFiles:
    """The sink of an archive. ``land`` takes the batches of one query, in their order.

    Raises `JobError` for batches that cannot follow what is there.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._state = State(files)

    def land(self, df: DataFrame, batch: int, query: str) -> list[Figure]:
        """Write a batch, or finish it when an earlier run had written it; return its figures."""
        last = self._state.last()
        if last is not None and last.batch >= batch:
            return repeated(last, batch, self._files.uri(""))
        self._files.remove(STAGING)
        staged = staging(batch)
        write_dated(df, self._files.uri(staged))
        moves = self._moves(staged, batch)
        figures = figures_of(df.sparkSession, self._files.uri(staged)) if moves else []
        totals = add_figures([*(last.totals if last else []), *figures])
        self._state.commit(Manifest(batch, query, moves, figures, totals))
        return figures

    def merge(self, spark: SparkSession, *, files_max: int, file_bytes: int, before: str) -> int:
        """Merge the files of each date before the date ``before`` that has more than ``files_max``
        and at least twice as many as files of ``file_bytes`` need; return how many dates.
        """
        last = self._state.last()
        merged = 0
        for folder in self._files.names(""):
            if last is None or not folder.startswith("date=") or folder >= f"date={before}":
                continue
            names = [name for name in self._files.names(folder) if name.endswith(".parquet")]
            held = sum(self._files.size(f"{folder}/{name}") for name in names)
            needed = max(1, -(-held // file_bytes))
            if len(names) > files_max and len(names) >= 2 * needed:
                merged += self._merge_date(spark, folder, needed, last.batch)
        return merged

    def _merge_date(self, spark: SparkSession, folder: str, needed: int, batch: int) -> bool:
        files, staged = self._files, f"{STAGING}/{folder}"
        stem = f"merged-{batch:010d}"
        if files.exists(f"{folder}/{stem}-00000.parquet"):
            return False  # merged after this batch already, with other limits
        files.remove(STAGING)
        df = spark.read.schema(SCHEMA).parquet(files.uri(folder))
        parted = df.coalesce(1) if needed == 1 else df.repartitionByRange(needed, *ORDER)
        write_plain(parted.sortWithinPartitions(*ORDER), files.uri(staged))
        written = spark.read.schema(SCHEMA).parquet(files.uri(staged)).count()
        if written != (held := df.count()):
            raise JobError(f"{files.uri(folder)}: {written:,} of {held:,} records were merged")
        for number, name in enumerate(parts(files, staged)):
            files.move(f"{staged}/{name}", f"{staged}/{stem}-{number:05d}.parquet")
        for name in files.names(staged):
            if not name.startswith(stem):
                files.remove(f"{staged}/{name}")
        self._state.commit_merge(Merge(folder, staged, f"{stem}-00000.parquet"))
        return True

    def _moves(self, staged: str, batch: int) -> list[tuple[str, str]]:
        found = [
            (folder, name)
            for folder in self._files.names(staged)
            if folder.startswith("date=")
            for name in parts(self._files, f"{staged}/{folder}")
        ]
        return [
            (f"{staged}/{folder}/{name}", f"{folder}/batch-{batch:010d}-{number:05d}.parquet")
            for number, (folder, name) in enumerate(found)
        ]


def repeated(last: Manifest, batch: int, where: str) -> list[Figure]:
    """The figures of a batch that is there already. Raises `JobError` when it is not the last."""
    if last.batch != batch:
        raise JobError(
            f"{where}: the checkpoint is older than the files: it asks for batch {batch}, and"
            f" batch {last.batch} is there; restore the newer checkpoint"
        )
    return last.figures


def parts(files: Files, folder: str) -> list[str]:
    """The Parquet files that Spark wrote in a folder."""
    names = files.names(folder)
    return [name for name in names if name.startswith("part-") and name.endswith(".parquet")]


def dated(df: DataFrame) -> DataFrame:
    """The columns of an archive and the UTC date, whatever the zone of the session."""
    from pyspark.sql import functions as f

    day = f.expr(f"cast(floor(unix_millis(timestamp) / {DAY_MS}) as int)")
    return df.select(*COLUMNS, f.date_from_unix_date(day).alias("date"))


def write_dated(df: DataFrame, uri: str) -> None:
    """Write a batch: no more tasks, hence files for a date, than cores."""
    tasks = df.sparkSession.sparkContext.defaultParallelism
    rows = dated(df).coalesce(tasks).sortWithinPartitions("date", *ORDER)
    _plain_times(df.sparkSession)
    rows.write.mode("overwrite").option("compression", CODEC).partitionBy("date").parquet(uri)


def write_plain(df: DataFrame, uri: str) -> None:
    """Write the files of one date."""
    _plain_times(df.sparkSession)
    df.write.mode("overwrite").option("compression", CODEC).parquet(uri)


def _plain_times(spark: SparkSession) -> None:
    # INT96 has no zone and no statistics; DuckDB and Polars read this as a moment in UTC.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


def figures_of(spark: SparkSession, uri: str) -> list[Figure]:
    """The figures of staged files, counted in the files themselves."""
    from pyspark.sql import functions as f

    # One task and no shuffle: within a stream Spark would make all its shuffle partitions.
    df = spark.read.schema(SCHEMA).parquet(uri).select("partition", "topic", "offset").coalesce(1)
    rows = df.groupBy("partition", "topic").agg(
        f.count("*").alias("rows"), f.min("offset").alias("first"), f.max("offset").alias("last")
    )
    return add_figures(Figure(*row) for row in rows.collect())
