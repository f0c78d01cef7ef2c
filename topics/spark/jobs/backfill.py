"""Backfill: appends the rows of Parquet, CSV or JSON files, which Spark reads, to a topic.

The idempotency key of a request consists of the job, the position of the request in its partition
of the files, and its records. By default, the job's name consists of the source and the topic.
Therefore loading the same files again appends nothing, and if files have changed, only the requests
that differ are appended.
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
from topics.spark.jobs.arguments import GLOB, Commands, add_common, byte_count, positive, sink_of
from topics.spark.rows import records
from topics.spark.session import check_spark, local_session
from topics.spark.sink.options import DURABILITIES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json")
SUFFIXES = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tgz", ".xz")  # Spark would read their bytes as text
SHOWN_FILES = 5
# A broken record fails the job. The header of every file is compared, not only the first one.
# Without multiLine, Spark divides a quoted field that contains a line break into two records.
READER = {
    "csv": {
        "header": "true",
        "mode": "FAILFAST",
        "enforceSchema": "false",
        "escape": '"',
        "multiLine": "true",
    },
    "json": {"mode": "FAILFAST", "prefersDecimal": "true"},  # a double could change digits
    "parquet": {},
}


def format_of(source: str) -> str:
    """Return the format of the last known suffix. The default is Parquet."""
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
    lines are sent unchanged, unless an option, a schema or partition columns require Spark's JSON
    reader. If ``partitioned`` is true, folders such as ``date=2026-01-31`` become columns.

    Raises `UsageError` if Spark reads no file or no record has the tag, and `JobError` for bytes
    that are not UTF-8.
    """
    from pyspark.sql import functions as f

    kind = form or format_of(source)
    given = {name.lower(): value for name, value in (options or {}).items()}
    # With the recursive lookup, Spark reads subfolders and creates no columns from their names.
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
    """Raise `JobError` for a file that is not UTF-8, because Spark would replace its characters."""
    from pyspark.sql import functions as f

    lines = spark.read.options(**lookup).text(source).where("NOT is_valid_utf8(value)")
    if wrong := lines.select(f.col("_metadata.file_path")).head():
        raise JobError(
            f"{wrong[0].removeprefix('file://')}: it is not UTF-8; name its encoding, for example"
            " --option encoding=ISO-8859-1"
        )


def _check_files(rows: DataFrame, source: str) -> None:
    """Warn about files that Spark does not read. Raise `UsageError` if it reads none."""
    taken = {unquote(uri.removeprefix("file://")) for uri in rows.inputFiles()}
    if not taken:
        raise UsageError(
            f"{source}: Spark reads no file of it; it skips names that begin with _ or ."
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
        help="append the rows of files to a topic",
        description="Append the rows of Parquet, CSV or JSON files to a topic. The same job run"
        " again appends nothing. If files have changed, each partition is appended again from the"
        " first request that differs. Use a different --job-id to append equal rows again. JSON"
        " lines are sent unchanged. CSV columns are text unless --schema or --option"
        " inferSchema=true defines types, and an empty field is null. Text must be UTF-8 unless"
        " --option encoding specifies a different one. A broken record ends the job; records that"
        " were appended before remain. Subfolders are read. It is an error if there is no file or"
        " no record.",
        epilog="'topics append -f FILE' loads files on this machine without Spark."
        f" {ExitCode.summary()}",
    )
    add = parser.add_argument
    add("source", help="file, directory or URI that Spark can read")
    add("topic", help="created if it does not exist")
    add("--format", choices=FORMATS, help="format of the files (default: from the suffix)")
    add(
        "--option",
        type=pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of Spark's reader, such as sep=; or multiLine=false; replaces the job's value",
    )
    add("--schema", metavar="DDL", help="columns and types, such as 'id BIGINT, name STRING'")
    add(
        "--durability",
        choices=DURABILITIES,
        help="durability of the topic, even of an existing one",
    )
    add(
        "--batch-records",
        type=positive,
        default=5000,
        help="maximum number of records in a request (default: %(default)s)",
    )
    add(
        "--batch-bytes",
        type=byte_count,
        default="4MiB",
        help="maximum size of a request, such as 512KiB (default: %(default)s)",
    )
    add("--job-id", help="name of the job for idempotency (default: from source and topic)")
    add("--tag-column", help="column, or member of JSON lines, whose value is the tag")
    add(
        "--partition-columns",
        action="store_true",
        help="read folders such as date=2026-01-31 as columns (default: ignore their names)",
    )
    add("--node", help="origin node of the records, which readers with the same node skip")
    add(
        "--partitions",
        type=positive,
        default=8,
        help="minimum number of partitions of the files (default: %(default)s)",
    )
    add_common(parser)


def pair(text: str) -> tuple[str, str]:
    """Parse ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError("must be KEY=VALUE")
    return key, value


def run(options: argparse.Namespace) -> Appended:
    """Run the job that the command line specifies."""
    source, is_local = options.source, "://" not in options.source
    # Run the checks that need no JVM first, because even loading PySpark takes a second.
    if is_local and not GLOB.search(source) and not Path(source).exists():
        raise UsageError(f"{source}: no such file or directory")
    if source.lower().endswith(ARCHIVES):
        raise UsageError(f"{source}: Spark cannot read this kind of archive; unpack it first")
    source = str(Path(source).resolve()) if is_local else source
    sink = sink_of(
        options,
        options.topic,
        batchRecords=str(options.batch_records),
        batchBytes=str(options.batch_bytes),
        node=options.node,
        durability=options.durability,
    )
    check_spark()
    open_dest(sink)
    named = repr((source, options.topic)).encode()
    job = options.job_id or blake2b(named, digest_size=8).hexdigest()
    with local_session(options.cores, "topics-backfill", options.partitions) as spark:
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
