"""Compact: appends the last record of each key in a topic to another topic.

The source is read up to its head at the start of the job. A record is omitted if it is also the
last record of its key in the destination. Therefore a repeated job appends nothing, even if records
in the source have been evicted in the meantime. The incarnation and the head of the source identify
the job, so that a repeated task appends nothing twice.

Records without a key are omitted and counted. The results keep their order, keys, values, nodes and
headers.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from topics.errors import ExitCode
from topics.spark.client.http import RequestError
from topics.spark.job_errors import UsageError, spark_errors
from topics.spark.jobs.appending import Appended, append, open_dest
from topics.spark.jobs.arguments import Commands, add_common, options_of, sink_of
from topics.spark.jobs.streams import read_batch
from topics.spark.session import local_session
from topics.spark.source.connection import Clients, Connection, RetryBudget, errors_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REST = ("value", "node", "headers")


def compact(spark: SparkSession, options: argparse.Namespace) -> Appended:
    """Run the job that the command line specifies. Raise `JobError` or ``ServerError``.

    If the last value of a key is the JSON null, the key was deleted. With ``drop_null``, it is
    omitted unless the destination has records with this key.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    source, dest = options.source, options.dest
    sink = sink_of(options, dest)
    name, head = planned(sink.connection, source)
    _, dest_head = planned(sink.connection, dest)
    with spark_errors():
        counts = Observation("compact")
        records = read_up_to(spark, options, source, head, options.allow_loss)
        records = records.observe(counts, f.count("*").alias("all"), f.count("key").alias("keyed"))
        found = last_of_keys(records).persist()
        keys = found.count()
        current = last_of_keys(read_up_to(spark, options, dest, dest_head, True)).persist()
        kept = without_deleted(found, current) if options.drop_null else found
        changed = without_unchanged(kept, current)
        notes = {
            "read": counts.get["all"],
            "without a key": counts.get["all"] - counts.get["keyed"],
        }
        if options.drop_null:
            notes["deleted keys"] = keys - kept.count()
        appended = append(changed, sink, f"batch:{name}", order=["offset"], quiet=options.quiet)
    found.unpersist()
    current.unpersist()
    notes["unchanged"] = keys - notes.get("deleted keys", 0) - appended.records
    return replace(appended, notes=notes)


def planned(connection: Connection, topic: str) -> tuple[str, int]:
    """Return a name for the job, and the topic's head. Raise ``ServerError``."""
    with Clients(connection, RetryBudget.PLANNING) as clients:
        server = clients.server_of(topic)
        with errors_of(server):
            state = clients.of(server).state(topic)
            if state is None:
                raise RequestError(topic, 404, "topic_not_found", "there is no such topic")
    return f"compact:{server.name}:{topic}:{state.epoch}:{state.head_seq}", state.head_seq


def read_up_to(
    spark: SparkSession, options: argparse.Namespace, topic: str, head: int, allow_loss: bool
) -> DataFrame:
    """Return the records of the topic up to the seq ``head``, inclusive."""
    more = {"subscribe": topic, "endingOffsets": json.dumps({topic: head + 1})}
    loss = {"failOnDataLoss": "false" if allow_loss else "true"}
    return read_batch(spark, {**options_of(options), **more, **loss})


def last_of_keys(df: DataFrame) -> DataFrame:
    """Return the last record of each key."""
    from pyspark.sql import functions as f

    rest = f.struct(*REST, "offset")
    last = f.max_by(rest, f.col("offset")).alias("last")
    return df.where("key is not null").groupBy("key").agg(last).select("key", "last.*")


def without_deleted(rows: DataFrame, current: DataFrame) -> DataFrame:
    """Return the rows, excluding rows with the value null whose key is not in ``current``."""
    deleted = "value is null or trim(value) = 'null'"
    ends = rows.where(deleted).join(current.select("key"), "key", "left_semi")
    return rows.where(f"not ({deleted})").unionByName(ends)


def without_unchanged(rows: DataFrame, current: DataFrame) -> DataFrame:
    """Return the rows that are not in ``current``, regardless of their offsets."""
    from pyspark.sql import functions as f

    same = [f.col(f"new.{name}").eqNullSafe(f.col(f"old.{name}")) for name in ("key", *REST)]
    return rows.alias("new").join(current.alias("old"), same, "left_anti")


def add(commands: Commands) -> None:
    """``topics-spark compact SRC DEST``."""
    parser = commands.add_parser(
        "compact",
        help="append the last record of each key to another topic",
        description="Append the last record of each key (tag) of a topic to another topic, in their"
        " order. A record is left out if the last record of the key in DEST is the same, so a"
        " repeated job appends nothing.",
        epilog=ExitCode.summary(),
    )
    parser.add_argument("source", help="the topic that is read")
    parser.add_argument("dest", help="created if it does not exist")
    parser.add_argument(
        "--drop-null",
        action="store_true",
        help="leave out deleted keys, whose last value is null. The null is appended if DEST has"
        " records of the key",
    )
    parser.add_argument(
        "--allow-loss", action="store_true", help="continue if records are evicted during the job"
    )
    add_common(parser)


def run(options: argparse.Namespace) -> Appended:
    """Run the job that the command line specifies."""
    if options.source == options.dest:
        raise UsageError("source and destination are the same topic")
    sink = sink_of(options, options.dest)
    planned(sink.connection, options.source)  # reports errors before a JVM starts
    open_dest(sink)
    with local_session(options.cores, "topics-compact") as spark:
        return compact(spark, options)
