"""Checkpoint: what the files of a streaming query say about its offsets, read without Spark.

offsets/N    what batch N reads up to: a version, metadata, then one line of JSON per source
commits/N    batch N is done
"""

from __future__ import annotations

import msgspec

from topics.spark.errors import JobError
from topics.spark.jobs.files import Files
from topics.spark.source.offsets import BadOffset, Position, decode

SOURCE_LINE = 2  # of the only source
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
