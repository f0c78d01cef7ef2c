"""Inbox: messages of all links that wait for a turn, and which of them come first (§0.10).

    few wait     a turn takes all of them, in order of arrival; nothing is read of them
    many wait    what clients ask of topics waits by topic, topics by band, all else in order of
                 arrival; a turn takes from the bands by weight, from all else by that of the top
                 band, until `TURN_S` is over. So what comes later and is more urgent waits for a
                 short turn.

What is asked of one topic keeps its order, and a cancellation stays behind its request; all else
keeps its order, so the close of a feed stays behind its open. The topics of a band take turns, a
message each. A topic's band is looked up with each of its messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from topics.actors.rpc.session import LinkSession
from topics.engine.priority import BANDS, WEIGHTS, Queues
from topics.formats.wire.calls import (
    ACK,
    APPEND,
    CALL_CANCELLED,
    CLAIM,
    DIFF,
    DIFF_AHEAD,
    EXTEND,
    FEED_READ,
    NACK,
)
from topics.formats.wire.envelope import UNREADABLE, decode
from topics.formats.wire.message import Message

FEW_MAX: Final = 64  # messages that are handled in order of arrival; they take some 2 ms
WAITING_MAX: Final = 8192  # messages; the loop takes turns at once while more wait
TURN_S: Final = 0.004  # of a turn while many wait; what ends it, such as pages of feeds, comes then
FIRST_COST_S: Final = 25e-6  # of a message, before the first is measured
COST_BYTES: Final = 4096  # of a body cost as much as a message
COST_MAX: Final = 64  # of one message: a long one must not use up the share of many rounds

T = TypeVar("T")

OTHERS: Final = BANDS
# What waits by topic: requests that may come in floods. The topic is the first of their params.
BY_TOPIC: Final = frozenset(
    call.subject for call in (APPEND, DIFF, DIFF_AHEAD, FEED_READ, CLAIM, ACK, NACK, EXTEND)
)

Arrival: TypeAlias = tuple[LinkSession, Sequence[Message]]


class Waiting(NamedTuple):
    """A message that waits in the line of ``topic``, or of all others; ``since`` the turn that came
    first.
    """

    session: LinkSession
    message: Message
    topic: str | None
    since: float


class Inbox:
    """Messages that have arrived and are not handled yet; ``count`` of them. ``band_of`` gives the
    band of a topic by its name, ``clock`` seconds.
    """

    def __init__(self, band_of: Callable[[str], int], clock: Callable[[], float]) -> None:
        self._arrived: deque[Arrival] = deque()
        self._band_of, self._clock = band_of, clock
        self._queues: Queues[deque[Waiting]] = Queues((*WEIGHTS, WEIGHTS[-1]))
        self._lines: dict[str | None, deque[Waiting]] = {}  # by topic; None: all others
        # Topics of the requests that wait, by session and id: where their cancellations wait, too.
        self._asked: dict[tuple[LinkSession, int], str] = {}
        self.count = self._parked = 0
        # How long a message takes, all of the turns included, while many wait.
        self._cost_s = FIRST_COST_S
        self._last_turn, self._taken = 0.0, 0  # when it began, how many it took

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
            session, message, _, since = self._next()
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
        topic = None
        if message.subject in BY_TOPIC:
            topic = first_param(message, str)
            if topic is not None:
                self._asked[session, message.message_id] = topic
        elif message.subject == CALL_CANCELLED.subject:
            topic = self._asked.get((session, first_param(message, int) or 0))
        line = self._lines.setdefault(topic, deque())
        if not line:
            self._queue_of(topic).append(line)
        line.append(Waiting(session, message, topic, now))

    def _queue_of(self, topic: str | None) -> deque[deque[Waiting]]:
        return self._queues.queues[OTHERS if topic is None else self._band_of(topic)]

    def _next(self) -> Waiting:
        queues = self._queues
        number = queues.next()
        assert number is not None, "a message waits"
        line = queues.queues[number].popleft()
        waiting = line.popleft()
        message, topic = waiting.message, waiting.topic
        queues.spend(number, min(1 + len(message.attachment) // COST_BYTES, COST_MAX))
        self._asked.pop((waiting.session, message.message_id), None)
        if line:
            self._queue_of(topic).append(line)
        else:
            del self._lines[topic]
        return waiting


def first_param(message: Message, kind: type[T]) -> T | None:
    """The first of the params of a request or an event, if it is of that type; None of an answer,
    or of bytes that are no envelope.
    """
    try:
        envelope = decode(message.payload)
    except UNREADABLE:
        return None
    params = getattr(envelope, "params", None)
    return params[0] if type(params) is list and params and type(params[0]) is kind else None
