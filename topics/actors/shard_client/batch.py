"""A batch of calls: what one turn of a front asks its shards travels together, eight calls or more
in one write to a ring: a shard begins while the front still reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Sender(Protocol):
    """A link."""

    def flush(self) -> None:
        """Publish what was sent."""


class Batch:
    """While it is open, few calls are not flushed; its end does that. ``links``: all of a front.
    What is inside never waits.
    """

    __slots__ = ("_links", "is_open")

    def __init__(self, links: Sequence[Sender]) -> None:
        self._links = links
        self.is_open = False

    def __enter__(self) -> None:
        assert not self.is_open, "a turn is not inside another one"
        self.is_open = True

    def __exit__(self, *_: object) -> None:
        self.is_open = False
        for link in self._links:
            link.flush()
