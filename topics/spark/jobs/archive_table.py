"""Archive table: writes the batches of an archive as commits to a Delta table, with the package
``deltalake``.

    DIR/_delta_log/                                                       commits
    DIR/batch-0000000012-3f9c01ab/date=2026-11-23/part-00000-....parquet  records of batch 12
    DIR/_checkpoint/                                                      Spark's files, job.json

Executors write a batch into its own folder, then the driver commits the names of the files. A batch
is in the table if and only if it is committed. The commit contains the query's id and the batch
number as an application transaction. Therefore a batch that Spark repeats is not written again, and
only one of two concurrent runs commits. The files of a killed run are invisible to readers.

Spark needs no Delta jar, and records do not pass through the driver.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from topics.spark.job_errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "node", "headers", "epoch")
ORDER = ("date", "topic", "partition", "epoch", "offset")
DAY_MS = 24 * 60 * 60 * 1000
# Bounds the writer's memory, and the bytes that a replay decodes to read a few records.
ROW_GROUP_BYTES = 16 * 1024 * 1024
WRITE = {"compression": "zstd", "parquet.block.size": str(ROW_GROUP_BYTES)}


def dated(df: DataFrame) -> DataFrame:
    """Return the columns of an archive and the date in UTC, for any session time zone. The result
    has at most one partition per core, because each partition writes a file for each date.
    """
    from pyspark.sql import functions as f

    # All readers interpret this type as UTC. The default, INT96, has no time zone and no
    # statistics.
    df.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    day = f.expr(f"cast(floor(unix_millis(timestamp) / {DAY_MS}) as int)")
    rows = df.select(*COLUMNS, f.date_from_unix_date(day).alias("date"))
    return rows.coalesce(df.sparkSession.sparkContext.defaultParallelism)


def commit(df: DataFrame, batch: int, query: str, uri: str) -> None:
    """Write a batch of `dated` rows and commit it, unless the table already contains it. Raise
    `JobError` if the table is newer than the checkpoint or belongs to a different query.
    """
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.transaction import AddAction

    spark, schema = df.sparkSession, Schema.from_json(df.schema.json())
    with table_errors(uri):
        table = DeltaTable.create(
            **location(uri), schema=schema, mode="ignore", partition_by=["date"]
        )
    last = table.transaction_version(query)
    if last == batch:
        return
    if (table.version() > 0 and last is None) or (last is not None and last > batch):
        raise JobError(
            f"{uri}: the checkpoint is older than the table, or belongs to another: restore the one"
            " that was written with it, or archive into a new folder"
        )
    names = {each.name for each in table.schema().fields}
    if missing := [each for each in schema.fields if each.name not in names]:
        with table_errors(uri):  # an earlier version wrote the table
            table.alter.add_columns(missing)
    folder = f"batch-{batch:010d}-{uuid4().hex[:8]}"
    rows = df.sortWithinPartitions(*ORDER).write.partitionBy("date").options(**WRITE)
    rows.parquet(f"{uri}/{folder}")
    # A single partition needs no shuffle. A stream would use all shuffle partitions.
    written = spark.read.schema(df.schema).parquet(f"{uri}/{folder}").coalesce(1)
    files = written.groupBy("date", "_metadata.file_path", "_metadata.file_size").count().collect()
    actions = [
        AddAction(
            path=f"{folder}/date={date}/{path.rpartition('/')[2]}",
            size=size,
            partition_values={"date": str(date)},
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=json.dumps({"numRecords": count}),
        )
        for date, path, size, count in files
    ]
    named = CommitProperties(app_transactions=[Transaction(query, batch)])
    if actions:
        with table_errors(uri):
            table.create_write_transaction(
                [*actions], "append", schema, ["date"], commit_properties=named
            )


def opened(uri: str) -> Any:
    """Return the ``DeltaTable`` at a path or a URI, or None if there is no table."""
    from deltalake import DeltaTable

    where = location(uri)
    with table_errors(uri):
        return DeltaTable(**where) if DeltaTable.is_deltatable(**where) else None


def table_rows(spark: SparkSession, uri: str, since: str) -> DataFrame:
    """Return the rows with the date ``since`` or later, excluding the column ``date``."""
    from topics.spark.source.columns import schema_of

    table = opened(uri)
    found = table.file_uris(file_pruning_predicate=[("date", ">=", since)]) if table else []
    # The names of local files are escaped, and Spark expects them unescaped.
    paths = [f"file://{unquote(path)}" if path.startswith("/") else path for path in found]
    schema = schema_of(COLUMNS)
    return spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)


@contextmanager
def table_errors(uri: str) -> Iterator[None]:
    """Raise errors from ``deltalake`` and pyarrow as a one-line `JobError`."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError, ValueError) as error:  # pyarrow raises ValueError
        text = re.sub(r"\s*(?:\x1b\[\d+m)?\u21b3(?:\x1b\[0m)?\s*", ": ", str(error))
        raise JobError(f"{uri}: {' '.join(text.split())}") from error


def location(uri: str) -> dict[str, Any]:
    """Return the ``deltalake`` arguments for a URI. A local file is passed as a path, because
    ``deltalake`` would decode % in a URI. The environment contains the options for object stores.
    """
    options = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return {"table_uri": uri.removeprefix("file://"), "storage_options": options}
