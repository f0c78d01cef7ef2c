"""The producer's command line: ``python -m topics.spark SOURCE TOPIC [options]``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from topics.errors import ExitCode
from topics.formats.api.surrogates import has_surrogate
from topics.spark.client.errors import RequestError
from topics.spark.client.http import DEFAULT_URL, Target
from topics.spark.errors import JobError, spark_errors
from topics.spark.local_csv import is_small
from topics.spark.preflight import check_server, check_source, check_spark
from topics.spark.producer import MIB, produce, say, session
from topics.spark.reading import FORMATS, read
from topics.spark.summary import Summary


def parser() -> argparse.ArgumentParser:
    """The command line; ``--help`` is its manual."""
    build = argparse.ArgumentParser(
        prog="python -m topics.spark",
        description="Append the rows of Parquet, CSV or JSON files to a topic. The same job run "
        "again appends nothing. JSON lines are sent as they are; a CSV column is numbers when all "
        "its values are JSON numbers, else text. A broken line refuses the job before the first "
        "record.",
        epilog=f"Environment: TOPICS_URL, TOPICS_API_KEY. {ExitCode.sentence()} A job whose count "
        "differs from the server's has failed.",
    )
    add_rows(build)
    build.add_argument(
        "--url",
        default=os.environ.get("TOPICS_URL", DEFAULT_URL),
        help="of the server (default: %(default)s)",
    )
    build.add_argument(
        "--retries",
        type=positive,
        default=12,
        help="tries after the first for a busy or absent server (default: %(default)s)",
    )
    build.add_argument("--quiet", action="store_true", help="no progress")
    return build


def add_rows(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which rows go where, and how; for ``load``."""
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


def pair(text: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError("must be KEY=VALUE")
    return key, value


def positive(text: str) -> int:
    """An integer from 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be an integer from 1")
    return int(text)


def byte_count(text: str) -> int:
    """``4MiB``, ``512KiB`` or plain bytes."""
    try:
        for unit, factor in (("MiB", MIB), ("KiB", 1024)):
            if text.endswith(unit):
                return positive(text.removesuffix(unit)) * factor
        return positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError("must be like 4MiB, 512KiB or 65536") from None


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Run one job from the command line."""
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    options = parser().parse_args(given)
    if broken := next(filter(has_surrogate, given), None):
        parser().error(f"the argument {broken!r} is not UTF-8")
    try:
        summary = run_job(options)
    except RequestError as error:
        say(f"error: {error}")
        return ExitCode.FAILED
    except JobError as error:
        say(f"error: {error}")
        return error.code
    except KeyboardInterrupt:
        say("interrupted; run the job again, it goes on where it stopped")
        return ExitCode.INTERRUPTED
    sys.stdout.write(summary.text() + "\n")
    return ExitCode.DONE if summary.agrees else ExitCode.FAILED


def run_job(options: argparse.Namespace) -> Summary:
    """The job that the command line asks for."""
    key = os.environ.get("TOPICS_API_KEY")
    return load(options, Target(url=options.url, api_key=key, retries=options.retries))


def load(options: argparse.Namespace, target: Target) -> Summary:
    """The job that the arguments of ``add_rows`` ask for, in a session of its own."""
    source = options.source if "://" in options.source else str(Path(options.source).resolve())
    # Everything that needs no JVM comes first; PySpark alone takes a second to load.
    check_source(source)
    check_server(target, options.topic, options.durability)
    check_spark()
    quiet_pyspark()
    with spark_errors():
        spark = session(cores=options.cores, partitions=options.partitions, brief=is_small(source))
    try:
        df = read(spark, source, options.format, dict(options.option))
        return produce(
            df,
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


def quiet_pyspark() -> None:
    """Keep PySpark's own messages off the user's terminal: our one line has what matters."""
    # pandas may be installed; nothing here uses it.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    # It prints a plan and a Java stack, in JSON, for a misspelt column.
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    # Py4J logs the stacks of a Ctrl-C, then raises what it logged; one line of ours follows.
    logging.getLogger().addFilter(lambda record: "while sending command" not in record.getMessage())
