"""The Spark session for a job: a local session, or a session on the cluster of spark-submit.

A local session uses this interpreter and this package. On a cluster, spark-submit sets the master,
the memory, the cores and the executors' interpreter. The package is submitted with --py-files or
installed in the executors' environment. PySpark and Java are checked before a JVM starts.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from topics.spark.job_errors import JobError, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
JAVA_S = 20.0
INSTALL_JAVA = "Install it (apt install openjdk-17-jre-headless) or set JAVA_HOME"
SHUFFLES = 8  # number of shuffle partitions; a checkpoint keeps the number of its first run
# Settings that affect a job's records, on any machine.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",  # not the time zone of the machine
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.caseSensitive": "true",  # a and A are different columns
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",  # avoids Java stack traces; the job's error line contains the reason
}
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).resolve().parents[2]),
}


def check_spark() -> None:
    """Raise ``JobError`` if PySpark or a suitable Java is not installed."""
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        advice = "pip install 'topics-engine[spark]'"
        raise JobError(f"{' and '.join(missing)} is not installed: {advice}")
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        found = "there is no java on PATH"
    else:
        where = f"{java}{' (from JAVA_HOME)' if home else ''}"
        version = _java_version(java)
        if version is not None and version >= JAVA_MIN:
            return
        found = f"{where} " + ("does not run" if version is None else f"is of version {version}")
    raise JobError(f"Spark needs Java {JAVA_MIN} or newer, and {found}. {INSTALL_JAVA}")


def _java_version(java: str) -> int | None:
    """Return 17 for 17.0.15 and 8 for 1.8.0, or None if the version is unknown."""
    try:
        done = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=JAVA_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found and done.returncode == 0 else None


def is_submitted() -> bool:
    """Return whether spark-submit runs this process, or PYSPARK_SUBMIT_ARGS contains a master."""
    given = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    return "PYSPARK_GATEWAY_PORT" in os.environ or "--master" in given


def session(*, cores: int = 2, partitions: int = 8, name: str = "topics") -> SparkSession:
    """Return a session that retries tasks. Its master is the submitted one, or a local master with
    ``cores`` cores.

    ``partitions`` is the minimum number of partitions into which files are divided. It does not
    depend on the number of cores, so that the idempotency keys do not depend on it either. Raise
    ``JobError`` if Java is not usable.
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


@contextmanager
def local_session(cores: int, name: str, partitions: int = 8) -> Iterator[SparkSession]:
    """Yield the session for one job, and stop it at the end. SIGTERM interrupts the job in the same
    way as Ctrl-C. Raise ``JobError`` if the session cannot be started.
    """
    quiet_pyspark()
    # Service managers stop a service with SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with spark_errors():
        spark = session(cores=cores, partitions=partitions, name=name)
        spark.conf.set("spark.sql.shuffle.partitions", str(SHUFFLES))
    try:
        yield spark
    finally:
        spark.stop()


def quiet_pyspark() -> None:
    """Suppress PySpark's messages, because the job's error line contains the reason."""
    # pandas may be installed, but jobs do not use it.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    # This logger prints a plan and a stack trace, in JSON, for a misspelt column.
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    # After a Ctrl-C, Py4J logs a stack trace and also raises the error.
    logging.getLogger().addFilter(lambda record: "while sending command" not in record.getMessage())
