"""Lanes: bound how many moves to each shard are under way at once.

A move holds up to 1 MiB of records. Each target shard has a lane of its own, so that one that does
not answer stops the moves to its topics and no others.

    enter --room--> started --leave--> the first one that waits is started, in a later turn
      '--no room--> waits
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from topics.actors.shard.deadlines import Deadlines

LANE_MOVES = 8


class Lanes:
    """The lanes to all shards."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._under_way: dict[int, int] = {}
        self._waiting: dict[int, deque[Callable[[], object]]] = {}

    def enter(self, shard: int, start: Callable[[], object]) -> None:
        """Call ``start`` once there is room; whoever is started leaves when it is done."""
        under_way = self._under_way.get(shard, 0)
        if under_way == LANE_MOVES:
            self._waiting.setdefault(shard, deque()).append(start)
            return
        self._under_way[shard] = under_way + 1
        start()

    def leave(self, shard: int) -> None:
        """A move is over."""
        waiting = self._waiting.get(shard)
        if waiting:
            self._deadlines.call_at(-math.inf, waiting.popleft())
        else:
            self._under_way[shard] -= 1
