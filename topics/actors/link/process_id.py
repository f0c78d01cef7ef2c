"""Process ids: what names a process of the server among the others: ``front 0``, ``shard 3``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ProcessKind(IntEnum):
    """The kinds of processes that share memory. The order is the order of ids."""

    FRONT = 0
    SHARD = 1


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """One process, over all its restarts. Ids are ordered: the front, then the shards."""

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
    """The id of shard ``index``."""
    return ProcessId(ProcessKind.SHARD, index)
