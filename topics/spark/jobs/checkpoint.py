"""The checkpoint of a streaming job: a folder that belongs to one job.

A file ``job.json`` next to Spark's own files contains the job's arguments by name. The files are
accessed through Spark's JVM, because a checkpoint may be on any file system that Hadoop supports.

Spark writes the offsets of a batch to a temporary file and then renames it. The batch begins with
the rename. If the driver is killed before the rename of the first batch, Spark refuses the
checkpoint whenever the query is started again (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY), although
no batch has begun. `claim` removes such files. It never removes files from a checkpoint in which a
batch has begun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from topics.spark.job_errors import JobError, UsageError
from topics.spark.jobs.arguments import GLOB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "job.json"
LOGS = ("offsets", "commits", "state")  # Spark expects these to be empty at the first batch
TEMPORARY = re.compile(
    r"\..+\.[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp"
)  # the names of Spark's temporary files


def uri_of(directory: str) -> str:
    """Return the URI of a folder in the form that Spark expects, which is unescaped. Raise
    `UsageError` if the path is a file, or if Spark would read it as a pattern.
    """
    if found := GLOB.search(directory):
        raise UsageError(f"{directory}: Spark reads {found.group()} in a path as a pattern")
    if "://" in directory and not directory.startswith("file:"):
        return directory.rstrip("/")
    path = Path(directory.removeprefix("file:").removeprefix("//")).resolve()
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path}: not a folder")
    return f"file://{path}"


class Folder:
    """The files in a folder, by their relative paths."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri = uri
        self._jvm: Any = spark._jvm  # noqa: SLF001
        hadoop = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        self._system: Any = self._path("").getFileSystem(hadoop)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{path}".rstrip("/"))

    def names(self, path: str = "") -> list[str]:
        """Return the sorted names in a folder, or no names if it does not exist."""
        if not self._system.exists(self._path(path)):
            return []
        return sorted(
            each.getPath().getName() for each in self._system.listStatus(self._path(path))
        )

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None if it does not exist."""
        if not self._system.exists(self._path(path)):
            return None
        stream = self._system.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Create or replace a file. If the process is killed, the file is absent or complete."""
        temporary, final = self._path(f"{path}.tmp"), self._path(path)
        stream = self._system.create(temporary, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.remove(path)  # a Hadoop rename does not replace files on every file system
        if not self._system.rename(temporary, final):
            raise JobError(f"{self.uri}/{path}: the file cannot be created")

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        self._system.delete(self._path(path), False)


def claim(checkpoint: Folder, job: Mapping[str, str]) -> None:
    """Assign the checkpoint to this job, and remove the temporary files of a query that was killed
    at its start.

    Raise `JobError` if a query has begun with different arguments. Spark does not compare the
    arguments, and would treat existing results as results of this job.
    """
    _discard_unfinished(checkpoint)
    text = checkpoint.read(JOB)
    if text and checkpoint.names("offsets"):
        try:
            began = msgspec.json.decode(text, type=dict[str, str])
        except msgspec.MsgspecError as error:
            raise JobError(f"{checkpoint.uri}/{JOB}: {error}") from error
        for name in sorted(began.keys() | job.keys()):
            if (one := began.get(name, "")) != (other := job.get(name, "")):
                raise JobError(
                    f"{checkpoint.uri}: the checkpoint belongs to a different job: its {name} is"
                    f" {one!r}, not {other!r}; use another checkpoint and another destination"
                )
        return
    checkpoint.write(JOB, msgspec.json.encode(job, order="sorted").decode())


def _discard_unfinished(checkpoint: Folder) -> None:
    """Remove Spark's temporary files unless a batch has begun."""
    found = [f"{log}/{name}" for log in LOGS for name in checkpoint.names(log)]
    if all(TEMPORARY.fullmatch(Path(path).name) for path in found):
        for path in found:
            checkpoint.remove(path)
