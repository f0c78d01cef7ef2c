"""Progress of a long start: how far it is, several times a second.

The supervisor kills a process that shows no sign of life, so every loop of a start that may take
longer than 0.1 s runs over `StartProgress.over` or calls `StartProgress.beat`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ITEMS = 512  # small steps between two reports: well below 0.1 s
Item = TypeVar("Item")


class StartProgress:
    """Calls ``report`` with the share done, 0.0 to 1.0, also while it does not grow."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self.share = 0.0

    def tell(self, share: float) -> None:
        """Report that ``share`` is done."""
        self.share = share
        self._report(share)

    def beat(self) -> None:
        """Report the same share again: the start goes on."""
        self._report(self.share)

    def over(self, items: Iterable[Item], every: int = ITEMS) -> Iterator[Item]:
        """The items, with a report after each ``every`` of them."""
        for count, item in enumerate(items, 1):
            if not count % every:
                self.beat()
            yield item
