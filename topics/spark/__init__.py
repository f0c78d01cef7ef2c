"""Spark and topics: topics as a source and a sink, and jobs that load and archive them.

    source/        format("topics"): batch and streaming reads
    sink/          format("topics"): batch and streaming writes
    jobs/          jobs as functions, and the command line topics-spark
    discovery/     what Spark finds by itself in an installation
    session.py     the session of a job
    preflight.py   Java, asked for before a JVM starts
    rows.py        rows of any columns to rows of the sink
    progress.py    the progress of a job, on a terminal
    job_errors.py  one line, whatever Spark reports

Only executors and the driver of a job load this; the server never does. This module imports neither
PySpark nor PyArrow.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from topics.spark.rows import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = ["data_source", "discovered", "records", "register"]


def register(spark: SparkSession) -> None:
    """Let ``spark`` know ``format("topics")``. May be called again, and is not needed where a wheel
    is installed: Spark finds the format there by itself.
    """
    from pyspark.errors import AnalysisException

    # Spark 4.3 does not show an archive of --py-files to the process in which the driver plans a
    # stream. A session of Spark Connect has no context.
    root = Path(__file__).absolute().parents[2]
    if root.is_file() and (context := getattr(spark, "sparkContext", None)) is not None:
        context.environment.setdefault("PYTHONPATH", str(root))
    try:
        spark.dataSource.register(data_source())
    except AnalysisException as error:
        # Spark has found the format by itself, and keeps what it has found.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def data_source() -> type[DataSource]:
    """The class of the format. Raises ModuleNotFoundError where a dependency is missing."""
    # By name: this package stands below it.
    found: type[DataSource] = import_module("topics.spark.source.data_source").TopicsDataSource
    return found


def discovered() -> type[DataSource]:
    """The class of ``format("topics")``, for the module in which Spark looks for a source.

    Spark gives up on the sources of all packages when one of them raises. So a missing dependency
    is an AttributeError, which means a module without a source, and one line on stderr.
    """
    try:
        return data_source()
    except ModuleNotFoundError as missing:
        sys.stderr.write(
            f'warning: no format("topics"): {missing.name} is not installed: pip install'
            " 'topics-engine[spark]'\n"
        )
        raise AttributeError("DefaultSource") from missing
