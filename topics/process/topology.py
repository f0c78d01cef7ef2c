"""Topology: which processes are linked with which, and the shared memory of all these links.

A server links every front with every shard, and all shards among themselves. The links are built
from a list of rules; the board has a session number for any pair of processes, and memory that
nobody touches costs nothing. What a link does cost is two descriptors in the supervisor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from topics.actors.link.board import Board
from topics.actors.link.link_memory import LinkMemory, LinkSizes
from topics.actors.link.process_id import ProcessId, ProcessKind
from topics.config import Settings

DOORBELLS: Final = 2  # of each link
# Without an arena: long attachments go through the ring in pieces.
SHARD_LINK: Final = LinkSizes(ring_bytes=256 << 10, inline_bytes=64 << 10, arena_bytes=0)


@dataclass(frozen=True, slots=True)
class LinkRule:
    """All pairs of these two kinds are linked."""

    kinds: frozenset[ProcessKind]
    sizes: LinkSizes


def fronts_with_shards(settings: Settings) -> LinkRule:
    """The links over which fronts ask shards."""
    return LinkRule(frozenset({ProcessKind.FRONT, ProcessKind.SHARD}), LinkSizes.of(settings))


def shards_with_shards(sizes: LinkSizes = SHARD_LINK) -> LinkRule:
    """The links over which shards ask one another."""
    return LinkRule(frozenset({ProcessKind.SHARD}), sizes)


def descriptors_of(board: Board, rules: Iterable[LinkRule]) -> int:
    """How many descriptors the links of these rules take in the supervisor."""
    return sum(DOORBELLS for rule in rules for _ in _pairs(board, rule))


class Links:
    """The memory of every link of a server. Made by the supervisor before any fork."""

    def __init__(self, board: Board, rules: Iterable[LinkRule]) -> None:
        self._board = board
        self._memories = [
            LinkMemory(one, other, rule.sizes)
            for rule in rules
            for one, other in _pairs(board, rule)
        ]

    def __iter__(self) -> Iterator[LinkMemory]:
        return iter(self._memories)

    def of(self, process: ProcessId) -> list[LinkMemory]:
        """The links that end in ``process``, in the order of their other ends."""
        return [memory for memory in self._memories if process in memory.ends]

    def end_sessions(self, process: ProcessId) -> None:
        """``process`` has died: end the sessions of its links and wake the other ends."""
        for memory in self.of(process):
            self._board.bump_session(*memory.ends)
            memory.ring_doorbells()

    def keep(self, process: ProcessId) -> None:
        """In the child that is ``process``: close the doorbells of all links but its own."""
        for memory in self._memories:
            if process not in memory.ends:
                memory.close()


def _pairs(board: Board, rule: LinkRule) -> Iterator[tuple[ProcessId, ProcessId]]:
    processes = [process for kind in sorted(rule.kinds) for process in board.processes(kind)]
    for one, other in combinations(processes, 2):
        if {one.kind, other.kind} == rule.kinds:
            yield one, other
