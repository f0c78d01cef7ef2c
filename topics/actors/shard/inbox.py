"""Inbox: messages of all links that wait for a turn, in order of arrival.

    link --put--> waiting --take, at most BATCH_MAX--> one turn

A turn takes a bounded batch, so that its answers go out before the next batch is decided. Messages
stay in the lists in which their links brought them: nothing is allocated for a message. `take`
alone decides what a batch holds, so it is the one place where priorities can be weighed: every
message comes with its link session, and whoever decodes its params knows its topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from topics.actors.rpc.session import LinkSession
from topics.formats.wire.message import Message

BATCH_MAX = 1024  # messages of a turn
WAITING_MAX = 8 * BATCH_MAX  # messages; the loop takes turns at once while more wait

Arrival: TypeAlias = tuple[LinkSession, list[Message]]


class Inbox:
    """Messages that have arrived and are not handled yet; ``count`` of them."""

    __slots__ = ("_waiting", "count")

    def __init__(self) -> None:
        self._waiting: deque[Arrival] = deque()
        self.count = 0

    def __len__(self) -> int:
        return self.count

    @property
    def is_full(self) -> bool:
        """A turn is due before more messages are taken from the links."""
        return self.count > WAITING_MAX

    def put(self, session: LinkSession, messages: list[Message]) -> None:
        """Add what a link has brought."""
        self._waiting.append((session, messages))
        self.count += len(messages)

    def take(self) -> Iterable[Arrival]:
        """The next batch, at most `BATCH_MAX` messages; those of one session in their order."""
        if self.count <= BATCH_MAX:
            batch, self._waiting, self.count = self._waiting, deque(), 0
            return batch
        batch, room = deque(), BATCH_MAX
        while room:
            session, messages = self._waiting.popleft()
            if len(messages) > room:
                self._waiting.appendleft((session, messages[room:]))
                messages = messages[:room]
            batch.append((session, messages))
            room -= len(messages)
        self.count -= BATCH_MAX
        return batch
