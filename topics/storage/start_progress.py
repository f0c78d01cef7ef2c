"""Startup progress: reports the completed fraction several times a second.

The supervisor kills a process that reports nothing. Therefore each loop during startup that may
take longer than 0.1 s iterates with `StartProgress.over` or calls `StartProgress.heartbeat`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ITEMS = 512  # items between two reports; processing them takes much less than 0.1 s
Item = TypeVar("Item")


class StartProgress:
    """Calls ``report`` with the completed fraction, 0.0 to 1.0, even if it has not changed."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self.share = 0.0

    def report_share(self, share: float) -> None:
        """Report that the fraction ``share`` is completed."""
        self.share = share
        self._report(share)

    def heartbeat(self) -> None:
        """Report the same fraction again, to show that startup is still running."""
        self._report(self.share)

    def over(self, items: Iterable[Item], every: int = ITEMS) -> Iterator[Item]:
        """Yield the items, and report the progress once per ``every`` items."""
        for count, item in enumerate(items, 1):
            if not count % every:
                self.heartbeat()
            yield item
