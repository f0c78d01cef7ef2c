"""Aggregate: windowed counts, sums, averages, minima and maxima of a topic, back into a topic.

    topics-spark aggregate flights flights-hourly DIR --window '1 hour' --by data.carrier \\
        --time data.time_hour --avg data.dep_delay

A result is one record: its data is ``{"window_start":...,"window_end":...,"carrier":...,
"count":...,"avg_dep_delay":...}``, its tag names window and group. Two ways:

- append: a window is told once, when the watermark has passed its end. What comes later than the
  watermark allows is left out, and told. The last windows wait for later records.
- update: each batch tells every window that changed; the last record of a tag counts.

Figures are DECIMAL(38,18): exact for 20 digits before the point and 18 behind it. A value that is
no such number, also the string "NaN", is in no figure, and told.

Each batch is appended under the id of the query in the checkpoint and its own number, with the rows
in a fixed order. So a batch that is repeated after a crash appends nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from topics.errors import ExitCode
from topics.spark.errors import WrongUse, spark_errors
from topics.spark.jobs.appending import Appended, append_rows
from topics.spark.jobs.arguments import Commands, add_servers, positive
from topics.spark.jobs.checkpoint import Folder, claim, uri_of
from topics.spark.jobs.compact import open_sink, planned
from topics.spark.jobs.streams import (
    LEFT_OUT,
    NO_NUMBER,
    NO_TIME,
    LeftOut,
    add_stream,
    job_errors,
    local_session,
    options_of,
    read_stream,
    run_batches,
)
from topics.spark.progress import Progress
from topics.spark.rows import TO_JSON, quoted
from topics.spark.sink.options import SinkOptions
from topics.spark.source.connection import BadOption

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FUNCTIONS = ("sum", "avg", "min", "max")
MODES = ("append", "update")
COLUMNS = ("key", "node", "topic", "timestamp")
BATCH_RECORDS = 1_000_000
WATERMARK = "10 minutes"
NUMBER = "decimal(38,18)"
INTERVAL = re.compile(r"[1-9][0-9]* (second|minute|hour|day|week)s?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateJob:
    """What is aggregated, how, and into what. Fields are ``data.member``, ``data.a.b`` or one of
    `COLUMNS`. ``figures`` are pairs of a function and a field. ``checkpoint``: a folder of this
    job.
    """

    source: str
    dest: str
    checkpoint: str
    window: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    by: tuple[str, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    time: str = "timestamp"
    watermark: str = WATERMARK
    mode: str = "append"
    batch_records: int = BATCH_RECORDS
    follow_s: float | None = None
    allow_loss: bool = False

    def sink(self) -> SinkOptions:
        """Where the results go. Raises `WrongUse` for what cannot be meant."""
        if self.source == self.dest:
            raise WrongUse("source and destination are the same topic")
        for name, text in (("window", self.window), ("watermark", self.watermark)):
            if not INTERVAL.fullmatch(text):
                raise WrongUse(f"the {name} {text!r} is no interval; it looks like '1 hour'")
        names = [name_of(each) for each in self.by]
        names += [f"{function}_{name_of(each)}" for function, each in self.figures]
        if twice := [name for name in names if names.count(name) > 1 or name in _OWN]:
            raise WrongUse(f"two members of the result would be called {twice[0]}")
        name_of(self.time)
        try:
            return SinkOptions.parse({**self.options, "topic": self.dest})
        except BadOption as error:
            raise WrongUse(str(error)) from None

    def arguments(self) -> dict[str, str]:
        """What the results depend on, by name."""
        figures = {
            name: " ".join(path for function, path in self.figures if function == name)
            for name in FUNCTIONS
        }
        return figures | {
            "source": self.source,
            "dest": self.dest,
            "window": self.window,
            "by": " ".join(self.by),
            "time": self.time,
            "watermark": self.watermark,
            "mode": self.mode,
            "numbers": NUMBER,  # of the state in the checkpoint
        }

    def read(self) -> dict[str, str]:
        """The options of ``format("topics")``."""
        return {
            **self.options,
            "subscribe": self.source,
            "maxOffsetsPerTrigger": str(self.batch_records),
            "failOnDataLoss": "false" if self.allow_loss else "true",
        }


_OWN = ("window_start", "window_end", "count")


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSummary:
    """What a run appended."""

    source: str
    dest: str
    batches: int
    appended: Appended
    left_out: LeftOut
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether the server's count of the destination agrees."""
        return self.appended.agrees

    def text(self) -> str:
        """For a terminal."""
        lines = [
            (
                f'{self.appended.records:,} results of topic "{self.source}" into topic'
                f' "{self.dest}" in {self.seconds:.1f} s, {self.batches:,} batches'
            )
        ]
        if self.left_out.late:
            lines.append(
                f"{self.left_out.late:,} rows or more came later than the watermark and are in no"
                " result; --watermark allows for later ones, in a new job"
            )
        if self.left_out.no_time:
            lines.append(
                f"{self.left_out.no_time:,} records have no such time and are in no result"
            )
        if self.left_out.no_number:
            lines.append(
                f"{self.left_out.no_number:,} values are no numbers of 20 digits and are in no"
                " figure"
            )
        return "\n".join([*lines, self.appended.text()])


def name_of(path: str) -> str:
    """The name of a field in the result: its last member. Raises `WrongUse`."""
    if path in COLUMNS:
        return path
    members = path.removeprefix("data.").split(".")
    if not path.startswith("data.") or not all(members) or "'" in path:
        raise WrongUse(f"{path!r} is no field; name data.MEMBER, or one of: {', '.join(COLUMNS)}")
    return members[-1]


def text_of(path: str) -> Column:
    """The value of a field as text."""
    from pyspark.sql import functions as f

    if path in COLUMNS:
        return f.col(path)
    members = "".join(f"['{member}']" for member in path.removeprefix("data.").split("."))
    return f.get_json_object("value", f"${members}")


def time_of(path: str) -> Column:
    """The value of a field as a moment: a timestamp as text, else ms since 1970 as a number."""
    from pyspark.sql import functions as f

    if path == "timestamp":
        return f.col("timestamp")
    text = text_of(path)
    number = text.try_cast("bigint")
    return f.when(number.isNotNull(), f.timestamp_millis(number)).otherwise(
        text.try_cast("timestamp")
    )


def results(df: DataFrame, job: AggregateJob) -> DataFrame:
    """The results of a stream or a batch of records: window_start, window_end, the groups, count
    and the figures. Records without a time are left out, and values that are no numbers; a stream
    counts both.
    """
    from pyspark.sql import functions as f

    fields = [
        text_of(path).cast("string").alias(f"by_{number}") for number, path in enumerate(job.by)
    ]
    texts = {path: text_of(path).cast("string") for _, path in job.figures}
    values = [
        texts[path].try_cast(NUMBER).alias(f"value_{number}")
        for number, (_, path) in enumerate(job.figures)
    ]
    unread = [
        (text.isNotNull() & text.try_cast(NUMBER).isNull()).cast("int") for text in texts.values()
    ]
    rows = df.select(
        time_of(job.time).alias("at"), *fields, *values, sum(unread, f.lit(0)).alias(NO_NUMBER)
    )
    if df.isStreaming:
        rows = rows.observe(
            LEFT_OUT,
            f.count_if(f.col("at").isNull()).alias(NO_TIME),
            f.sum(NO_NUMBER).alias(NO_NUMBER),
        )
    grouped = rows.withWatermark("at", job.watermark).groupBy(
        f.window("at", job.window), *(f"by_{number}" for number in range(len(job.by)))
    )
    figures = [
        getattr(f, function)(f"value_{number}").alias(f"{function}_{name_of(path)}")
        for number, (function, path) in enumerate(job.figures)
    ]
    counted = grouped.agg(f.count("*").alias("count"), *figures)
    return counted.select(
        f.col("window.start").alias("window_start"),
        f.col("window.end").alias("window_end"),
        *(f.col(f"by_{number}").alias(name_of(path)) for number, path in enumerate(job.by)),
        "count",
        *(quoted(f"{function}_{name_of(path)}") for function, path in job.figures),
    )


def records(df: DataFrame, job: AggregateJob) -> DataFrame:
    """Results as records: ``value``, ``key``."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DecimalType

    json = {**TO_JSON, "timestampFormat": "yyyy-MM-dd'T'HH:mm:ssXXX"}
    groups = ("window_start", *(name_of(path) for path in job.by))
    members = [
        # As a variant, a decimal is written without the zeros at its end.
        f.parse_json(f.col(quoted(field.name)).cast("string")).alias(field.name)
        if isinstance(field.dataType, DecimalType)
        else f.col(quoted(field.name))
        for field in df.schema.fields
    ]
    value = f.to_json(f.struct(*members), json)
    # An array of JSON: no value of a field can look like another group.
    texts = [f.col(quoted(name)) for name in groups[1:]]
    moment = f.to_json(f.struct(f.col("window_start")), json)
    start = f.get_json_object(moment, "$.window_start")
    key = f.to_json(f.array(start, *texts), {"ignoreNullFields": "false"})
    return df.select(value.alias("value"), key.alias("key"))


def aggregate(
    spark: SparkSession, job: AggregateJob, *, progress: TextIO | None = None
) -> AggregateSummary:
    """Aggregate what came since the last run. Raises `JobError` or ``RequestError``."""
    started = time.monotonic()
    sink = job.sink()
    planned(sink.connection, job.source)
    claim(Folder(spark, uri_of(job.checkpoint)), job.arguments())
    open_sink(sink)
    done: list[Appended] = []

    def land(batch: DataFrame, number: int, query: str) -> None:
        scope = f"stream:{query}:{number}"
        done.append(append_rows(records(batch, job), sink, scope, ["key"]))
        if len(done) > 1:
            done[:] = [done[0].and_then(done[1])]
        counts[0] += 1

    counts = [0]
    shown = None
    if progress is not None:
        shown = Progress(progress, None, lambda: sum(each.records for each in done))
    with job_errors(), shown or nullcontext():
        stream = results(read_stream(spark, job.read()), job)
        left_out = run_batches(stream, land, job.checkpoint, job.follow_s, mode=job.mode)
        if shown is not None:
            shown.finish(sum(each.records for each in done))
    return AggregateSummary(
        source=job.source,
        dest=job.dest,
        batches=counts[0],
        appended=done[0] if done else Appended(),
        left_out=left_out,
        seconds=time.monotonic() - started,
    )


def add(commands: Commands) -> None:
    """``topics-spark aggregate SRC DEST CHECKPOINT``."""
    parser = commands.add_parser(
        "aggregate",
        help="windowed counts, sums and averages of a topic, back into a topic",
        description="Count the records of a topic by windows of time and by fields, and append the"
        " results to another topic, what is new with each run. A field is data.MEMBER, or one of"
        f" {', '.join(COLUMNS)}. A result is JSON with window_start, window_end, the fields, count"
        " and the figures; its tag names window and group.",
        epilog=f"CHECKPOINT belongs to the destination and to the arguments that say what is"
        " counted: delete both to begin again."
        f" {ExitCode.sentence()}",
    )
    add_arg = parser.add_argument
    add_arg("source")
    add_arg("dest", help="is made when it is absent")
    add_arg("checkpoint", help="folder of this job, which says how far it has come")
    add_arg("--window", required=True, metavar="INTERVAL", help="such as '1 hour'")
    add_arg("--by", action="append", default=[], metavar="FIELD", help="group also by this")
    for function in FUNCTIONS:
        add_arg(f"--{function}", action="append", default=[], metavar="FIELD", help=_HELP[function])
    add_arg(
        "--time",
        default="timestamp",
        metavar="FIELD",
        help="a timestamp as text or ms since 1970 (default: when the record was written)",
    )
    add_arg(
        "--watermark",
        default=WATERMARK,
        metavar="INTERVAL",
        help="how late a record may come (default: %(default)s)",
    )
    add_arg(
        "--mode",
        choices=MODES,
        default="append",
        help="append: each window once, when it is over; update: with each batch, the last record"
        " of a tag counts (default: %(default)s)",
    )
    add_arg(
        "--batch-records",
        type=positive,
        default=BATCH_RECORDS,
        help="records in a batch at most (default: %(default)s)",
    )
    add_arg("--allow-loss", action="store_true", help="go on when records were evicted unread")
    add_stream(parser)
    add_servers(parser)


_HELP = {
    "sum": "sum of this",
    "avg": "average of this",
    "min": "least of this",
    "max": "greatest of this",
}


def run(options: argparse.Namespace) -> AggregateSummary:
    """Do the job of the command line."""
    figures = [(name, path) for name in FUNCTIONS for path in getattr(options, name)]
    job = AggregateJob(
        source=options.source,
        dest=options.dest,
        checkpoint=options.checkpoint,
        window=options.window,
        options=options_of(options),
        by=tuple(options.by),
        figures=tuple(figures),
        time=options.time,
        watermark=options.watermark,
        mode=options.mode,
        batch_records=options.batch_records,
        follow_s=options.follow,
        allow_loss=options.allow_loss,
    )
    planned(job.sink().connection, job.source)  # a mistake is told before a JVM starts
    uri_of(job.checkpoint)
    with spark_errors():
        spark = local_session(options.cores, "topics-aggregate")
    try:
        return aggregate(spark, job, progress=None if options.quiet else sys.stderr)
    finally:
        spark.stop()
