"""Inbox: queues the received messages of all links, with weighted scheduling (§0.10).

    few queued     an iteration takes all messages in order of arrival, without decoding them
    many queued    Client requests are queued by topic, and topics by priority band. All other
                   messages are queued in order of arrival. An iteration takes messages from the
                   bands by weight, and other messages with the weight of the top band, until
                   `ITERATION_MAX_S` has passed. So an urgent message that arrives later waits for
                   one short iteration at most.

Requests for one topic keep their order, and a cancellation stays after its request. All other
messages keep their order too, so a `feed.close` stays after its `feed.open`. The topics of a band
are served round-robin, one message each. A topic's band is looked up for each of its messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from topics.actors.rpc.session import LinkSession
from topics.engine.priority import BANDS, WEIGHTS, WeightedQueues
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

FIFO_MAX: Final = 64  # up to this number, messages are handled in order of arrival, in about 2 ms
WAITING_MAX: Final = 8192  # while more messages are queued, iterations follow without a pause
# Seconds that an iteration handles messages while many are queued. This does not include the work
# at the end of the iteration, such as feed pages.
ITERATION_MAX_S: Final = 0.004
FIRST_COST_S: Final = 25e-6  # assumed cost of a message before the first measurement
COST_BYTES: Final = 4096  # this many bytes of an attachment count as much as one message
COST_MAX: Final = 64  # maximum cost of one message, so that it does not use up many rounds

T = TypeVar("T")

OTHERS_LINE: Final = BANDS
# Requests that are queued by topic, because clients can send many of them. Their first param is the
# topic.
BY_TOPIC: Final = frozenset(
    call.subject for call in (APPEND, DIFF, DIFF_AHEAD, FEED_READ, CLAIM, ACK, NACK, EXTEND)
)

Arrival: TypeAlias = tuple[LinkSession, Sequence[Message]]


class QueuedMessage(NamedTuple):
    """A queued message. ``topic``: the topic by which it is queued, or None.

    ``since``: start of the iteration that queued the message.
    """

    session: LinkSession
    message: Message
    topic: str | None
    since: float


class Inbox:
    """The received messages that are not handled yet. ``count`` is their number.

    ``band_of`` returns the priority band of a topic, given its name. ``clock`` returns seconds.
    """

    def __init__(self, band_of: Callable[[str], int], clock: Callable[[], float]) -> None:
        self._arrived: deque[Arrival] = deque()
        self._band_of, self._clock = band_of, clock
        self._queues: WeightedQueues[deque[QueuedMessage]] = WeightedQueues((*WEIGHTS, WEIGHTS[-1]))
        # Queued messages by topic. None: messages that are not queued by topic.
        self._lines: dict[str | None, deque[QueuedMessage]] = {}
        # Topics of queued requests, by session and id, so that a cancellation joins the queue of
        # its request.
        self._topics_by_call: dict[tuple[LinkSession, int], str] = {}
        self.count = self._parked = 0
        # Average time per message while many are queued, including the rest of the iteration.
        self._cost_s = FIRST_COST_S
        # Start of the last such iteration, and the number of messages that it took.
        self._last_iteration, self._taken = 0.0, 0

    @property
    def wait_s(self) -> float:
        """The seconds for which the queued messages will occupy the shard; 0 if few are queued."""
        return self.count * self._cost_s if self.count > FIFO_MAX else 0.0

    def put(self, session: LinkSession, messages: list[Message]) -> None:
        """Add messages that a link has received."""
        self._arrived.append((session, messages))
        self.count += len(messages)

    def next_batch(self) -> Iterator[Arrival]:
        """Yield the messages of one iteration. All of them arrived before it began."""
        if self.count <= FIFO_MAX and not self._parked:
            arrived, self._arrived = self._arrived, deque()
            self.count = self._taken = 0
            return iter(arrived)
        return self._weighed()

    def _weighed(self) -> Iterator[Arrival]:
        now = self._clock()
        # If the last iteration left messages in the queue, the shard has been busy since the start
        # of that iteration. All of this time counts as the cost of its messages.
        if self._taken:
            self._cost_s += ((now - self._last_iteration) / self._taken - self._cost_s) / 8
        self._last_iteration, self._taken = now, 0
        for session, messages in self._arrived:
            for message in messages:
                self._park(session, message, now)
        self._arrived.clear()
        while self._parked:
            session, message, _, since = self._next()
            self._parked -= 1
            self.count -= 1
            self._taken += 1
            # Record how long the message was queued, unless it arrived in this iteration.
            if since != now:
                message = msgspec.structs.replace(message, parked_ms=(now - since) * 1000)
            yield session, (message,)
            if self._clock() - now >= ITERATION_MAX_S:
                break
        if not self._parked:
            self._taken = 0

    def _park(self, session: LinkSession, message: Message, now: float) -> None:
        self._parked += 1
        topic = None
        if message.subject in BY_TOPIC:
            topic = first_param(message, str)
            if topic is not None:
                self._topics_by_call[session, message.message_id] = topic
        elif message.subject == CALL_CANCELLED.subject:
            topic = self._topics_by_call.get((session, first_param(message, int) or 0))
        line = self._lines.setdefault(topic, deque())
        # The queue of a topic enters its band with its first message.
        if not line:
            self._queue_of(topic).append(line)
        line.append(QueuedMessage(session, message, topic, now))

    def _queue_of(self, topic: str | None) -> deque[deque[QueuedMessage]]:
        return self._queues.queues[OTHERS_LINE if topic is None else self._band_of(topic)]

    def _next(self) -> QueuedMessage:
        queues = self._queues
        number = queues.next()
        assert number is not None, "a message waits"
        line = queues.queues[number].popleft()
        waiting = line.popleft()
        message, topic = waiting.message, waiting.topic
        # A long attachment counts as several messages.
        queues.charge(number, min(1 + len(message.attachment) // COST_BYTES, COST_MAX))
        self._topics_by_call.pop((waiting.session, message.message_id), None)
        # Move the topic to the end of its band, so that topics are served round-robin.
        if line:
            self._queue_of(topic).append(line)
        else:
            del self._lines[topic]
        return waiting


def first_param(message: Message, kind: type[T]) -> T | None:
    """Return the first param of a request or an event if it has the type ``kind``.

    Return None if the first param has another type, and for a reply or an invalid envelope.
    """
    try:
        envelope = decode(message.payload)
    except UNREADABLE:
        return None
    params = getattr(envelope, "params", None)
    return params[0] if type(params) is list and params and type(params[0]) is kind else None
