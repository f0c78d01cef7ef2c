"""Compact: the last record of each key of one topic, appended to another one.

The source is read up to its head at the start. Incarnation and head name the job, so the same
source compacted again appends nothing. A record without a key has no last one: it is left out and
counted. The results keep the order, the keys, nodes and headers of the records that they are.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from topics.errors import ExitCode
from topics.spark.client.request_error import RequestError
from topics.spark.job_errors import UsageError, spark_errors
from topics.spark.jobs.appending import Appended, append, open_dest
from topics.spark.jobs.arguments import Commands, add_servers, positive
from topics.spark.jobs.streams import job_errors, options_of, read_batch, sink_of
from topics.spark.session import local_session
from topics.spark.source.connection import Connection, RetryBudget, errors_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def compact(spark: SparkSession, options: argparse.Namespace) -> Appended:
    """Do the job of the command line. Raises `JobError` or ``ServerError``.

    With ``drop_null``, a key whose last value is the JSON null was deleted, and is left out, unless
    the destination has records of it: then the null ends them.
    """
    source, dest = options.source, options.dest
    sink = sink_of(options, dest)
    name, head = planned(sink.connection, source)
    with job_errors():
        found, counts = last_of_keys(read_up_to(spark, options, source, head, options.allow_loss))
        live = found
        if options.drop_null:
            _, dest_head = planned(sink.connection, dest)
            live = without_deleted(found, read_up_to(spark, options, dest, dest_head, True))
            counts["deleted keys"] = found.count()
        appended = append(live, sink, f"batch:{name}", order=["offset"], quiet=options.quiet)
    found.unpersist()
    if options.drop_null:
        counts["deleted keys"] -= appended.records
    return replace(appended, notes=counts)


def planned(connection: Connection, source: str) -> tuple[str, int]:
    """The name of the job, and the head up to which it reads. Raises ``ServerError``."""
    server = connection.locate(source)
    with errors_of(server), connection.client(server, RetryBudget.PLANNING) as client:
        state = client.state(source)
        if state is None:
            raise RequestError(source, 404, "topic_not_found", "there is no such topic")
    head = int(state["head_seq"])
    return f"compact:{server.name}:{source}:{state['epoch']}:{head}", head


def read_up_to(
    spark: SparkSession, options: argparse.Namespace, topic: str, head: int, allow_loss: bool
) -> DataFrame:
    """The records of the topic up to that seq, inclusive."""
    more = {"subscribe": topic, "endingOffsets": json.dumps({topic: head + 1})}
    loss = {"failOnDataLoss": "false" if allow_loss else "true"}
    return read_batch(spark, {**options_of(options), **more, **loss})


def last_of_keys(df: DataFrame) -> tuple[DataFrame, dict[str, int]]:
    """The last record of each key, and how many records were read. The source is read once; the
    result is kept until it is unpersisted.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    counts = Observation("compact")
    counted = df.observe(counts, f.count("*").alias("all"), f.count("key").alias("keyed"))
    rest = f.struct("value", "node", "headers", "offset")
    last = (
        counted.where("key is not null")
        .groupBy("key")
        .agg(f.max_by(rest, f.col("offset")).alias("last"))
        .select("key", "last.*")
        .persist()
    )
    last.count()
    found = counts.get
    return last, {"read": found["all"], "without a key": found["all"] - found["keyed"]}


def without_deleted(rows: DataFrame, dest: DataFrame) -> DataFrame:
    """The last records without those that end a key of which ``dest`` has no record. The same when
    some of them have been appended to ``dest``: a job that is repeated appends nothing.
    """
    deleted = "value is null or trim(value) = 'null'"
    ends = rows.where(deleted).join(dest.select("key").distinct(), "key", "left_semi")
    return rows.where(f"not ({deleted})").unionByName(ends)


def add(commands: Commands) -> None:
    """``topics-spark compact SRC DEST``."""
    parser = commands.add_parser(
        "compact",
        help="the last record of each key into another topic",
        description="Append the last record of each key (tag) of a topic to another topic, in their"
        " order. The same source again appends nothing; a source that has grown appends all its"
        " keys again.",
        epilog=ExitCode.sentence(),
    )
    parser.add_argument("source")
    parser.add_argument("dest", help="is made when it is absent")
    parser.add_argument(
        "--drop-null",
        action="store_true",
        help="leave out keys whose last value is null: they were deleted. A key that DEST has gets"
        " the null",
    )
    parser.add_argument(
        "--allow-loss", action="store_true", help="go on when records are evicted meanwhile"
    )
    parser.add_argument(
        "--cores", type=positive, default=2, help="tasks at a time (default: %(default)s)"
    )
    add_servers(parser)


def run(options: argparse.Namespace) -> Appended:
    """Do the job of the command line."""
    if options.source == options.dest:
        raise UsageError("source and destination are the same topic")
    sink = sink_of(options, options.dest)
    planned(sink.connection, options.source)  # a mistake is told before a JVM starts
    open_dest(sink)
    with spark_errors():
        spark = local_session(options.cores, "topics-compact")
    try:
        return compact(spark, options)
    finally:
        spark.stop()
