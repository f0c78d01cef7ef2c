"""A program that a user submits to a cluster. It uses only Spark and ``format("topics")``.

    spark-submit program.py STEP[,STEP...] SERVERS PREFIX FOLDER ROWS [VICTIM]

Steps are write, read and stream, into and from topics PREFIX.STEP.NAME. The first task of a step
that reaches half of its rows kills the VICTIM: its ``executor``, the ``worker`` that started this,
or the ``server`` whose process group FOLDER/server names. Files in FOLDER record the
kills.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from topics.spark import register

HALF = 5  # blocks of a partition
PAD = "x" * 200  # large rows fill the 64 KiB buffers between the stages of a task


def with_kill(df: DataFrame, step: str, folder: str, victim: str) -> DataFrame:
    """Return the same rows, and kill the victim when the first task has processed half of its
    rows. Check that the package is the submitted one.
    """

    def parent(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def kill(batches: Iterator[Any]) -> Iterator[Any]:
        import topics

        assert Path(folder).parent in Path(topics.__file__).resolve().parents, topics.__file__
        executor = parent(os.getppid())  # tasks are forked from a process of the executor's
        Path(folder, f"{step}.executor.{executor}").touch()
        for number, batch in enumerate(batches):
            if number == HALF and victim:
                with suppress(FileExistsError):
                    Path(folder, f"{step}.died").touch(exist_ok=False)
                    if victim == "server":
                        os.killpg(int(Path(folder, "server").read_text()), signal.SIGKILL)
                    else:
                        pid = executor if victim == "executor" else parent(executor)
                        os.kill(pid, signal.SIGKILL)
            yield batch

    return df.mapInArrow(kill, df.schema)


def main(steps: str, servers: str, prefix: str, folder: str, rows: str, victim: str = "") -> None:
    """Run all steps in one session."""
    spark = SparkSession.builder.appName(prefix).getOrCreate()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    register(spark)
    reads = {"servers": servers, "subscribePattern": rf"{prefix}\.write\..*", "minPartitions": "4"}
    sends = {"servers": servers, "batchRecords": "100"}
    for step in steps.split(","):
        began, found = time.monotonic(), []
        if step == "write":
            row = (
                f"'{prefix}.write.' || id % 6 AS topic",
                f"to_json(struct(id, '{PAD}')) AS value",
            )
            df = with_kill(spark.range(0, int(rows), 1, 4).selectExpr(*row), step, folder, victim)
            df.write.format("topics").mode("append").options(jobId=prefix, **sends).save()
        elif step == "read":
            df = with_kill(
                spark.read.format("topics").options(**reads).load(), step, folder, victim
            )
            ids = df.selectExpr("get_json_object(value, '$.id')::bigint AS id")
            found = [row.id for row in ids.collect()]
        else:
            read = spark.readStream.format("topics").option("startingOffsets", "earliest")
            df = with_kill(read.options(**reads).load(), step, folder, victim).select("value")
            stream = df.writeStream.format("topics").options(topic=f"{prefix}.stream.all", **sends)
            stream = stream.option("checkpointLocation", f"{folder}/checkpoint")
            stream.trigger(availableNow=True).start().awaitTermination()
        result = [time.monotonic() - began, found]
        Path(folder, f"{step}.found").write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
