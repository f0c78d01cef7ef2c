"""Topics in Spark: a source, a sink, and jobs that load, archive, replay and compact topics.

    interface.py   names, defaults and meanings of options and columns
    source/        format("topics"): batch and streaming reads
    sink/          format("topics"): batch and streaming writes
    client/        requests to several servers
    jobs/          the jobs that the command topics-spark runs
    discovery/     the module through which Spark finds the format
    session.py     the Spark session for a job, and the check for Java before a JVM starts
    rows.py        converts rows with any columns to rows for the sink
    progress.py    shows the progress of a job on a terminal
    job_errors.py  converts errors to one line

Spark's driver and executors import this package; the server does not. This module imports neither
PySpark nor PyArrow.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from topics.spark.rows import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = ["data_source", "records", "register"]


def register(spark: SparkSession) -> None:
    """Register ``format("topics")`` in the session. Repeated calls have no effect. Spark finds the
    format automatically if the package is installed from a wheel.
    """
    from pyspark.errors import AnalysisException

    # Spark 4.3 does not pass an archive given with --py-files to the process that plans a stream on
    # the driver. A Spark Connect session has no ``sparkContext``.
    root = Path(__file__).absolute().parents[2]
    if root.is_file() and (context := getattr(spark, "sparkContext", None)) is not None:
        context.environment.setdefault("PYTHONPATH", str(root))
    try:
        spark.dataSource.register(data_source())
    except AnalysisException as error:
        # Spark keeps a format that it has found automatically.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def data_source() -> type[DataSource]:
    """Return the class of the format. Raises ModuleNotFoundError if a dependency is missing."""
    # The module is imported by name, because a package must not import its subpackages.
    found: type[DataSource] = import_module("topics.spark.source.data_source").TopicsDataSource
    return found
