"""Backfill: the rows of Parquet, CSV or JSON files into a topic.

    topics-spark backfill SOURCE TOPIC

Spark reads the files, wherever they are. The same job run again appends nothing
(`topics.spark.producer`). Files on this machine go in without Spark by ``topics append -f FILE``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from topics.errors import ExitCode
from topics.spark.client.http import Target
from topics.spark.errors import spark_errors
from topics.spark.jobs.arguments import Commands, add_servers, byte_count, positive, target_of
from topics.spark.local_csv import is_small
from topics.spark.preflight import check_server, check_source, check_spark
from topics.spark.producer import MIB, produce, quiet_pyspark, session
from topics.spark.reading import FORMATS, read
from topics.spark.summary import Summary


def add(commands: Commands) -> None:
    """``topics-spark backfill SOURCE TOPIC``."""
    parser = commands.add_parser(
        "backfill",
        help="files into a topic",
        description="Append the rows of Parquet, CSV or JSON files to a topic. The same job run"
        " again appends nothing; a file that has changed is another job: all its rows are appended."
        " JSON lines are sent as they are; a CSV column is numbers when all its values are JSON"
        " numbers, else text. A broken line refuses the job before the first record.",
        epilog="'topics append -f FILE' loads files of this machine without Spark."
        f" {ExitCode.sentence()}",
    )
    add = parser.add_argument
    add("source", help="file, directory or URI that Spark can read")
    add("topic")
    add("--format", choices=FORMATS, help="default: by the suffix")
    add(
        "--option",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for Spark's reader, such as sep=; or multiLine=true; overrides the producer's own",
    )
    add(
        "--durability",
        choices=("ephemeral", "memory", "disk", "fsync"),
        help="of the topic; an existing one is changed",
    )
    add(
        "--batch-records",
        type=positive,
        default=5000,
        help="records in a request at most (default: %(default)s)",
    )
    add(
        "--batch-bytes",
        type=byte_count,
        default=4 * MIB,
        help="bytes in a request at most, such as 512KiB (default: 4MiB)",
    )
    add(
        "--job-id",
        help="name of the job for idempotency (default: made of source path, schema and rows, "
        "which reads them twice)",
    )
    add(
        "--total",
        type=positive,
        help="how many rows there are, for the progress of a job with --job-id",
    )
    add("--tag-column", help="column whose value becomes the record's tag")
    add("--node", help="origin node of the records; readers with the same node do not get them")
    add(
        "--partitions",
        type=positive,
        default=8,
        help="into how many parts files are split at least (default: %(default)s)",
    )
    add("--cores", type=positive, default=2, help="parts sent at a time (default: %(default)s)")
    add_servers(parser)


def pair(text: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError("must be KEY=VALUE")
    return key, value


def run(options: argparse.Namespace) -> Summary:
    """Do the job."""
    source = options.source if "://" in options.source else str(Path(options.source).resolve())
    # Everything that needs no JVM comes first; PySpark alone takes a second to load.
    check_source(source)
    target = target_of(options, options.topic)
    check_server(target, options.topic, options.durability)
    check_spark()
    return load(options, target, source)


def load(options: argparse.Namespace, target: Target, source: str) -> Summary:
    """Send the rows, in a session of its own."""
    quiet_pyspark()
    with spark_errors():
        spark = session(cores=options.cores, partitions=options.partitions, brief=is_small(source))
    try:
        return produce(
            read(spark, source, options.format, dict(options.option)),
            options.topic,
            target=target,
            job_id=options.job_id,
            source=source,
            durability=options.durability,
            tag_column=options.tag_column,
            node=options.node,
            batch_records=options.batch_records,
            batch_bytes=options.batch_bytes,
            total=options.total,
            progress=None if options.quiet else sys.stderr,
        )
    finally:
        spark.stop()
