"""Groups of frames that the shard loop hands over to the writer thread.

A group contains the frames of one loop iteration, as a contiguous range of one file. The writer
thread takes all waiting groups of a file together, so that one write and one sync serve all of
them.
"""

from __future__ import annotations

import math
import queue
import time
from dataclasses import dataclass

from topics.formats.buffers import Buffer
from topics.storage.wal.log_file import WalFile


@dataclass(slots=True)
class WalGroup:
    """Frames from LSN ``start`` to ``end`` of one file.

    ``era`` is the number of times that the log was resumed after `NoSpace`. A group without
    ``chunks`` only requests a sync, or notifies the writer thread of how far the loop has written.
    ``may_use_reserve`` specifies whether the new file of the group may be the reserve.
    """

    era: int
    file: WalFile
    start: int
    end: int
    chunks: list[Buffer]
    sync: bool
    new_file: bool
    may_use_reserve: bool = False


class GroupQueue:
    """The groups that are waiting for the writer thread, oldest first."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[WalGroup | None] = queue.SimpleQueue()
        # A group that was already taken from the queue, but belongs to a different file or era.
        self._held: WalGroup | None = None

    def put(self, group: WalGroup) -> None:
        """Queue a group for the writer thread."""
        self._queue.put(group)

    def close(self) -> None:
        """Close the queue: `take` returns the remaining groups and then None."""
        self._queue.put(None)

    def take(self, until: float) -> list[WalGroup] | None:
        """Wait for a group and return all waiting groups of the same file and era.

        If there is none by ``until``, a time of `time.perf_counter`, return an empty list. Return
        None after the last group of a closed queue.
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
                self.close()  # put the end marker back: the next call returns None
                return groups
            if group.new_file or group.era != first.era:
                self._held = group
                return groups
            groups.append(group)

    def discard(self) -> None:
        """Drop all further groups until the queue is closed."""
        while self._queue.get() is not None:
            pass


def _timeout(until: float) -> float | None:
    return None if until == math.inf else max(0.0, until - time.perf_counter())
