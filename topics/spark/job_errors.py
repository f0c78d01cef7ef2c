"""Job errors: converts each error from Spark, its executors or the JVM to one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
# This package's own errors in an executor. Spark adds pages of text to them.
OURS = (
    *("DataLost", "BadOffset", "ServerError", "RequestError"),
    *("BadOption", "BadColumns", "BadRow", "JobError"),
)
# The source's advice, and the advice that replaces it in job errors.
LOSS_ADVICE = "set failOnDataLoss=false to continue without them"
JOB_LOSS_ADVICE = "add --allow-loss to continue without them"
# The jars with Hadoop's file systems, by package name.
JARS = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
    "azurebfs": "org.apache.hadoop:hadoop-azure",
    "azure": "org.apache.hadoop:hadoop-azure",
    "adl": "org.apache.hadoop:hadoop-azure-datalake",
}
_NO_CLASS = re.compile(r"Class (org\.apache\.hadoop\.fs\.(\w+)\.\S+) not found")
_NO_SCHEME = re.compile(r'No FileSystem for scheme "(.+?)"')
_NO_PATH = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (\S+?)\.? ")
_NO_FOLDER = re.compile(r"Mkdirs failed to create (\S+)")
_USAGE = re.compile(f"BadOption: |{_NO_SCHEME.pattern}|{_NO_PATH.pattern}|{_NO_FOLDER.pattern}")
_FILE = re.compile(r"while reading file (\S+?)\.?(?:\s|$)")
_RECORD = re.compile(r"Malformed (?:CSV|JSON) record: (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_FAILFAST = "MALFORMED_RECORD_IN_PARSING"


class JobError(Exception):
    """A job failed. The text is one line."""


class UsageError(JobError):
    """The arguments are invalid, or a path does not exist or cannot be used by the job."""


def write_stderr(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    """Write a warning to the stderr of the executor or driver."""
    write_stderr(f"topics: warning: {text}")


def without_traceback(function: Callable[P, T]) -> Callable[P, T]:
    """Remove the traceback from this package's errors that ``function`` raises. Spark shows the
    traceback before the message, so this moves the message near the top of Spark's error.
    """

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        except Exception as error:
            if type(error).__name__ not in OURS:
                raise
            raise error.with_traceback(None) from None

    return call


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise errors from Spark and its JVM as a one-line `JobError`. Advice about an option of the
    source is replaced with advice about the job's argument.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        kind = UsageError if _USAGE.search(str(error)) else JobError
        raise kind(last_line(error).replace(LOSS_ADVICE, JOB_LOSS_ADVICE)) from error


def last_line(error: BaseException) -> str:
    """Return the most informative line: an error from this package in Spark's text, a path or a
    record that Spark cannot use, or otherwise the first line.
    """
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for name in OURS:
        if ours := [line.split(f"{name}: ", 1)[1] for line in lines if f"{name}: " in line]:
            return ours[-1]
    if found := _NO_CLASS.search(text):
        jar = JARS.get(found.group(2), "of this file system")
        return (
            f"Spark has no class {found.group(1)}: add the jar {jar}, for example by"
            f" PYSPARK_SUBMIT_ARGS='--packages {jar}:VERSION pyspark-shell'"
        )
    if found := _NO_SCHEME.search(text):
        advice = "use s3a://" if found.group(1) == "s3" else "add the jar of this file system"
        return f"Spark has no file system for {found.group(1)}://: {advice}"
    if found := _NO_PATH.search(text):
        return f"{_path(found)}: no such file or directory"
    if found := _NO_FOLDER.search(text):
        return f"{_path(found)}: the folder cannot be created"
    if _FAILFAST in text:
        return _broken_record(text)
    causes = [line for line in lines if line.startswith("Caused by: ")]
    if causes and (file := _FILE.search(text)):
        return f"{_path(file)}: {causes[-1].removeprefix('Caused by: ')}"
    if lines and lines[0].startswith("An error occurred while calling ") and len(lines) > 1:
        return lines[1].removeprefix(": ")
    return lines[0] if lines else type(error).__name__


def _broken_record(text: str) -> str:
    """Return the file and the record, if Spark reports them."""
    file, record = _FILE.search(text), _RECORD.search(text)
    where = _path(file) if file else "the source"
    return f"{where}: broken record" + (f": {record.group(1)!r}" if record else "")


def _path(found: re.Match[str]) -> str:
    return re.sub("^file:/+", "/", found.group(1))
