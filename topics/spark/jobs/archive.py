"""Archive: a topic, or all that match a pattern, into files by date, each record exactly once.

It is a streaming query with a checkpoint in the archive's folder: a run takes what came since the
last one and ends, or follows the topic. Parquet by `topics.spark.jobs.archive_files`, Delta by
`topics.spark.jobs.archive_delta`. The result is checked against the server.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from topics.errors import ExitCode
from topics.spark.client.errors import RequestError
from topics.spark.errors import WrongPath, WrongUse, spark_errors
from topics.spark.jobs.archive_check import Checked, Heads, check, heads, passed
from topics.spark.jobs.archive_delta import ArchiveDelta, check_installed
from topics.spark.jobs.archive_files import SCHEMA, ArchiveFiles
from topics.spark.jobs.archive_state import CHECKPOINT, Figure, Identity, State, add_figures
from topics.spark.jobs.arguments import Commands, add_servers, byte_count, positive
from topics.spark.jobs.checkpoint import committed, positions
from topics.spark.jobs.files import Files, LocalFiles, files_at, local_path
from topics.spark.jobs.streams import (
    add_stream,
    connection_of,
    job_errors,
    local_session,
    options_of,
    read_stream,
    run_batches,
)
from topics.spark.progress import Progress
from topics.spark.source.connection import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "delta")
BATCH_RECORDS = 1_000_000
FILES_MAX = 16
FILE_BYTES = 128 * 1024 * 1024
NO_DATE_YET = "9999-12-31"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveJob:
    """What is archived, where and how. ``options`` are those of ``format("topics")`` that name
    servers, key and patience. ``follow_s``: how often to look, None to end when all is archived.
    """

    subscribe: str
    directory: str
    is_pattern: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    format: str = "parquet"
    batch_records: int = BATCH_RECORDS
    files_max: int = FILES_MAX
    file_bytes: int = FILE_BYTES
    merge_today: bool = False
    follow_s: float | None = None
    allow_loss: bool = False

    def check(self) -> Connection:
        """Raise `JobError` for what cannot be meant."""
        connection = connection_of(self.options)
        if self.is_pattern:
            try:
                re.compile(self.subscribe)
            except re.error as error:
                raise WrongUse(f"the pattern {self.subscribe!r} is no regex: {error}") from None
        if self.format == "delta":
            check_installed()
        local_path(self.directory)
        return connection

    def identity(self, connection: Connection) -> Identity:
        """What the archive belongs to."""
        names = [server.name for server in connection.servers.members]
        return Identity(names, self.subscribe, self.is_pattern, self.format)

    def source(self) -> dict[str, str]:
        """The options of ``format("topics")``."""
        return {
            **self.options,
            "subscribePattern" if self.is_pattern else "subscribe": self.subscribe,
            "maxOffsetsPerTrigger": str(self.batch_records),
            "failOnDataLoss": "false" if self.allow_loss else "true",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSummary:
    """What a run archived, by topic, compared with the server."""

    directory: str
    topics: list[Checked]
    batches: int
    merged: int
    seconds: float
    total: int  # records in the archive, this run and all before

    @property
    def rows(self) -> int:
        """Records of this run."""
        return sum(each.rows for each in self.topics)

    @property
    def agrees(self) -> bool:
        """Whether the files hold what the server had."""
        return not any(each.fault for each in self.topics)

    def text(self) -> str:
        """For a terminal: figures, then whether the server agrees."""
        rate = self.rows / self.seconds if self.seconds > 0 else 0.0
        moved = [each for each in self.topics if each.rows]
        first = (
            f"{self.rows:,} records of {len(moved):,} topics into {self.directory} in"
            f" {self.seconds:.1f} s, {rate:,.0f} records/s; the archive holds {self.total:,}"
        )
        lines = [first, f"{self.batches:,} batches, {self.merged:,} dates merged"]
        lost, absent = (sum(getattr(each, name) for each in self.topics) for name in _GONE)
        if absent:
            lines.append(f"{absent:,} seqs without a record: {lost:,} lost, the others deleted")
        wrong = [each for each in self.topics if each.fault]
        lines += [f'{each.server}: topic "{each.topic}": {each.fault}' for each in wrong]
        verdict = "The server agrees." if self.agrees else "The server does NOT agree."
        return "\n".join([*lines, verdict])


_GONE = ("lost", "absent")


def archive(
    spark: SparkSession, job: ArchiveJob, *, progress: TextIO | None = None
) -> ArchiveSummary:
    """Archive what came since the last run. Raises `JobError` or `RequestError`; what is in the
    files by then stays, and the next run goes on from there.
    """
    started = time.monotonic()
    connection = job.check()
    before = heads(connection, job.subscribe, is_pattern=job.is_pattern)
    if not job.is_pattern and not before:
        raise missing(job.subscribe)
    files = files_at(spark, job.directory)
    with opened(files, job.identity(connection)):
        run = _Run(files, job)
        shown = None if progress is None else Progress(progress, None, lambda: run.rows)
        with job_errors(), shown or nullcontext():
            checked = run.whole(spark, connection, before)
            if shown is not None:
                shown.finish(run.rows)
        last = State(files).last()
    return ArchiveSummary(
        directory=job.directory,
        topics=checked,
        batches=run.batches,
        merged=run.merged,
        seconds=time.monotonic() - started,
        total=sum(each.rows for each in last.totals) if last else 0,
    )


@contextmanager
def opened(files: Files, identity: Identity) -> Iterator[None]:
    """Lock the folder, see that it is the right one, and finish what a crash left."""
    state = State(files)
    state.check_folder(identity)
    files.lock()
    try:
        state.claim(identity)
        state.check_checkpoint()
        state.recover()
        yield
    finally:
        files.unlock()


class _Run:
    """The sink of a run, and what it counts."""

    def __init__(self, files: Files, job: ArchiveJob) -> None:
        self._job = job
        self._files = files
        self.sink = ArchiveDelta(files) if job.format == "delta" else ArchiveFiles(files)
        self.figures: list[Figure] = []
        self.batches = 0
        self.merged = 0

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.figures)

    def whole(self, spark: SparkSession, connection: Connection, before: Heads) -> list[Checked]:
        """Archive, compare with the server, merge."""
        files, job = self._files, self._job
        begin = positions(files, CHECKPOINT, committed(files, CHECKPOINT))
        run_batches(
            read_stream(spark, job.source()), self.land, files.uri(CHECKPOINT), job.follow_s
        )
        end = positions(files, CHECKPOINT, committed(files, CHECKPOINT))
        found = passed(connection.servers, self.figures, begin, end)
        checked = check(connection, found, before, lambda: self.read(spark))
        self.merge(spark)
        return checked

    def land(self, df: DataFrame, batch: int, query: str) -> None:
        figures = self.sink.land(df, batch, query)
        self.figures = add_figures([*self.figures, *figures])
        self.batches += 1
        if self._job.follow_s is not None:  # a run without end merges on the way
            self.merge(df.sparkSession)

    def merge(self, spark: SparkSession) -> None:
        if not isinstance(self.sink, ArchiveFiles):
            return
        today = datetime.now(UTC).date().isoformat()
        self.merged += self.sink.merge(
            spark,
            files_max=self._job.files_max,
            file_bytes=self._job.file_bytes,
            before=NO_DATE_YET if self._job.merge_today else today,
        )

    def read(self, spark: SparkSession) -> DataFrame:
        """Everything in the archive."""
        reader = spark.read.schema(SCHEMA)
        if isinstance(self.sink, ArchiveDelta):
            return reader.parquet(*self.sink.uris())
        return reader.parquet(self._files.uri(""))


def add(commands: Commands) -> None:
    """``topics-spark archive TOPIC DIR``."""
    parser = commands.add_parser(
        "archive",
        help="a topic into files by date, what is new with each run",
        description="Archive a topic into Parquet files in folders date=YYYY-MM-DD (UTC), each"
        " record exactly once. A run takes what came since the last one; a run that was killed is"
        " simply repeated. Read the files with anything: DIR/date=*/*.parquet.",
        epilog=f"DIR/_checkpoint and DIR/_state belong to the files: copy or delete them together."
        f" {ExitCode.sentence()}",
    )
    add_arg = parser.add_argument
    add_arg("topic", help="name of the topic; with --pattern a regex for whole names")
    add_arg("directory", help="of the archive: a path, or a URI that Hadoop knows")
    add_arg("--pattern", action="store_true", help="all topics of all servers that match TOPIC")
    add_arg("--format", choices=FORMATS, default="parquet", help="(default: %(default)s)")
    add_arg(
        "--batch-records",
        type=positive,
        default=BATCH_RECORDS,
        help="records in a batch at most; one of Delta is held in memory (default: %(default)s)",
    )
    add_arg(
        "--files",
        type=positive,
        default=FILES_MAX,
        help="merge the files of a date that has more (default: %(default)s)",
    )
    add_arg(
        "--file-bytes",
        type=byte_count,
        default=FILE_BYTES,
        help="size of merged files, such as 64MiB (default: 128MiB)",
    )
    add_arg("--merge-today", action="store_true", help="merge also the date that still grows")
    add_arg(
        "--allow-loss",
        action="store_true",
        help="go on when records were evicted before they were archived, and count them",
    )
    add_stream(parser)
    add_servers(parser)


def run(options: argparse.Namespace) -> ArchiveSummary:
    """Do the job."""
    job = ArchiveJob(
        subscribe=options.topic,
        directory=options.directory,
        is_pattern=options.pattern,
        options=options_of(options),
        format=options.format,
        batch_records=options.batch_records,
        files_max=options.files,
        file_bytes=options.file_bytes,
        merge_today=options.merge_today,
        follow_s=options.follow,
        allow_loss=options.allow_loss,
    )
    preflight(job)
    with spark_errors():
        spark = local_session(options.cores, "topics-archive")
    try:
        return archive(spark, job, progress=None if options.quiet else sys.stderr)
    finally:
        spark.stop()


def preflight(job: ArchiveJob) -> None:
    """The mistakes that can be told before a JVM starts: arguments, server, local folder."""
    connection = job.check()
    if not heads(connection, job.subscribe, is_pattern=job.is_pattern) and not job.is_pattern:
        raise missing(job.subscribe)
    path = local_path(job.directory)
    if path is not None and path.exists():
        if not path.is_dir():
            raise WrongPath(f"{path}: it is no folder")
        state = State(LocalFiles(path))
        state.check_folder(job.identity(connection))
        state.check_checkpoint()


def missing(topic: str) -> RequestError:
    """There is no such topic."""
    return RequestError(topic, 404, "topic_not_found", "there is no such topic")
