"""Sinks: where the body of a streamed append goes, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from topics.formats.buffers import Buffer


class Sink(Protocol):
    """Takes a body piece by piece. The calls block: they are for a thread."""

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Append to the body."""

    def finish(self) -> None:
        """Make the body durable; it is whole."""

    def abandon(self) -> None:
        """Leave nothing of the body."""


class MemorySink:
    """Keeps the body in memory, for a class that keeps its records there."""

    def __init__(self, body_len: int) -> None:
        self.body = memoryview(bytearray(body_len))
        self._end = 0

    def write(self, pieces: Sequence[Buffer]) -> None:
        """As `Sink.write`."""
        for piece in pieces:
            self.body[self._end : self._end + len(piece)] = piece
            self._end += len(piece)

    def finish(self) -> None:
        """As `Sink.finish`; memory is as durable as it gets."""

    def abandon(self) -> None:
        """As `Sink.abandon`; the memory goes with this object."""
