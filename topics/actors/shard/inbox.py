"""Inbox: messages of all links that wait for a turn.

    few wait     a turn takes all of them, in order of arrival; nothing is read of them
    many wait    they are parked by topic, and a turn takes by weight what `TURN_S` allows
                 (`parked.py`); so what comes later and is more urgent waits for a short turn

While few wait, messages stay in the lists in which their links brought them: nothing is allocated
for a message. A turn takes only what had arrived when it began.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from topics.actors.rpc.session import LinkSession
from topics.actors.shard.parked import Arrival, ParkedMessages
from topics.formats.wire.message import Message

FEW_MAX: Final = 64  # messages that are handled in order of arrival
WAITING_MAX: Final = 8192  # messages; the loop takes turns at once while more wait
TURN_S: Final = 0.004  # of a turn while many wait; what ends it, such as pages of feeds, comes then
CHUNK: Final = 16  # cost of the messages between two looks at the clock
FIRST_COST_S: Final = 25e-6  # of a message, before the first is measured


class Inbox:
    """Messages that have arrived and are not handled yet; ``count`` of them. ``band_of`` gives the
    band of a topic by its name, ``clock`` seconds.
    """

    __slots__ = ("_arrived", "_clock", "_cost_s", "_last_turn", "_parked", "_taken", "count")

    def __init__(self, band_of: Callable[[str], int], clock: Callable[[], float]) -> None:
        self._arrived: deque[Arrival] = deque()
        self._parked = ParkedMessages(band_of)
        self._clock = clock
        self.count = 0
        # How long a message takes, all of the turns included, while many wait.
        self._cost_s = FIRST_COST_S
        self._last_turn, self._taken = 0.0, 0  # when it began, how many it took

    def __len__(self) -> int:
        return self.count

    @property
    def is_full(self) -> bool:
        """A turn is due before more messages are taken from the links."""
        return self.count > WAITING_MAX

    @property
    def wait_s(self) -> float:
        """For how long those that wait will keep the shard busy; 0 while few wait."""
        return self.count * self._cost_s if self.count > FEW_MAX else 0.0

    def put(self, session: LinkSession, messages: list[Message]) -> None:
        """Add what a link has brought."""
        self._arrived.append((session, messages))
        self.count += len(messages)

    def turn(self) -> Iterator[Arrival]:
        """The messages of a turn."""
        arrived, self._arrived = self._arrived, deque()
        parked = self._parked
        if self.count > FEW_MAX:
            yield from self._weigh(arrived)
            return
        self.count = self._taken = 0
        if parked.count:
            yield from parked.take(math.inf, self._clock())
        yield from arrived

    def _weigh(self, arrived: deque[Arrival]) -> Iterator[Arrival]:
        parked, clock = self._parked, self._clock
        now = clock()
        self._note_turn(now)
        parked.park(arrived, now)
        is_over = False
        while parked.count and not is_over:
            batch = parked.take(CHUNK, now)
            self.count -= len(batch)
            self._taken += len(batch)
            yield from batch
            is_over = clock() - now >= TURN_S
        if not self.count:
            self._taken = 0

    def _note_turn(self, now: float) -> None:
        """Measure the last turn, if it left messages to this one."""
        if self._taken:
            self._cost_s += ((now - self._last_turn) / self._taken - self._cost_s) / 8
        self._last_turn, self._taken = now, 0
