"""Table: the batches of an archive as commits of a Delta table, by the package ``deltalake``.

    DIR/_delta_log/                                                       commits
    DIR/batch-0000000012-3f9c01ab/date=2026-11-23/part-00000-....parquet  records of batch 12
    DIR/_checkpoint/                                                      Spark's, and job.json

Executors write a batch into a folder of its own, then the driver commits the names of the files.
The commit is the only step that counts. It carries the query's id and the number of the batch as an
application transaction: a batch that Spark repeats is not written again, and of two runs at once
only one commits. A run that is killed leaves files that no reader of Delta sees.

Spark needs no jar of Delta's, and no record passes the driver.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from topics.spark.job_errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "node", "headers")
ORDER = ("date", "topic", "partition", "offset")
DAY_MS = 24 * 60 * 60 * 1000
# Of the writer's memory; and what replay decodes to get at a few records.
ROW_GROUP_BYTES = 16 * 1024 * 1024
WRITE = {"compression": "zstd", "parquet.block.size": str(ROW_GROUP_BYTES)}


def dated(df: DataFrame) -> DataFrame:
    """The columns of an archive and the UTC date, whatever the zone of the session, in no more
    tasks, hence files for a date, than cores.
    """
    from pyspark.sql import functions as f

    # INT96 has no zone and no statistics; all readers take this as a moment in UTC.
    df.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    day = f.expr(f"cast(floor(unix_millis(timestamp) / {DAY_MS}) as int)")
    rows = df.select(*COLUMNS, f.date_from_unix_date(day).alias("date"))
    return rows.coalesce(df.sparkSession.sparkContext.defaultParallelism)


def commit(df: DataFrame, batch: int, query: str, uri: str) -> None:
    """Write a batch of `dated` rows and commit it, unless the table has it. Raises `JobError` for a
    batch that cannot follow what is there.
    """
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.transaction import AddAction

    spark, schema = df.sparkSession, Schema.from_json(df.schema.json())
    where, options = place(uri), storage_options()
    with table_errors(uri):
        table = DeltaTable.create(
            where, schema, mode="ignore", partition_by=["date"], storage_options=options
        )
    last = table.transaction_version(query)
    if last == batch:
        return
    if (table.version() > 0 and last is None) or (last is not None and last > batch):
        raise JobError(
            f"{uri}: the checkpoint is older than the table, or of another one: restore the one"
            " that was written with it, or archive into a new folder"
        )
    folder = f"batch-{batch:010d}-{uuid4().hex[:8]}"
    rows = df.sortWithinPartitions(*ORDER).write.partitionBy("date").options(**WRITE)
    rows.parquet(f"{uri}/{folder}")
    # One task and no shuffle: within a stream Spark would make all its shuffle partitions.
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
    """The ``DeltaTable`` at a path or a URI; None where there is none."""
    from deltalake import DeltaTable

    options = storage_options()
    with table_errors(uri):
        if not DeltaTable.is_deltatable(place(uri), storage_options=options):
            return None
        return DeltaTable(place(uri), storage_options=options)


def table_rows(spark: SparkSession, uri: str, since: str) -> DataFrame:
    """What the table has of the date ``since`` and later, without the date."""
    from topics.spark.source.columns import schema_of

    table = opened(uri)
    found = table.file_uris(file_pruning_predicate=[("date", ">=", since)]) if table else []
    # Names of local files come escaped, and Spark takes names as they are.
    paths = [f"file://{unquote(path)}" if path.startswith("/") else path for path in found]
    schema = schema_of(())
    return spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)


@contextmanager
def table_errors(uri: str) -> Iterator[None]:
    """What ``deltalake`` raises, as a `JobError` of one line."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        raise JobError(f"{uri}: {' '.join(str(error).split())}") from error


def place(uri: str) -> str:
    """The URI as ``deltalake`` takes it: it would read % in one of a local file."""
    return uri.removeprefix("file://")


def storage_options() -> dict[str, str]:
    """What the environment says about object stores."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
