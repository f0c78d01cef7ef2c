"""Errors of a job: one line, whatever Spark, its executors or the JVM report."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from topics.errors import ExitCode

P = ParamSpec("P")
T = TypeVar("T")
# What our own code raises in an executor; Spark wraps it in pages of text.
OURS = (
    "DataLost: ",
    "BadOffset: ",
    "ServerError: ",
    "RequestError: ",
    "BadOption: ",
    "BadColumns: ",
    "BadRow: ",
    "JobError: ",
)
_FILE = re.compile(r"while reading file (\S+?)\.?(?:\s|$)")
_RECORD = re.compile(r"Malformed (?:CSV|JSON) record: (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_FAILFAST = "MALFORMED_RECORD_IN_PARSING"


class JobError(Exception):
    """The job did not finish. The text is one line: the refusal or the broken line, if there is
    one. ``code``: how the program ends.
    """

    code = ExitCode.FAILED


class UsageError(JobError):
    """The arguments are invalid, or a path does not exist or is not readable by the job."""

    code = ExitCode.USAGE


def write_stderr(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    """Write a warning to the stderr of the executor or driver."""
    write_stderr(f"topics: warning: {text}")


def without_traceback(function: Callable[P, T]) -> Callable[P, T]:
    """Remove the traceback from our own errors that ``function`` raises. Spark shows the traceback
    before the message, so this places the message near the top of Spark's error.
    """

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        except Exception as error:
            if f"{type(error).__name__}: " not in OURS:
                raise
            raise error.with_traceback(None) from None

    return call


@contextmanager
def spark_errors() -> Iterator[None]:
    """Whatever Spark or its JVM reports, as a ``JobError`` of one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise JobError(last_line(error)) from error


def last_line(error: BaseException) -> str:
    """The line that says most: our refusal in Spark's text, a broken record, else the first."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for mark in OURS:
        if ours := [line.split(mark, 1)[1] for line in lines if mark in line]:
            return ours[-1]
    if _FAILFAST in text:
        return _broken_record(text)
    causes = [line for line in lines if line.startswith("Caused by: ")]
    if causes and (file := _FILE.search(text)):
        return f"{_path(file)}: {causes[-1].removeprefix('Caused by: ')}"
    if lines and lines[0].startswith("An error occurred while calling ") and len(lines) > 1:
        return lines[1].removeprefix(": ")
    return lines[0] if lines else type(error).__name__


def _broken_record(text: str) -> str:
    """File and record, as far as Spark tells them."""
    file, record = _FILE.search(text), _RECORD.search(text)
    where = _path(file) if file else "the source"
    return f"{where} holds a broken record" + (f": {record.group(1)!r}" if record else "")


def _path(file: re.Match[str]) -> str:
    return re.sub("^file:/+", "/", file.group(1))
