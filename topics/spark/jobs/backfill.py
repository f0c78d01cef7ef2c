"""Backfill: the rows of Parquet, CSV or JSON files into a topic, read by Spark.

Keys are made of the job, the place of a request in its part of the files, and its records. The job
is named by source and topic, so the same files loaded again append nothing, and of files that have
changed, what differs is appended.
"""

from __future__ import annotations

import argparse
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from topics.errors import ExitCode
from topics.spark.job_errors import WrongPath, spark_errors
from topics.spark.jobs.appending import Appended, append, open_dest
from topics.spark.jobs.arguments import GLOB, MIB, Commands, add_servers, byte_count, positive
from topics.spark.jobs.streams import sink_of
from topics.spark.preflight import check_spark
from topics.spark.rows import records
from topics.spark.session import local_session
from topics.spark.sink.options import DURABILITIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json")
SUFFIXES = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
# A broken line ends the job; the header of every file is compared, not only of the first.
READER = {
    "csv": {"header": "true", "mode": "FAILFAST", "enforceSchema": "false", "escape": '"'},
    "json": {"mode": "FAILFAST", "prefersDecimal": "true"},  # a double would change digits
    "parquet": {},
}


def format_of(source: str) -> str:
    """By suffix, through ``.gz`` and the like; Parquet when the suffix says nothing."""
    found = (SUFFIXES.get(suffix.lower()) for suffix in reversed(Path(source).suffixes))
    return next(filter(None, found), "parquet")


def read(
    spark: SparkSession,
    source: str,
    *,
    form: str | None = None,
    options: dict[str, str] | None = None,
    schema: str | None = None,
    tag: str | None = None,
) -> DataFrame:
    """The rows of ``source``, a path or URI that Spark can read, as rows of the sink. JSON lines
    are taken as they are, unless Spark's JSON reader is asked for by an option or a schema.
    """
    from pyspark.sql import functions as f

    kind = form or format_of(source)
    if kind == "json" and not options and schema is None:
        lines = spark.read.text(source).where(f.col("value").rlike(r"\S"))
        member = f.get_json_object("value", f"$['{tag}']")
        return lines if tag is None else lines.withColumn("key", member)
    given = {name.lower(): value for name, value in (options or {}).items()}
    if kind == "csv" and ".tsv" in source and not {"sep", "delimiter"} & given.keys():
        given["sep"] = "\t"
    defaults = {name: value for name, value in READER[kind].items() if name.lower() not in given}
    reader = spark.read.format(kind).options(**defaults, **given)
    return records((reader if schema is None else reader.schema(schema)).load(source), key=tag)


def add(commands: Commands) -> None:
    """``topics-spark backfill SOURCE TOPIC``."""
    parser = commands.add_parser(
        "backfill",
        help="files into a topic",
        description="Append the rows of Parquet, CSV or JSON files to a topic. The same job run"
        " again appends nothing. Of files that have grown or changed, each part is appended again"
        " from the first request that differs; equal rows at equal places are not, unless another"
        " --job-id says that they are to be. JSON lines are sent as they are, whatever value a line"
        " holds; CSV columns are text, unless --schema or --option inferSchema=true says more; an"
        " empty field is null. A broken line ends the job; what was appended before it stays.",
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
        help="for Spark's reader, such as sep=; or multiLine=true; overrides the job's own",
    )
    add("--schema", metavar="DDL", help="columns and types, such as 'id BIGINT, name STRING'")
    add("--durability", choices=DURABILITIES, help="of the topic; an existing one is changed")
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
    add("--job-id", help="name of the job for idempotency (default: made of source and topic)")
    add("--tag-column", help="column, or member of JSON lines, whose value becomes the tag")
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


def run(options: argparse.Namespace) -> Appended:
    """Do the job."""
    source, is_local = options.source, "://" not in options.source
    # Everything that needs no JVM comes first; PySpark alone takes a second to load.
    if is_local and not GLOB.search(source) and not Path(source).exists():
        raise WrongPath(f"{source}: no such file or directory")
    source = str(Path(source).resolve()) if is_local else source
    more = {"node": options.node, "durability": options.durability}
    sink = sink_of(
        options,
        options.topic,
        batchRecords=str(options.batch_records),
        batchBytes=str(options.batch_bytes),
        **{name: text for name, text in more.items() if text is not None},
    )
    check_spark()
    open_dest(sink, change=True)
    named = repr((source, options.topic)).encode()
    job = options.job_id or blake2b(named, digest_size=8).hexdigest()
    with spark_errors():
        spark = local_session(options.cores, "topics-backfill", partitions=options.partitions)
    try:
        with spark_errors():
            df = read(
                spark,
                source,
                form=options.format,
                options=dict(options.option),
                schema=options.schema,
                tag=options.tag_column,
            )
        return append(df, sink, f"batch:{job}", quiet=options.quiet)
    finally:
        spark.stop()
