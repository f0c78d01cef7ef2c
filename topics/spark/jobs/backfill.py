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
from urllib.parse import unquote

from topics.errors import ExitCode
from topics.spark.job_errors import JobError, UsageError, spark_errors, warn
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
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tgz", ".xz")  # Spark would read their bytes as rows
SHOWN_FILES = 5
# A broken record ends the job; the header of every file is compared, not only of the first. Without
# multiLine, Spark divides a quoted field that contains a line break into two records.
READER = {
    "csv": {
        "header": "true",
        "mode": "FAILFAST",
        "enforceSchema": "false",
        "escape": '"',
        "multiLine": "true",
    },
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
    partitioned: bool = False,
) -> DataFrame:
    """Return the rows of ``source``, a path or URI that Spark can read, as rows of the sink. JSON
    lines are sent as they are, unless an option, a schema or partition columns require Spark's JSON
    reader. ``partitioned``: folders such as ``date=2026-01-31`` are columns.

    Raises `UsageError` if Spark reads no file or no record has the tag, and `JobError` for bytes
    that are not UTF-8.
    """
    from pyspark.sql import functions as f

    kind = form or format_of(source)
    given = {name.lower(): value for name, value in (options or {}).items()}
    # With the recursive lookup, Spark reads subfolders and makes no columns of their names.
    lookup = {"recursivefilelookup": str(not partitioned).lower()}
    if kind == "json" and not given and schema is None and not partitioned:
        lines = spark.read.options(**lookup).text(source).where(f.col("value").rlike(r"\S"))
        _check_files(lines, source)
        if tag is None:
            return lines
        lines = lines.withColumn("key", f.get_json_object("value", f"$['{tag}']"))
        if lines.where("key IS NOT NULL").isEmpty() and not lines.isEmpty():
            raise UsageError(f'--tag-column: no record of {source} has a member "{tag}"')
        return lines
    given = lookup | given
    if kind == "csv" and ".tsv" in source and not {"sep", "delimiter"} & given.keys():
        given["sep"] = "\t"
    defaults = {name: value for name, value in READER[kind].items() if name.lower() not in given}
    if kind != "parquet" and not {"encoding", "charset"} & given.keys():
        _check_utf8(spark, source, lookup)
    reader = spark.read.format(kind).options(**defaults, **given)
    rows = (reader if schema is None else reader.schema(schema)).load(source)
    _check_files(rows, source)
    if tag is not None and tag not in rows.columns:
        raise UsageError(f'--tag-column: there is no column "{tag}": {", ".join(rows.columns)}')
    return records(rows, key=tag)


def _check_utf8(spark: SparkSession, source: str, lookup: dict[str, str]) -> None:
    """Raise `JobError` for a file that is not UTF-8: Spark would replace its characters."""
    from pyspark.sql import functions as f

    lines = spark.read.options(**lookup).text(source).where("NOT is_valid_utf8(value)")
    if wrong := lines.select(f.col("_metadata.file_path")).head():
        raise JobError(
            f"{wrong[0].removeprefix('file://')}: it is not UTF-8; name its encoding, for example"
            " --option encoding=ISO-8859-1"
        )


def _check_files(rows: DataFrame, source: str) -> None:
    """Name the files that Spark does not read. Raise `UsageError` if it reads none."""
    taken = {unquote(uri.removeprefix("file://")) for uri in rows.inputFiles()}
    if not taken:
        raise UsageError(
            f"{source}: Spark reads no file of it; it skips names with _ or . in front"
        )
    if "://" in source or not Path(source).is_dir():
        return
    files = (path for path in Path(source).rglob("*") if path.is_file() and path.stat().st_size)
    skipped = sorted(
        str(path) for path in files if path.suffix != ".crc" and str(path) not in taken
    )
    if skipped:
        more = f" and {len(skipped) - SHOWN_FILES:,} more" if len(skipped) > SHOWN_FILES else ""
        warn(f"Spark does not read {', '.join(skipped[:SHOWN_FILES])}{more}")


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
        " empty field is null. Text that is not UTF-8 is refused unless --option encoding names its"
        " encoding. A broken record ends the job; what was appended before it stays. Subfolders are"
        " read. No file or no record is an error.",
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
        help="for Spark's reader, such as sep=; or multiLine=false; overrides the job's own",
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
    add(
        "--partition-columns",
        action="store_true",
        help="folders such as date=2026-01-31 are columns (default: their names are ignored)",
    )
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
        raise UsageError(f"{source}: no such file or directory")
    if source.lower().endswith(ARCHIVES):
        raise UsageError(f"{source}: Spark cannot read this kind of archive; unpack it first")
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
                partitioned=options.partition_columns,
            )
        done = append(df, sink, f"batch:{job}", quiet=options.quiet)
        if not done.records:
            raise UsageError(f"{source}: it has no records")
        return done
    finally:
        spark.stop()
