"""Archive: copy a topic, or all topics that match a pattern, to a table by date.

A streaming query, whose checkpoint is in the archive's folder, archives each record exactly once. A
run archives the records since the last run and ends, or follows the topic. There are two formats:

    delta    a commit for each batch (`archive_table`): exactly once for every reader
    parquet  Structured Streaming's own file sink: exactly once for Spark, by DIR/_spark_metadata

At the end, the files are compared with the server (`archive_check`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from topics.errors import ExitCode
from topics.spark.client.http import RequestError
from topics.spark.job_errors import JobError
from topics.spark.jobs import streams
from topics.spark.jobs.archive_check import EVER, Checked, check
from topics.spark.jobs.archive_table import COLUMNS, WRITE, commit, dated, opened, table_rows
from topics.spark.jobs.arguments import Commands, add_common, positive
from topics.spark.jobs.checkpoint import JOB, Folder, claim, uri_of
from topics.spark.jobs.streams import QueryProgress
from topics.spark.progress import progress
from topics.spark.session import local_session
from topics.spark.source.connection import Connection, RetryBudget
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import Heads
from topics.spark.source.survey import Survey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("delta", "parquet")
BATCH_RECORDS = 1_000_000
CHECKPOINT = "_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveJob:
    """The arguments of a job. ``options`` are the connection options of ``format("topics")``.
    ``follow_s`` is the interval of polls, or None to end when all records are archived.
    """

    subscribe: str
    directory: str
    is_pattern: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    format: str = "delta"
    batch_records: int = BATCH_RECORDS
    follow_s: float | None = None
    allow_loss: bool = False

    def source(self) -> dict[str, str]:
        """The options of ``format("topics")``."""
        return {
            **self.options,
            "subscribePattern" if self.is_pattern else "subscribe": self.subscribe,
            "columns": ",".join(COLUMNS),
            "maxOffsetsPerTrigger": str(self.batch_records),
            "failOnDataLoss": "false" if self.allow_loss else "true",
        }

    def arguments(self) -> dict[str, str]:
        """Return the arguments that must not change between runs."""
        members = Connection.parse(self.options).servers.members
        return {
            "servers": " ".join(server.name for server in members),
            "topic": self.subscribe,
            "pattern": "yes" if self.is_pattern else "no",
            "format": self.format,
        }

    def heads(self) -> Heads:
        """Return the heads of the topics. Raise `RequestError` if a named topic does not exist,
        `BadOption` or `ServerError`.
        """
        with closing(Survey(ReadOptions.parse(self.source(), "stream"))) as survey:
            heads = survey.heads(RetryBudget.PLANNING)
        if not self.is_pattern and not any(heads.values()):
            raise RequestError(self.subscribe, 404, "topic_not_found", "there is no such topic")
        return heads

    def read(self, spark: SparkSession, since: str) -> DataFrame:
        """Return the archived records with the date ``since`` or later."""
        uri = uri_of(self.directory)
        if self.format == "delta":
            return table_rows(spark, uri, since)
        from topics.spark.source.columns import schema_of

        schema = schema_of(COLUMNS).add("date", "date")
        return spark.read.schema(schema).parquet(uri).where(f"date >= '{since}'")

    def total(self, spark: SparkSession) -> int:
        """Return the number of records in the archive."""
        if self.format == "parquet":
            return self.read(spark, EVER).count()
        table = opened(uri_of(self.directory))
        return 0 if table is None else int(table.count())


class ArchiveSummary(NamedTuple):
    """The checks of the topics of a run. ``total`` is the number of records in the archive, of this
    run and all earlier ones.
    """

    directory: str
    topics: list[Checked]
    batches: int
    seconds: float
    total: int

    @property
    def rows(self) -> int:
        """Records of this run."""
        return sum(each.rows for each in self.topics)

    @property
    def agrees(self) -> bool:
        """Whether the files contain all records of the server."""
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


def archive(spark: SparkSession, job: ArchiveJob, *, quiet: bool = True) -> ArchiveSummary:
    """Archive the records since the last run. Raise `JobError` or the errors of `ArchiveJob.heads`.
    Archived records remain in the archive, and the next run continues after them.
    """
    started, uri, run = time.monotonic(), uri_of(job.directory), QueryProgress()
    before = job.heads()
    with streams.job_errors(), progress(lambda: run.records, quiet=quiet):
        begin(spark, uri, job)
        stream = dated(streams.read_stream(spark, job.source()))
        checkpoint = f"{uri}/{CHECKPOINT}"
        if job.format == "delta":
            streams.run_batches(stream, partial(commit, uri=uri), checkpoint, job.follow_s, run)
        else:
            writer = stream.writeStream.format("parquet").partitionBy("date").options(**WRITE)
            streams.run(writer.option("path", uri), checkpoint, job.follow_s, run)
        read = partial(job.read, spark)
        topics = check(spark, job.options, run, job.heads, before, read)
        return ArchiveSummary(
            directory=job.directory,
            topics=topics,
            batches=run.batches,
            seconds=time.monotonic() - started,
            total=job.total(spark),
        )


def begin(spark: SparkSession, uri: str, job: ArchiveJob) -> None:
    """Check that the folder is empty or already contains this archive. Raise `JobError` if not.

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
    claim(checkpoint, job.arguments())


def add(commands: Commands) -> None:
    """``topics-spark archive TOPIC DIR``."""
    parser = commands.add_parser(
        "archive",
        help="copy the new records of a topic to a table by date",
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
        type=streams.seconds,
        metavar="INTERVAL",
        help="do not end, but poll for new records at this interval, such as 10s, until Ctrl-C",
    )
    add_common(parser)


def run(options: argparse.Namespace) -> ArchiveSummary:
    """Do the job of the command line."""
    job = ArchiveJob(
        subscribe=options.topic,
        directory=options.directory,
        is_pattern=options.pattern,
        options=streams.options_of(options),
        format=options.format,
        batch_records=options.batch_records,
        follow_s=options.follow,
        allow_loss=options.allow_loss,
    )
    uri_of(job.directory)
    job.heads()  # reports errors before a JVM starts
    with local_session(options.cores, "topics-archive") as spark:
        return archive(spark, job, quiet=options.quiet)
