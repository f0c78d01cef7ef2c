"""Inbox: messages of all links that wait for a turn, in order of arrival.

    link --put--> waiting --take, at most BATCH_MAX--> one turn

A turn takes a bounded batch, so that its answers go out before the next batch is decided. Which
messages a batch takes is `take`'s own business: it is the one place where priorities can be weighed.
Every message comes with its link session; the topic's priority is known to whoever decodes the
params.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from typing import TypeAlias

from topics.actors.rpc.session import LinkSession
from topics.formats.wire.message import MessageFrame

BATCH_MAX = 1024  # messages of a turn
WAITING_MAX = 8 * BATCH_MAX  # messages; the loop takes turns at once while more wait

Arrival: TypeAlias = tuple[LinkSession, MessageFrame]


class Inbox:
    """Messages that have arrived and are not handled yet."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Arrival] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """A turn is due before more messages are taken from the links."""
        return len(self._waiting) > WAITING_MAX

    def put(self, session: LinkSession, messages: Iterable[MessageFrame]) -> None:
        """Add what a link has brought."""
        self._waiting.extend(zip(repeat(session), messages))

    def take(self) -> Sequence[Arrival]:
        """The next batch, at most `BATCH_MAX` messages; those of one session in their order."""
        waiting = self._waiting
        if len(waiting) <= BATCH_MAX:
            batch = list(waiting)
            waiting.clear()
            return batch
        batch = list(islice(waiting, BATCH_MAX))
        for _ in batch:
            waiting.popleft()
        return batch
