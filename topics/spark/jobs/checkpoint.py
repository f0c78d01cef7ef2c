"""Checkpoint: what the files of a streaming query say about its offsets, read without Spark; and
which job it is of.

offsets/N    what batch N reads up to: a version, metadata, then one line of JSON per source
commits/N    batch N is done
job.json     the arguments of the job, by name: ours, beside Spark's own files
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topics.spark.errors import JobError
from topics.spark.jobs.files import Files
from topics.spark.source.offsets import BadOffset, Position, decode

SOURCE_LINE = 2  # of the only source
JOB = "job.json"
Positions = dict[tuple[str, str], Position]  # by server and topic


def committed(files: Files, checkpoint: str) -> int | None:
    """The last batch that is done."""
    done = [int(name) for name in files.names(f"{checkpoint}/commits") if name.isdigit()]
    return max(done, default=None)


def positions(files: Files, checkpoint: str, batch: int | None) -> Positions:
    """Where the query is after a batch; nowhere before the first. Raises `JobError`."""
    if batch is None:
        return {}
    path = f"{checkpoint}/offsets/{batch}"
    lines = files.read(path).split("\n")
    try:
        found = decode(msgspec.json.decode(lines[SOURCE_LINE]))
    except (IndexError, msgspec.DecodeError, BadOffset) as error:
        raise JobError(f"{files.uri(path)}: these are no offsets of topics: {error}") from error
    return {(server, topic): at for server, topics in found.items() for topic, at in topics.items()}


def check_job(files: Files, job: Mapping[str, str]) -> None:
    """Raise `JobError` when the query has begun with other arguments. Spark compares none of them:
    it would take what it has counted so far for the results of the other job.
    """
    if not files.names("offsets") or not files.exists(JOB):
        return
    began = msgspec.json.decode(files.read(JOB), type=dict[str, str])
    for name in sorted(began.keys() | job.keys()):
        if (one := began.get(name, "")) != (other := job.get(name, "")):
            raise JobError(
                f"{files.uri('')}: the checkpoint is of another job: its {name} is {one!r}, not"
                f" {other!r}; give another checkpoint and another destination"
            )


def claim(files: Files, job: Mapping[str, str]) -> None:
    """Let the checkpoint be of this job. Raises as `check_job`."""
    check_job(files, job)
    text = msgspec.json.encode(job, order="sorted").decode()
    if not files.exists(JOB) or files.read(JOB) != text:
        files.remove(JOB)
        files.write(JOB, text)
