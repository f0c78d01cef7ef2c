"""Backfill: the rows of Parquet, CSV or JSON files into a topic, by one of two engines.

The plain engine (topics/spark/plain) reads one local file in this process, the Spark engine
everything that Spark reads. Both append the same records. ``auto`` takes the plain one for a file
of at most `PLAIN_MAX_BYTES` that it reads exactly as Spark does; what it depends on is the file and
the options alone, so a job that is run again gets the same engine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from topics.errors import ExitCode
from topics.spark.client.http import Target
from topics.spark.errors import JobError
from topics.spark.jobs.arguments import Commands, add_servers, target_of
from topics.spark.main import add_rows, load
from topics.spark.plain.files import read_plain
from topics.spark.plain.rows import NotPlain, Rows
from topics.spark.plain.send import send
from topics.spark.preflight import check_server, check_source
from topics.spark.summary import Summary

PLAIN_MAX_BYTES = 64 << 20


def add(commands: Commands) -> None:
    """``topics-spark backfill SOURCE TOPIC``."""
    parser = commands.add_parser(
        "backfill",
        help="files into a topic",
        description="Append the rows of Parquet, CSV or JSON files to a topic. The same job run"
        " again appends nothing; of JSON lines that have grown, in a topic of their own, the engine"
        " python appends the new ones. Any other file that has changed is another job: all its rows"
        " are appended. JSON lines are sent as they are; a CSV column is numbers when all its"
        " values are JSON numbers, else text. A broken line refuses the job before the first"
        " record.",
        epilog=ExitCode.sentence(),
    )
    add_rows(parser)
    parser.add_argument(
        "--engine",
        choices=("auto", "spark", "python"),
        default="auto",
        help="python loads one local file without a JVM, in the order of its lines; auto takes it"
        f" for a file of {PLAIN_MAX_BYTES >> 20} MiB at most that it reads as Spark does. The"
        " engines append the same records in other batches: finish a job with the engine that"
        " began it (default: %(default)s)",
    )
    add_servers(parser)


def run(options: argparse.Namespace) -> Summary:
    """Do the job."""
    target = target_of(options, options.topic)
    if options.engine == "spark":
        return load(options, target)
    check_source(options.source)
    check_server(target, options.topic, options.durability)
    source = options.source if "://" in options.source else str(Path(options.source).resolve())
    try:
        if options.engine == "auto":
            check_size(source)
        rows = read_plain(source, options.format, dict(options.option), options.tag_column)
    except NotPlain as reason:
        if options.engine == "auto":
            return load(options, target)
        raise JobError(f"{source}: the engine python cannot load it: {reason}") from None
    return load_plain(options, target, source, rows)


def check_size(source: str) -> None:
    """Raises ``NotPlain`` for a file that is left to Spark for its size."""
    path = Path(source)
    if path.is_file() and path.stat().st_size > PLAIN_MAX_BYTES:
        raise NotPlain("a large file")


def load_plain(options: argparse.Namespace, target: Target, source: str, rows: Rows) -> Summary:
    """Send the rows that the plain engine has read."""
    return send(
        rows,
        options.topic,
        target=target,
        source=source,
        job_id=options.job_id,
        durability=options.durability,
        node=options.node,
        batch_records=options.batch_records,
        batch_bytes=options.batch_bytes,
        progress=None if options.quiet else sys.stderr,
    )
