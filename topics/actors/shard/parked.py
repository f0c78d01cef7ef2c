"""Parked messages: what waits for the turns of a shard while more comes than it can do (§11).

    park --> line of the topic that the message names --\\
         `-> the common line, of what names no topic ----+--take, by weight--> the turn

    band         4    3   2   1   0   common
    weight       16   8   4   2   1   16

Bands that have messages share the turns by their weights (deficit round robin); one that has the
shard for itself gets all of it. What a message costs is counted by its length. Within a band the
lines take turns, a message each, so no topic keeps others of its band waiting. The band of a topic
is looked up when its line begins, and once in each turn that takes from it.

Messages of one line never change their order. So what names one topic is in order, and what names
none. Three kinds stand between lines:

    follower            waits behind what it names: a cancellation behind its request, the close of
                        a feed behind its open (`topics.formats.wire.peeking`)
    several topics      waits behind each of their lines, one after another
    answers, refusals   name no topic
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from topics.actors.rpc.session import LinkSession
from topics.engine.priority import BANDS
from topics.formats.wire.message import Message
from topics.formats.wire.peeking import OPENS, followed_by, opened_by, topic_of, topics_of

Arrival: TypeAlias = tuple[LinkSession, Sequence[Message]]
# Session, message, time of the turn that parked it, topics whose lines it has yet to wait for.
Parked: TypeAlias = tuple[LinkSession, Message, float, tuple[str, ...]]
Key: TypeAlias = tuple[LinkSession, str, int]  # a kind and a number, as `followed_by` gives them

COMMON: Final = BANDS  # the class of what names no topic
WEIGHTS: Final = (1, 2, 4, 8, 16, 16)
assert len(WEIGHTS) == COMMON + 1
COST_BYTES: Final = 4096  # of an attachment cost as much as a message
COST_MAX: Final = 64  # of one message: a long one must not use up the share of many rounds


class Line:
    """The messages of one topic, or those without one. ``turn``: the last one that looked up its
    band.
    """

    __slots__ = ("band", "messages", "topic", "turn")

    def __init__(self, topic: str | None, band: int, turn: float) -> None:
        self.topic, self.band, self.turn = topic, band, turn
        self.messages: deque[Parked] = deque()


class ParkedMessages:
    """Messages that wait, ``count`` of them. ``band_of`` gives the band of a topic by its name.

    All times are seconds of one clock; all calls of a turn get the same one.
    """

    def __init__(self, band_of: Callable[[str], int]) -> None:
        self.count = 0
        self._band_of = band_of
        self._lines: dict[str, Line] = {}  # those with messages
        self._common = Line(None, COMMON, 0.0)
        self._followed: dict[Key, tuple[Line, Message]] = {}
        # For each class the lines that have messages, and what it may still take in this round.
        self._rings: list[deque[Line]] = [deque() for _ in WEIGHTS]
        self._credit = [0] * len(WEIGHTS)
        self._class = 0  # whose visit is under way

    # In

    def park(self, arrivals: Iterable[Arrival], now: float) -> None:
        """Put each message where it waits."""
        lines, followed = self._lines, self._followed
        for session, messages in arrivals:
            self.count += len(messages)
            for message in messages:
                topic = topic_of(message)
                if topic is None:
                    self._park_unnamed(session, message, now)
                    continue
                line = lines.get(topic) or self._begin(topic, now)
                line.messages.append((session, message, now, ()))
                followed[session, "call", message.message_id] = line, message
                if message.subject in OPENS:
                    self._note_open(session, message, line)

    def _begin(self, topic: str, now: float) -> Line:
        line = self._lines[topic] = Line(topic, self._band_of(topic), now)
        self._rings[line.band].append(line)
        return line

    def _note_open(self, session: LinkSession, message: Message, line: Line) -> None:
        opened = opened_by(message)
        if opened is not None:
            self._followed[session, *opened] = line, message

    def _park_unnamed(self, session: LinkSession, message: Message, now: float) -> None:
        """A message that names no topic, or several."""
        behind = tuple(topics_of(message))
        key = followed_by(message)
        followed = None if key is None else self._followed.get((session, *key))
        if followed is not None:
            followed[0].messages.append((session, message, now, ()))
        elif not self._wait_behind((session, message, now, behind)):
            if not self._common.messages:
                self._rings[COMMON].append(self._common)
            self._common.messages.append((session, message, now, ()))

    def _wait_behind(self, parked: Parked) -> bool:
        """Into the line of the first of its topics that has one; False if none has."""
        session, message, since, behind = parked
        for passed, topic in enumerate(behind, 1):
            line = self._lines.get(topic)
            if line is not None:
                line.messages.append((session, message, since, behind[passed:]))
                return True
        return False

    # Out

    def take(self, cost_max: float, now: float) -> list[Arrival]:
        """The next messages: as many as ``cost_max`` allows, and one at least."""
        taken: list[Arrival] = []
        rings, credit, at = self._rings, self._credit, self._class
        while cost_max > 0 and self.count:
            if credit[at] <= 0 or not rings[at]:
                at = (at or len(WEIGHTS)) - 1  # the highest after the lowest
                # Debts are paid back, but nothing is saved up.
                credit[at] = min(credit[at], 0) + WEIGHTS[at] if rings[at] else 0
                continue
            parked = self._pop(rings[at], now)
            session, message, since, behind = parked
            if behind and self._wait_behind(parked):
                continue
            cost = min(1 + len(message.attachment) // COST_BYTES, COST_MAX)
            credit[at] -= cost
            cost_max -= cost
            self.count -= 1
            if since != now:
                message = msgspec.structs.replace(message, parked_ms=(now - since) * 1000)
            taken.append((session, (message,)))
        self._class = at
        return taken

    def _pop(self, ring: deque[Line], now: float) -> Parked:
        """The next message of a class; its line goes behind the others."""
        line = ring.popleft()
        parked = line.messages.popleft()
        session, message, _, _ = parked
        # Nothing can follow it any more.
        self._followed.pop((session, "call", message.message_id), None)
        if message.subject in OPENS:
            self._forget_open(session, message)
        if line.messages:
            if line.turn != now and line.topic is not None:
                line.band, line.turn = self._band_of(line.topic), now
            self._rings[line.band].append(line)
        elif line.topic is not None:
            del self._lines[line.topic]
        return parked

    def _forget_open(self, session: LinkSession, message: Message) -> None:
        opened = opened_by(message)
        if opened is not None:
            followed = self._followed.get((session, *opened))
            if followed is not None and followed[1] is message:  # else it was opened again
                del self._followed[session, *opened]
