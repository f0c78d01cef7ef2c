"""Process ids: identify the processes of a server, such as ``front 0`` and ``shard 3``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ProcessKind(IntEnum):
    """The kinds of processes that share memory. Their order is the order of ids."""

    FRONT = 0
    SHARD = 1


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """One process, across all its restarts. Ids are ordered: the front, then the shards."""

    kind: ProcessKind
    index: int

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} {self.index}"

    @property
    def session_name(self) -> str:
        """The name of a message router's session with this process: ``front-0``, ``shard-3``."""
        return f"{self.kind.name.lower()}-{self.index}"


FRONT: Final = ProcessId(ProcessKind.FRONT, 0)


def shard_id(index: int) -> ProcessId:
    """Return the id of shard ``index``."""
    return ProcessId(ProcessKind.SHARD, index)
