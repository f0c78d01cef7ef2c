"""Ledger: what a restart knows of the jobs of a queue."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from topics.formats.ranges import SeqRun


class JobState(IntEnum):
    """Of a job. Written to disk: never renumber, only add."""

    HELD = 1
    FREE = 2
    DYING = 3


class JobRow(NamedTuple):
    """One job. ``until_ts`` (wall ms): its deadline, or from when on it is claimable."""

    state: JobState
    until_ts: int
    number: int
    deliveries: int
    node: str


class Ledger:
    """The jobs of one queue."""

    def __init__(self) -> None:
        self.rows: dict[int, JobRow] = {}
        self.delays: dict[int, int] = {}
        self.dead_lettered = 0

    def cut(self, start_seq: int) -> None:
        """No record below ``start_seq`` lives."""
        for listed in (self.rows, self.delays):
            for seq in [seq for seq in listed if seq < start_seq]:
                del listed[seq]

    def forget_runs(self, runs: Iterable[SeqRun]) -> None:
        """No record of these runs lives."""
        for first, length in runs:
            for listed in (self.rows, self.delays):
                for seq in [seq for seq in listed if first <= seq < first + length]:
                    del listed[seq]
