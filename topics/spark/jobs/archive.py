"""Archive: copies a topic, or all topics that match a pattern, to a table partitioned by date.

A streaming query, whose checkpoint is in the archive's folder, archives each record exactly once. A
run archives the records since the last run and ends, or follows the topic. There are two formats:

    delta    a commit for each batch (`archive_table`): exactly once for all readers
    parquet  Structured Streaming's own file sink: exactly once for Spark (DIR/_spark_metadata)

At the end, the files are compared with the server (`archive_check`).
"""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from topics.errors import ExitCode
from topics.spark.client.http import RequestError
from topics.spark.job_errors import JobError, spark_errors
from topics.spark.jobs import streams
from topics.spark.jobs.archive_check import EVER, Checked, check
from topics.spark.jobs.archive_table import COLUMNS, WRITE, commit, dated, opened, table_rows
from topics.spark.jobs.arguments import Commands, add_common, options_of, positive, seconds
from topics.spark.jobs.checkpoint import JOB, Folder, claim, uri_of
from topics.spark.jobs.streams import QueryProgress
from topics.spark.progress import progress
from topics.spark.session import local_session
from topics.spark.source.connection import RetryBudget
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import Heads
from topics.spark.source.survey import Survey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("delta", "parquet")
BATCH_RECORDS = 1_000_000
CHECKPOINT = "_checkpoint"


class ArchiveSummary(NamedTuple):
    """The checks of the topics in a run. ``total`` counts the records of all runs."""

    directory: str
    topics: list[Checked]
    batches: int
    seconds: float
    total: int

    @property
    def rows(self) -> int:
        """The number of records that this run has archived."""
        return sum(each.rows for each in self.topics)

    @property
    def agrees(self) -> bool:
        """Whether the files contain all records on the server."""
        return not any(each.fault for each in self.topics)

    def text(self) -> str:
        """Return the counts, and whether the server agrees."""
        rate = self.rows / self.seconds if self.seconds > 0 else 0.0
        topics = {(each.server, each.topic) for each in self.topics if each.rows}
        first = (
            f"{self.rows:,} records of {len(topics):,} topics into {self.directory} in"
            f" {self.seconds:.1f} s, {self.batches:,} batches, {rate:,.0f} records/s; the archive"
            f" contains {self.total:,}"
        )
        lines = [first]
        if absent := sum(each.absent for each in self.topics):
            lost = sum(each.lost for each in self.topics)
            lines.append(f"{absent:,} seqs without a record: {lost:,} lost, the others deleted")
        wrong = [each for each in self.topics if each.fault]
        lines += [f'{each.server}: topic "{each.topic}": {each.fault}' for each in wrong]
        verdict = "The server agrees." if self.agrees else "The server does NOT agree."
        return "\n".join([*lines, verdict])


def archive(spark: SparkSession, options: argparse.Namespace) -> ArchiveSummary:
    """Archive the records since the last run. Raise `JobError` or the errors of `heads_of`.
    Archived records remain in the archive, and the next run continues after them.
    """
    started, uri, run = time.monotonic(), uri_of(options.directory), QueryProgress()
    before = heads_of(options)
    with spark_errors(), progress(lambda: run.records, quiet=options.quiet):
        begin(spark, uri, options)
        stream = dated(streams.read_stream(spark, source_of(options)))
        checkpoint = f"{uri}/{CHECKPOINT}"
        if options.format == "delta":
            streams.run_batches(stream, partial(commit, uri=uri), checkpoint, options.follow, run)
        else:
            writer = stream.writeStream.format("parquet").partitionBy("date").options(**WRITE)
            streams.run(writer.option("path", uri), checkpoint, options.follow, run)
        connection, heads = options_of(options), partial(heads_of, options)
        rows = partial(rows_of, spark, uri, options.format)
        return ArchiveSummary(
            directory=options.directory,
            topics=check(spark, connection, run, heads, before, rows),
            batches=run.batches,
            seconds=time.monotonic() - started,
            total=count_of(spark, uri, options.format),
        )


def source_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the options for a read with ``format("topics")``."""
    return {
        **options_of(options),
        "subscribePattern" if options.pattern else "subscribe": options.topic,
        "columns": ",".join(COLUMNS),
        "maxOffsetsPerTrigger": str(options.batch_records),
        "failOnDataLoss": "false" if options.allow_loss else "true",
    }


def heads_of(options: argparse.Namespace) -> Heads:
    """Return the heads of the topics. Raise `BadOption`, `ServerError`, or `RequestError` if a
    named topic does not exist.
    """
    with closing(Survey(ReadOptions.parse(source_of(options), "stream"))) as survey:
        heads = survey.heads(RetryBudget.PLANNING)
    if not options.pattern and not any(heads.values()):
        raise RequestError(options.topic, 404, "topic_not_found", "there is no such topic")
    return heads


def begin(spark: SparkSession, uri: str, options: argparse.Namespace) -> None:
    """Check that the folder is empty or already contains this archive. Raise `JobError` otherwise.

    If an archive job was killed before its first batch, it may have left a checkpoint without a
    ``job.json``.
    """
    folder, checkpoint = Folder(spark, uri), Folder(spark, f"{uri}/{CHECKPOINT}")
    names = folder.names()
    has_begun = names not in ([], [CHECKPOINT]) or checkpoint.names("offsets")
    if has_begun and checkpoint.read(JOB) is None:
        raise JobError(
            f"{uri}: the folder is not empty ({names[0]}) and contains no archive with its"
            " checkpoint; restore the checkpoint, or archive into a new folder"
        )
    fixed = {  # the arguments that must not change between runs
        "servers": " ".join(server.name for server in options.url.members),
        "topic": options.topic,
        "pattern": "yes" if options.pattern else "no",
        "format": options.format,
    }
    claim(checkpoint, fixed)


def rows_of(spark: SparkSession, uri: str, form: str, since: str) -> DataFrame:
    """Return the archived records with the date ``since`` or later."""
    if form == "delta":
        return table_rows(spark, uri, since)
    from topics.spark.source.columns import schema_of

    schema = schema_of(COLUMNS).add("date", "date")
    return spark.read.schema(schema).parquet(uri).where(f"date >= '{since}'")


def count_of(spark: SparkSession, uri: str, form: str) -> int:
    """Return the number of records in the archive."""
    if form == "parquet":
        return rows_of(spark, uri, form, EVER).count()
    table = opened(uri)
    return 0 if table is None else int(table.count())


def add(commands: Commands) -> None:
    """``topics-spark archive TOPIC DIR``."""
    parser = commands.add_parser(
        "archive",
        help="copy the new records of a topic to a table that is partitioned by date",
        description="Archive a topic in a Delta table with the partitions date=YYYY-MM-DD (UTC),"
        " each record exactly once. A run archives the records since the last run. Repeat a run"
        " that was killed.",
        epilog=f"DIR/{CHECKPOINT} belongs to the table: copy or delete them together."
        f" {ExitCode.summary()}",
    )
    add_arg = parser.add_argument
    add_arg("topic", help="name of the topic; with --pattern a regular expression for names")
    add_arg("directory", help="the archive: a path, or a URI that Hadoop and deltalake support")
    add_arg("--pattern", action="store_true", help="all topics of all servers that match TOPIC")
    add_arg(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="parquet: files of Spark's file sink, exactly once only for Spark; other programs also"
        " read files of incomplete batches (default: %(default)s)",
    )
    add_arg(
        "--batch-records",
        type=positive,
        default=BATCH_RECORDS,
        help="maximum number of records in a batch (default: %(default)s)",
    )
    add_arg(
        "--allow-loss",
        action="store_true",
        help="continue if records were deleted before they were archived, and count them",
    )
    add_arg(
        "--follow",
        type=seconds,
        metavar="INTERVAL",
        help="do not end, but poll for new records at this interval, such as 10s, until Ctrl-C",
    )
    add_common(parser)


def run(options: argparse.Namespace) -> ArchiveSummary:
    """Run the job that the command line specifies."""
    uri_of(options.directory)
    heads_of(options)  # reports errors before a JVM starts
    with local_session(options.cores, "topics-archive") as spark:
        return archive(spark, options)
