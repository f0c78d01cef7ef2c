"""Compact: the last record of each key of one topic, appended to another one.

The source is read up to its head at the start. Incarnation and head name the job, so the same
source compacted again appends nothing. A record without a key has no last one: it is left out and
counted. The results keep the order, the keys, nodes and headers of the records that they are.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topics.errors import ExitCode
from topics.spark.client.errors import RequestError
from topics.spark.errors import WrongUse, spark_errors
from topics.spark.jobs.appending import Appended, append_rows, open_dest
from topics.spark.jobs.arguments import Commands, add_servers, located, positive
from topics.spark.jobs.streams import (
    connection_of,
    job_errors,
    local_session,
    options_of,
    read_batch,
)
from topics.spark.producer import say
from topics.spark.sink.options import SinkOptions
from topics.spark.source.connection import BadOption, Connection, Patience

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactJob:
    """What is compacted into what. ``drop_null``: a key whose last value is the JSON null was
    deleted, and is left out, unless the destination has records of it: then the null ends them.
    """

    source: str
    dest: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    drop_null: bool = False
    allow_loss: bool = False

    def sink(self) -> SinkOptions:
        """Where the results go. Raises `WrongUse` for what cannot be meant."""
        if self.source == self.dest:
            raise WrongUse("source and destination are the same topic")
        try:
            return SinkOptions.parse({**self.options, "topic": self.dest})
        except BadOption as error:
            raise WrongUse(str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSummary:
    """What a job read and appended. ``records`` are those that were read, ``deleted`` the keys that
    a null ended.
    """

    source: str
    dest: str
    head: int
    records: int
    keyless: int
    deleted: int
    appended: Appended
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether the server's count of the destination agrees."""
        return self.appended.agrees

    def text(self) -> str:
        """For a terminal."""
        return (
            f'{self.records:,} records of topic "{self.source}" up to seq {self.head:,} into'
            f' {self.appended.records:,} keys of topic "{self.dest}" in {self.seconds:.1f} s\n'
            f"{self.keyless:,} records without a key and {self.deleted:,} deleted keys left out\n"
            f"{self.appended.text()}"
        )


def compact(spark: SparkSession, job: CompactJob) -> CompactSummary:
    """Do the job. Raises `JobError` or `RequestError`."""
    started = time.monotonic()
    sink = job.sink()
    name, head = planned(sink.connection, job.source)
    dest_head = open_sink(sink)
    with job_errors():
        df = read_batch(spark, source_of(job, head))
        records, keyless, rows = last_of_keys(df)
        live = without_deleted(rows, read_dest(spark, job, dest_head)) if job.drop_null else rows
        keys = rows.count() if job.drop_null else 0
        appended = append_rows(live, sink, f"batch:{name}", ["offset"])
    rows.unpersist()
    return CompactSummary(
        source=job.source,
        dest=job.dest,
        head=head,
        records=records,
        keyless=keyless,
        deleted=keys - appended.records if job.drop_null else 0,
        appended=appended,
        seconds=time.monotonic() - started,
    )


def read_dest(spark: SparkSession, job: CompactJob, head: int) -> DataFrame:
    """The records of the destination, up to its head."""
    given = {**job.options, "subscribe": job.dest, "failOnDataLoss": "false"}
    return read_batch(spark, {**given, "endingOffsets": json.dumps({job.dest: head + 1})})


def without_deleted(rows: DataFrame, dest: DataFrame) -> DataFrame:
    """The last records without those that end a key of which ``dest`` has no record. The same when
    some of them have been appended to ``dest``: a job that is repeated appends nothing.
    """
    deleted = "value is null or trim(value) = 'null'"
    ends = rows.where(deleted).join(dest.select("key").distinct(), "key", "left_semi")
    return rows.where(f"not ({deleted})").unionByName(ends)


def planned(connection: Connection, source: str) -> tuple[str, int]:
    """The name of the job, and the head up to which it reads. Raises `RequestError`, or `JobError`
    for a server that does not answer.
    """
    server = located(connection, source)
    with connection.client(server, Patience.PLANNING) as client:
        state = client.state(source)
    if state is None:
        raise RequestError(source, 404, "topic_not_found", "there is no such topic")
    head = int(state["head_seq"])
    return f"compact:{server.name}:{source}:{state['epoch']}:{head}", head


def open_sink(sink: SinkOptions) -> int:
    """Open the destination and tell of its warnings; its head."""
    warnings: list[str] = []
    head = open_dest(sink, warnings)
    for warning in warnings:
        say(f"warning: {warning}")
    return head


def source_of(job: CompactJob, head: int) -> dict[str, str]:
    """The options of ``format("topics")``: up to the head, inclusive."""
    return {
        **job.options,
        "subscribe": job.source,
        "endingOffsets": json.dumps({job.source: head + 1}),
        "failOnDataLoss": "false" if job.allow_loss else "true",
    }


def last_of_keys(df: DataFrame) -> tuple[int, int, DataFrame]:
    """How many records there are, how many of them have no key, and the last record of each key.
    The source is read once; the result is kept until it is unpersisted.
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
    return found["all"], found["all"] - found["keyed"], last


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


def run(options: argparse.Namespace) -> CompactSummary:
    """Do the job of the command line."""
    given = options_of(options)
    job = CompactJob(
        source=options.source,
        dest=options.dest,
        options=given,
        drop_null=options.drop_null,
        allow_loss=options.allow_loss,
    )
    job.sink()
    planned(connection_of(given), options.source)  # a mistake is told before a JVM starts
    with spark_errors():
        spark = local_session(options.cores, "topics-compact")
    try:
        return compact(spark, job)
    finally:
        spark.stop()
