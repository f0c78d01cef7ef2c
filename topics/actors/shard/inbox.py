"""Inbox: messages of all links that wait for a turn, and which of them come first (§0.10).

    few wait     a turn takes all of them, in order of arrival; nothing is read of them
    many wait    appends wait by topic, topics by band, all others in order of arrival; a turn takes
                 from the bands by weight, from the others by that of the top band, until `TURN_S`
                 is over. So what comes later and is more urgent waits for a short turn.

Appends of one topic keep their order, and so do all other messages; the topics of a band take
turns, an append each. Appends are what comes in floods; that nothing else changes places keeps a
cancellation behind its request and the close of a feed behind its open. A topic's band is looked up
with each of its appends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from topics.actors.rpc.session import LinkSession
from topics.engine.priority import BANDS, WEIGHTS, Queues
from topics.formats.wire.calls import APPEND
from topics.formats.wire.envelope import UNREADABLE, Request, decode
from topics.formats.wire.message import Message

FEW_MAX: Final = 64  # messages that are handled in order of arrival; they take some 2 ms
WAITING_MAX: Final = 8192  # messages; the loop takes turns at once while more wait
TURN_S: Final = 0.004  # of a turn while many wait; what ends it, such as pages of feeds, comes then
FIRST_COST_S: Final = 25e-6  # of a message, before the first is measured
COST_BYTES: Final = 4096  # of a body cost as much as a message
COST_MAX: Final = 64  # of one message: a long one must not use up the share of many rounds

OTHERS: Final = BANDS

Arrival: TypeAlias = tuple[LinkSession, Sequence[Message]]
Waiting: TypeAlias = tuple[LinkSession, Message, float]  # and the time of the turn that came first


class Inbox:
    """Messages that have arrived and are not handled yet; ``count`` of them. ``band_of`` gives the
    band of a topic by its name, ``clock`` seconds.
    """

    def __init__(self, band_of: Callable[[str], int], clock: Callable[[], float]) -> None:
        self._arrived: deque[Arrival] = deque()
        self._band_of, self._clock = band_of, clock
        self._queues: Queues[deque[Waiting]] = Queues((*WEIGHTS, WEIGHTS[-1]))
        self._topics: dict[str, deque[Waiting]] = {}  # those with appends that wait
        self._others: deque[Waiting] = deque()
        self.count = self._parked = 0
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
        """The messages of a turn: of those that had arrived when it began."""
        if self.count <= FEW_MAX and not self._parked:
            arrived, self._arrived = self._arrived, deque()
            self.count = self._taken = 0
            return iter(arrived)
        return self._weighed()

    def _weighed(self) -> Iterator[Arrival]:
        now = self._clock()
        if self._taken:  # the last turn left messages to this one
            self._cost_s += ((now - self._last_turn) / self._taken - self._cost_s) / 8
        self._last_turn, self._taken = now, 0
        for session, messages in self._arrived:
            for message in messages:
                self._park(session, message, now)
        self._arrived.clear()
        while self._parked:
            session, message, since = self._next()
            self._parked -= 1
            self.count -= 1
            self._taken += 1
            if since != now:
                message = msgspec.structs.replace(message, parked_ms=(now - since) * 1000)
            yield session, (message,)
            if self._clock() - now >= TURN_S:
                break
        if not self._parked:
            self._taken = 0

    def _park(self, session: LinkSession, message: Message, now: float) -> None:
        self._parked += 1
        topic = topic_of(message) if message.subject == APPEND.subject else None
        line = self._others if topic is None else self._topics.setdefault(topic, deque())
        if not line:
            number = OTHERS if topic is None else self._band_of(topic)
            self._queues.queues[number].append(line)
        line.append((session, message, now))

    def _next(self) -> Waiting:
        queues = self._queues
        number = queues.next()
        assert number is not None, "a message waits"
        line = queues.queues[number].popleft()
        waiting = line.popleft()
        message = waiting[1]
        queues.spend(number, min(1 + len(message.attachment) // COST_BYTES, COST_MAX))
        if line is not self._others:
            topic = topic_of(message)
            assert topic is not None, "the line of a topic"
            if line:
                number = self._band_of(topic)
            else:
                del self._topics[topic]
        if line:
            queues.queues[number].append(line)
        return waiting


def topic_of(message: Message) -> str | None:
    """The topic of a request to append; None of an answer, or of bytes that are no envelope."""
    try:
        envelope = decode(message.payload)
    except UNREADABLE:
        return None
    params = envelope.params if type(envelope) is Request else None
    return params[0] if type(params) is list and params and type(params[0]) is str else None
