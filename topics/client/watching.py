"""Watching, without I/O: the request for a stream, the meaning of its events, and its positions.

    request --> events --> `take` --> the caller handles them --> `done` --> cursors
       '<--- the stream ends, or is silent for two heartbeats <----'

The cursors contain each topic's seq and epoch, so a stream that is opened again continues exactly
where the last one ended, even if the server has been restarted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import msgspec

from topics.client.errors import TopicsError, Unavailable, error_of
from topics.client.values import (
    CaughtUp,
    DiffPage,
    Event,
    Record,
    Tombstone,
    TopicDeleted,
    TopicState,
)
from topics.errors import InvalidRequest
from topics.formats.api.watch import Cursor, CursorsId, decode_cursors

Position = Cursor  # a topic's seq and epoch
HEARTBEAT_S: Final = 15.0
EVENT_MAX_BYTES: Final = 16 << 20
PACED: Final = 429  # after an error event with this code, the stream continues


class Tail:
    """The start of a reader that skips the existing records."""

    def __repr__(self) -> str:
        return "TAIL"


TAIL: Final = Tail()
Start = int | Tail
"""A reader starts with the record after this seq, or with the next new record (`TAIL`)."""


class _Batch(msgspec.Struct):
    topic: str
    records: list[Record]
    to_seq: int


class _Failure(msgspec.Struct):
    code: int
    error: str
    topics: list[str] = []


_batch = msgspec.json.Decoder(_Batch).decode
_OTHER_EVENTS: Final[Mapping[str, type[Tombstone | CaughtUp | TopicDeleted]]] = {
    "tombstone": Tombstone,
    "caught-up": CaughtUp,
    "topic-deleted": TopicDeleted,
}


class PositionedEvent(NamedTuple):
    """An event, and the reader's position in its topic after the event."""

    event: Event
    cursor: Position


class WatchState:
    """A watch of some topics. ``cursors`` contains the known positions."""

    def __init__(
        self,
        topics: Iterable[str | tuple[str, Start]],
        node: str | None,
        known: Mapping[str, Position],
    ) -> None:
        self.topics: dict[str, Start] = dict(
            each if isinstance(each, tuple) else (each, 0) for each in topics
        )
        if not self.topics:
            raise ValueError("a watch needs a topic")
        self._node = node
        self.cursors = {topic: known[topic] for topic in self.topics if topic in known}

    @property
    def unknown(self) -> list[str]:
        """The topics whose state must be passed to `begin` before the first request, because a
        request with different start positions contains the epochs of all topics.
        """
        starts = {repr(start) for start in self.topics.values()}
        if not self.cursors and len(starts) == 1:
            return []
        return [topic for topic in self.topics if topic not in self.cursors]

    def begin(self, state: TopicState) -> None:
        """Set the position of one of the `unknown` topics from its state."""
        start = self.topics[state.name]
        seq = state.head_seq if isinstance(start, Tail) else start
        self.cursors[state.name] = seq, state.epoch if seq <= state.head_seq else 0

    def request(self) -> tuple[str, dict[str, str]]:
        """Return the path and the header fields of the stream's request."""
        query = [("topic", topic) for topic in self.topics]
        query += [("include_tags", "true"), ("heartbeat_ms", str(int(1000 * HEARTBEAT_S)))]
        if self._node is not None:
            query.append(("node", self._node))
        if len(self.cursors) == len(self.topics):
            last_id = CursorsId(self.cursors).text().decode()
            return "/v0/watch?" + urlencode(query), {"Last-Event-ID": last_id}
        start = next(iter(self.topics.values()))
        query.append(("tail", "true") if isinstance(start, Tail) else ("from_seq", str(start)))
        return "/v0/watch?" + urlencode(query), {}

    def take(self, name: str, data: str, event_id: str) -> Iterator[PositionedEvent]:
        """Return the events for the caller that an event of the stream contains. Raise
        `TopicsError` if the server closes the stream, or for an invalid event.
        """
        try:
            return self._taken(name, data, event_id)
        except (msgspec.MsgspecError, InvalidRequest, KeyError) as error:
            raise TopicsError(
                f"not an event from a topics server: {error}", code="bad_answer", status=200
            ) from None

    def _taken(self, name: str, data: str, event_id: str) -> Iterator[PositionedEvent]:
        if name == "error":
            return self._failed(data)
        cursors = decode_cursors(event_id.encode(), self.topics)
        if not self.cursors:  # the first id contains the start position in each topic
            self.cursors = cursors
        if name == "record":
            return self._records(_batch(data), cursors)
        kind = _OTHER_EVENTS.get(name)
        if kind is None:
            return iter(())  # an id without an event, or an event of a later version
        event = msgspec.json.decode(data, type=kind)
        return iter((PositionedEvent(event, cursors[event.topic]),))

    def _records(self, batch: _Batch, cursors: Mapping[str, Position]) -> Iterator[PositionedEvent]:
        after = cursors[batch.topic]
        last = len(batch.records)
        for number, record in enumerate(batch.records, 1):
            msgspec.structs.force_setattr(record, "topic", batch.topic)
            yield PositionedEvent(record, after if number == last else (record.seq, after[1]))

    def _failed(self, data: str) -> Iterator[PositionedEvent]:
        failure = msgspec.json.decode(data, type=_Failure)
        if failure.code == PACED:
            return iter(())
        envelope: dict[str, Any] = {"code": f"stream_{failure.code}", "message": failure.error}
        error = error_of(failure.code, {}, msgspec.json.encode({"error": envelope}))
        if failure.code in (401, 403) or failure.topics:
            raise error
        # A slow reader (408), a shutdown (503), a defect (500): the stream may be opened again.
        raise Unavailable(error.message, code=error.code, status=503)

    def done(self, shown: PositionedEvent) -> None:
        """Advance the position after the caller has handled an event. A deleted topic is removed
        from the watch, because a later topic with the same name is a different topic.
        """
        topic = shown.event.topic
        if isinstance(shown.event, TopicDeleted):
            del self.topics[topic], self.cursors[topic]
        else:
            self.cursors[topic] = shown.cursor


CURSOR_PREFIX: Final = "cursor:"
CURSOR_CONFIG: Final = {"cap_records": 1, "durability": "fsync"}
SAVE_INTERVAL_S: Final = 1.0


class Progress:
    """The positions of a loop over a watch. ``shown`` is the event that the loop is handling."""

    def __init__(self) -> None:
        self.positions: dict[str, Position] = {}
        self.shown: PositionedEvent | None = None
        self._saved: dict[str, Position] = {}

    def load(self, page: DiffPage) -> None:
        """Start at the positions that were saved last."""
        for record in page.records[-1:]:
            self.positions = {topic: (seq, epoch) for topic, (seq, epoch) in record.data.items()}
        self._saved = self.positions.copy()

    def done(self) -> None:
        """Count the event as read."""
        if self.shown is not None:
            self.positions[self.shown.event.topic] = self.shown.cursor
            self.shown = None

    def unsaved(self) -> dict[str, Position] | None:
        """Return a copy of the positions, or None if they have not changed since the last save."""
        positions = self.positions.copy()
        return None if positions == self._saved else positions

    def saved(self, positions: dict[str, Position]) -> None:
        """Record that these positions are saved."""
        self._saved = positions


def ended() -> TopicsError:
    """Return the failure of a stream that has ended without an error event."""
    return Unavailable("the stream has ended", code="stream_ended", status=503)
