"""Groups of frames on their way from the loop to the writer thread.

A group is what the loop decided in one turn: frames that follow one another in one file. Groups
that wait are taken together, so that one write and one sync serve all of them.
"""

from __future__ import annotations

import math
import queue
import time
from dataclasses import dataclass

from topics.formats.buffers import Buffer
from topics.storage.wal.file import WalFile


@dataclass(slots=True)
class WalGroup:
    """Frames from LSN ``start`` to ``end`` of one file.

    ``era`` counts how often the log went on after `NoRoom`. Without ``pieces`` the group only asks
    for a sync, or tells the writer of what the loop has written. ``may_use_reserve``: for its new
    file.
    """

    era: int
    file: WalFile
    start: int
    end: int
    pieces: list[Buffer]
    sync: bool
    new_file: bool
    may_use_reserve: bool = False


class GroupQueue:
    """The groups that wait for the writer thread, oldest first."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[WalGroup | None] = queue.SimpleQueue()
        self._held: WalGroup | None = None  # taken from the queue; for another file or era

    def put(self, group: WalGroup) -> None:
        """Hand a group to the writer thread."""
        self._queue.put(group)

    def close(self) -> None:
        """No group comes any more: `take` returns None when it has returned the others."""
        self._queue.put(None)

    def take(self, until: float) -> list[WalGroup] | None:
        """All that waits for one file in one era; waits for the first of them.

        Empty at ``until``, on the clock of `time.perf_counter`; None at the end.
        """
        first = self._held
        self._held = None
        if first is None:
            try:
                first = self._queue.get(timeout=_timeout(until))
            except queue.Empty:
                return []
            if first is None:
                return None
        return self._with_followers(first)

    def _with_followers(self, first: WalGroup) -> list[WalGroup]:
        groups = [first]
        while True:
            try:
                group = self._queue.get_nowait()
            except queue.Empty:
                return groups
            if group is None:
                self.close()  # the end comes after what was handed over before it
                return groups
            if group.new_file or group.era != first.era:
                self._held = group
                return groups
            groups.append(group)

    def discard(self) -> None:
        """Drop every group that comes, until the queue is closed."""
        while self._queue.get() is not None:
            pass


def _timeout(until: float) -> float | None:
    return None if until == math.inf else max(0.0, until - time.perf_counter())
