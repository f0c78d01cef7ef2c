"""Watching, without I/O: which stream to ask for, what its events mean, and where a reader stands.

    request --> events --> `take` --> what the caller is given --> `done` --> cursors
       '<--- the stream ends, or says nothing for twice its heartbeat <----'

The cursors name each topic's seq and epoch, so a stream that is asked for again goes on exactly,
also at a server that was restarted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from time import monotonic
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

HEARTBEAT_S: Final = 15.0
EVENT_MAX_BYTES: Final = 16 << 20
PACED: Final = 429  # ends nothing


class Tail:
    """Where a reader begins that wants new records only."""

    def __repr__(self) -> str:
        return "TAIL"


TAIL: Final = Tail()
Start = int | Tail
"""The seq behind which a reader begins, or `TAIL`."""


class _Batch(msgspec.Struct):
    topic: str
    records: list[Record]
    to_seq: int


class _Failure(msgspec.Struct):
    code: int
    error: str
    topics: list[str] = []


_batch = msgspec.json.Decoder(_Batch).decode
_OTHERS: Final[Mapping[str, type[Tombstone | CaughtUp | TopicDeleted]]] = {
    "tombstone": Tombstone,
    "caught-up": CaughtUp,
    "topic-deleted": TopicDeleted,
}


class Shown(NamedTuple):
    """An event, and where the reader of its topic stands behind it."""

    event: Event
    cursor: Cursor


class Watching:
    """A watch of some topics. ``cursors`` has those that something is known of."""

    def __init__(
        self,
        topics: Iterable[str | tuple[str, Start]],
        node: str | None,
        known: Mapping[str, Cursor],
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
        """Topics whose state must be told by `begin` first: starts that differ are an id of ours,
        which has epochs.
        """
        starts = {repr(start) for start in self.topics.values()}
        if not self.cursors and len(starts) == 1:
            return []
        return [topic for topic in self.topics if topic not in self.cursors]

    def begin(self, state: TopicState) -> None:
        """How one of `unknown` stands."""
        start = self.topics[state.name]
        seq = state.head_seq if isinstance(start, Tail) else start
        self.cursors[state.name] = seq, state.epoch if seq <= state.head_seq else 0

    def request(self) -> tuple[str, dict[str, str]]:
        """Path and header fields of the stream."""
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

    def take(self, name: str, data: str, event_id: str) -> Iterator[Shown]:
        """What an event of the stream shows. Raises `TopicsError` when the server ends the stream,
        which `ended` judges.
        """
        try:
            return self._taken(name, data, event_id)
        except (msgspec.MsgspecError, InvalidRequest, KeyError) as error:
            raise TopicsError(
                f"not an event of a topics server: {error}", code="bad_answer", status=200
            ) from None

    def _taken(self, name: str, data: str, event_id: str) -> Iterator[Shown]:
        if name == "error":
            return self._failed(data)
        cursors = decode_cursors(event_id.encode(), self.topics)
        if not self.cursors:  # the first id: where each topic begins
            self.cursors = cursors
        if name == "record":
            return self._records(_batch(data), cursors)
        kind = _OTHERS.get(name)
        if kind is None:
            return iter(())  # an id alone, or what a later server says
        event = msgspec.json.decode(data, type=kind)
        return iter((Shown(event, cursors[event.topic]),))

    def _records(self, batch: _Batch, cursors: Mapping[str, Cursor]) -> Iterator[Shown]:
        behind = cursors[batch.topic]
        last = len(batch.records)
        for number, record in enumerate(batch.records, 1):
            msgspec.structs.force_setattr(record, "topic", batch.topic)
            yield Shown(record, behind if number == last else (record.seq, behind[1]))

    def _failed(self, data: str) -> Iterator[Shown]:
        failure = msgspec.json.decode(data, type=_Failure)
        if failure.code == PACED:
            return iter(())
        envelope: dict[str, Any] = {"code": f"stream_{failure.code}", "message": failure.error}
        error = error_of(failure.code, {}, msgspec.json.encode({"error": envelope}))
        if failure.code in (401, 403) or failure.topics:
            raise error
        # A slow reader (408), a stop (503), a defect (500): the stream may be asked for again.
        raise Unavailable(error.message, code=error.code, status=503)

    def done(self, shown: Shown) -> None:
        """The caller has what it was given. A deleted topic is not asked for again: one that is
        made by its name is another.
        """
        topic = shown.event.topic
        if isinstance(shown.event, TopicDeleted):
            del self.topics[topic], self.cursors[topic]
        else:
            self.cursors[topic] = shown.cursor


CURSOR_PREFIX: Final = "cursor:"
CURSOR_CONFIG: Final = {"cap_records": 1, "durability": "fsync"}
SAVE_EVERY_S: Final = 1.0


class Progress:
    """How far a loop over a watch has come. ``shown`` is the event that it handles."""

    def __init__(self) -> None:
        self.positions: dict[str, Cursor] = {}
        self.shown: Shown | None = None
        self.is_saved, self._saved_at = True, monotonic()

    def load(self, page: DiffPage) -> None:
        """What was saved last."""
        for record in page.records[-1:]:
            self.positions = {topic: (seq, epoch) for topic, (seq, epoch) in record.data.items()}

    def record(self) -> dict[str, Any]:
        """What is saved."""
        return {"records": [{"data": self.positions}]}

    def done(self) -> bool:
        """The loop has handled what it was shown. Whether it is time to save."""
        if self.shown is not None:
            self.positions[self.shown.event.topic] = self.shown.cursor
            self.shown, self.is_saved = None, False
        return not self.is_saved and monotonic() - self._saved_at >= SAVE_EVERY_S

    def leave(self, kind: type[BaseException] | None) -> None:
        """The loop has ended; what raised an exception is not handled."""
        if kind is None or not issubclass(kind, Exception):
            self.done()

    def saved(self) -> None:
        """It is written down."""
        self.is_saved, self._saved_at = True, monotonic()


def ended() -> TopicsError:
    """A stream that has ended without a word."""
    return Unavailable("the stream has ended", code="stream_ended", status=503)
