"""The session of a job: local, or that of the cluster which spark-submit hands over.

A local session finds this interpreter and this package. On a cluster, master, memory, cores and
the interpreter of the executors are what was submitted; the package comes with it, by --py-files
or in the executors' environment.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from topics.spark.preflight import check_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHUFFLES = 8  # partitions behind a shuffle; a checkpoint keeps the number that it began with
# What the records that a job makes depend on, wherever it runs.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",  # timestamps must not render by the machine's zone
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.caseSensitive": "true",  # a and A are two columns
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",  # Java stacks; what matters of them is in our one line
}
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).resolve().parents[2]),
}


def is_submitted() -> bool:
    """Whether a master is given: spark-submit runs this process, or PYSPARK_SUBMIT_ARGS has one."""
    given = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    return "PYSPARK_GATEWAY_PORT" in os.environ or "--master" in given


def session(*, cores: int = 2, partitions: int = 8, name: str = "topics") -> SparkSession:
    """A session whose tasks are retried: with the master that is given, else a local one of
    ``cores``.

    ``partitions`` fixes how files are split, so that the number of cores has no part in the keys.
    Raises ``JobError`` without a Java that Spark can run on.
    """
    check_spark()
    from pyspark.sql import SparkSession

    settings = {**SETTINGS, "spark.sql.files.minPartitionNum": str(partitions)}
    if not is_submitted():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # local[N] alone never retries a task; the 4 is the number of attempts.
        settings |= LOCAL | {"spark.master": f"local[{cores},4]"}
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def local_session(cores: int, name: str, partitions: int = 8) -> SparkSession:
    """The session of one job that ends by SIGTERM as by Ctrl-C. Raises as `session`."""
    quiet_pyspark()
    # An operator stops a service by SIGTERM; a job that follows ends then as by Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    spark = session(cores=cores, partitions=partitions, name=name)
    spark.conf.set("spark.sql.shuffle.partitions", str(SHUFFLES))
    return spark


def quiet_pyspark() -> None:
    """Keep PySpark's own messages off the user's terminal: our one line has what matters."""
    # pandas may be installed; nothing here uses it.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    # It prints a plan and a Java stack, in JSON, for a misspelt column.
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    # Py4J logs the stacks of a Ctrl-C, then raises what it logged; one line of ours follows.
    logging.getLogger().addFilter(lambda record: "while sending command" not in record.getMessage())
