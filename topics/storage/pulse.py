"""Signs of life of a long start, and how far it is: whoever watches must not take it for one that
hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ITEMS = 512  # small steps between two signs of life: well below 0.1 s
Item = TypeVar("Item")


class Pulse:
    """``report`` is called with the share done, 0.0 to 1.0, several times a second, also while that
    does not grow.
    """

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self.share = 0.0

    def tell(self, share: float) -> None:
        """So much is done."""
        self.share = share
        self._report(share)

    def beat(self) -> None:
        """It goes on."""
        self._report(self.share)

    def over(self, items: Iterable[Item], every: int = ITEMS) -> Iterator[Item]:
        """The items, with a sign of life after each ``every`` of them."""
        for count, item in enumerate(items, 1):
            if not count % every:
                self.beat()
            yield item
