"""A driver that a test kills while it writes a batch and a stream.

    python -m tests.spark.sink.killed_driver URL FOLDER ROWS

The rows of the batch are 0 to ROWS - 1 in two partitions; those of the stream are the lines of
FOLDER/in. Both wait forever after some blocks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from topics.spark import register
from topics.spark.rows import map_arrow
from topics.spark.session import session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BLOCKS_SENT = 20
# Stages of a task are connected by buffers of 64 KiB. Long rows fill them.
PAD = "x" * 200
BATCH = {"topic": "batch", "batchRecords": "50", "jobId": "j"}
STREAM = {"topic": "stream", "batchRecords": "50"}


def batch_rows(spark: SparkSession, count: int) -> DataFrame:
    """Return the rows of the batch."""
    return spark.range(0, count, 1, 2).selectExpr(f"concat('[', id, ',\"{PAD}\"]') as value")


def line(number: int) -> str:
    """Return a row as a line of the stream."""
    return f'[{number},"{PAD}"]'


def stop_half_way(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield some blocks, then wait forever."""
    for number, batch in enumerate(batches):
        while number == BLOCKS_SENT:
            time.sleep(0.1)
        yield batch


def main(url: str, folder: Path, count: int) -> None:
    """Start both writes, which do not end."""
    spark = session(cores=4, partitions=2)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    register(spark)
    lines = map_arrow(spark.readStream.text(str(folder / "in")), stop_half_way, "value string")
    lines.writeStream.format("topics").options(
        servers=url, checkpointLocation=str(folder / "point"), **STREAM
    ).start()
    halted = map_arrow(batch_rows(spark, count), stop_half_way, "value string")
    halted.write.format("topics").mode("append").options(servers=url, **BATCH).save()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
