"""A reader of event streams on a raw socket, which keeps every received byte (§7.2).

``Decoder`` follows the event stream grammar of the HTML standard, not the habits of this server:
any of the three line ends, one space after the colon, several ``data`` lines. A `SseEvent` is the
text between two empty lines, even if it consists of comments only.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.api import GAP, TIMEOUT_S, Answer, Api, Wire, ok, request
from tests.support.traffic_checks import check_response, checks

RECORD, TOMBSTONE, CAUGHT_UP, DELETED, ERROR = (
    *("record", "tombstone", "caught-up", "topic-deleted", "error"),
)
PACED = "watch throttled under CPU pressure"
LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event. ``event``, ``id``, ``data`` and ``retry`` are None if there was no such line.
    ``lines`` are all lines as received.
    """

    lines: tuple[bytes, ...]
    event: str | None = None
    id: str | None = None
    data: str | None = None
    retry: str | None = None
    comments: tuple[str, ...] = ()

    def json(self) -> Any:
        assert self.data is not None, self
        return json.loads(self.data)

    @property
    def is_paced(self) -> bool:
        return self.event == ERROR and PACED in (self.data or "")

    @property
    def cursor(self) -> dict[str, int]:
        """Return the composite cursor in ``id``: base64url of a JSON map, without padding."""
        assert self.id is not None, f"no id: {self}"
        return decoded(self.id)


def parsed(lines: Iterable[bytes]) -> SseEvent:
    """Return the event of these lines."""
    found: dict[str, list[str]] = {}
    kept = tuple(lines)
    for line in kept:
        name, _, value = line.decode().partition(":")
        found.setdefault(name, []).append(value.removeprefix(" "))
    unknown = set(found) - {"", "event", "id", "data", "retry"}
    assert not unknown, f"fields that no event stream has: {unknown} in {kept}"
    last = {name: found[name][-1] if name in found else None for name in ("event", "id", "retry")}
    data = "\n".join(found["data"]) if "data" in found else None
    return SseEvent(kept, data=data, comments=tuple(found.get("", ())), **last)


class Decoder:
    """Decode bytes to events. An event without a final empty line is never returned."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0  # No line ends before this offset
        self._lines: list[bytes] = []

    def feed(self, chunk: bytes) -> list[SseEvent]:
        events = []
        self._buffer += chunk
        at = 0
        for end in list(LINE_END.finditer(self._buffer, self._scanned)):
            if end.end() == len(self._buffer) and end.group() == b"\r":
                break  # Its \\n may follow
            line, at = bytes(self._buffer[at : end.start()]), end.end()
            if line:
                self._lines.append(line)
            elif self._lines:
                events.append(parsed(self._lines))
                self._lines = []
        del self._buffer[:at]
        self._scanned = len(self._buffer) - self._buffer.endswith(b"\r")
        return events

    @property
    def unfinished(self) -> bool:
        return bool(self._buffer or self._lines)


class Unchunk:
    """Remove chunked framing from bytes in any fragments."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._size: int | None = (
            None  # of the chunk that the buffer begins with; None when its size line does
        )
        self.ended = False

    def feed(self, chunk: bytes) -> bytes:
        self._buffer += chunk
        body = bytearray()
        while not self.ended:
            if self._size is None:
                if (end := self._buffer.find(b"\r\n")) < 0:
                    break
                self._size = int(self._buffer[:end].split(b";")[0], 16)
                del self._buffer[: end + 2]
            if len(self._buffer) < self._size + 2:
                break
            after = bytes(self._buffer[self._size : self._size + 2])
            assert after == b"\r\n", f"a chunk of {self._size} bytes ends with {after!r}"
            body += self._buffer[: self._size]
            del self._buffer[: self._size + 2]
            self._size, self.ended = None, self._size == 0
        return bytes(body)


class Stream(Wire):
    """An open stream. ``raw_head`` has the exact bytes of status line and headers, ``blocks`` all
    received events and comments.
    """

    def __init__(
        self,
        address: tuple[str, int],
        path: str,
        *,
        last_event_id: str | None = None,
        token: str | None = None,
        headers: Iterable[str] = ("Accept: text/event-stream",),
        receive_bytes: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(address, timeout_s, receive_bytes=receive_bytes)
        self.blocks: list[SseEvent] = []
        self._path = path
        self._timeout_s = timeout_s
        self._taken = 0
        self._decoder = Decoder()
        self._unchunk: Unchunk | None = None
        sent = list(headers)
        if last_event_id is not None:
            sent.append(f"Last-Event-ID: {last_event_id}")
        if token is not None:
            sent.append(f"Authorization: Bearer {token}")
        self.send(request("GET", path, None, *sent))
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self.raw_head = self._until(b"\r\n\r\n")
        first, *lines = self.raw_head.decode("latin-1").split("\r\n")
        self.status = int(first.split(" ", 2)[1])
        pairs = (line.partition(":") for line in lines)
        self.headers = [(name, value.strip()) for name, _, value in pairs]
        named = {name.lower(): value for name, value in self.headers}
        if self.status != 200:
            content = self._take(int(named.get("content-length", 0)))
            raise AssertionError(f"no stream: {Answer(self.status, named, content)}")
        check_response("GET", self._path, Answer(self.status, named, b""))
        if named.get("transfer-encoding", "").lower() == "chunked":
            self._unchunk = Unchunk()

    def leave(self) -> None:
        """Close the stream and wait until the server has ended it. After `close`, the server may
        still send into the closed connection.
        """
        self.socket.shutdown(socket.SHUT_WR)
        self.socket.settimeout(self._timeout_s)
        while self._receive():
            pass

    # --- received events

    def block(self, timeout_s: float | None = None) -> SseEvent:
        """Return the next event of any kind. Raise TimeoutError if none arrives, EOFError if the
        stream has ended.
        """
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while self._taken == len(self.blocks):
            if self._ended():
                raise EOFError("the stream has ended")
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            if not self._buffer and not self._receive():
                assert not self._decoder.unfinished, "the stream ended within an event"
                raise EOFError("the stream has ended")
            self._decode()
        self._taken += 1
        return self.blocks[self._taken - 1]

    def _decode(self) -> None:
        chunk = bytes(self._buffer)
        self._buffer.clear()
        found = self._decoder.feed(self._unchunk.feed(chunk) if self._unchunk else chunk)
        self.blocks += found
        for check in checks:
            for event in found:
                if event.data is not None:
                    check.came(self._path, event.event, event.data)

    def _ended(self) -> bool:
        return self._unchunk is not None and self._unchunk.ended

    def event(self, *names: str, timeout_s: float | None = None) -> SseEvent:
        """Return the next event that has data, and skip heartbeats and ``retry``.

        It must be one of ``names`` if any are given. Unless these include errors, reports of
        pressure (§7.5) are skipped too, because a busy machine causes them at any time and the
        stream continues after them.
        """
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while True:
            event = self.block(max(deadline - time.monotonic(), 0.001))
            if event.data is not None and not (names and ERROR not in names and event.is_paced):
                break
        assert not names or event.event in names, f"{names} expected, got {str(event)[:500]}"
        return event

    def events(self) -> Iterator[SseEvent]:
        """Yield every event with data up to the end of the stream."""
        while True:
            try:
                yield self.event()
            except EOFError:
                return

    def quiet(self, seconds: float) -> None:
        """Check that no event with data arrives in this time."""
        try:
            event = self.event(timeout_s=seconds)
        except TimeoutError:
            return
        raise AssertionError(f"no event expected, got {str(event)[:500]}")

    # --- contents of events

    def read_until_caught_up(self, topics: Iterable[str]) -> StreamContents:
        """Return everything up to the moment when each of ``topics`` has been caught up once."""
        contents = StreamContents()
        waiting = set(topics)
        while waiting:
            event = self.event(RECORD, TOMBSTONE, CAUGHT_UP)
            contents.take(event)
            if event.event == CAUGHT_UP:
                waiting.discard(event.json()["topic"])
        return contents

    def records(self, count: int, *, timeout_s: float | None = None) -> list[Any]:
        """Return the next ``count`` records of all topics. Skip caught-up events, and fail on any
        other event.
        """
        contents = StreamContents()
        while len(contents.records) < count:
            contents.take(self.event(RECORD, CAUGHT_UP, timeout_s=timeout_s))
        assert len(contents.records) == count, (
            f"{count} records expected, got {len(contents.records)}"
        )
        return contents.records


@dataclass(slots=True)
class StreamContents:
    """The contents of a part of a stream."""

    events: list[SseEvent] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    by_topic: dict[str, list[Any]] = field(default_factory=dict)
    tombstones: list[Any] = field(default_factory=list)

    def take(self, event: SseEvent) -> None:
        body = event.json()
        self.events.append(event)
        if event.event == RECORD:
            self.records += body["records"]
            self.by_topic.setdefault(body["topic"], []).extend(body["records"])
        elif event.event == TOMBSTONE:
            self.tombstones.append(body)

    def of(self, name: str) -> list[Any]:
        """Return the bodies of all events of this kind."""
        return [event.json() for event in self.events if event.event == name]

    def data(self, topic: str | None = None) -> list[Any]:
        return [
            record["data"]
            for record in (self.records if topic is None else self.by_topic.get(topic, []))
        ]

    @property
    def last_id(self) -> str:
        """Return the id that a browser would send when it reconnects."""
        return next(event.id for event in reversed(self.events) if event.id is not None)


def encoded(cursor: Any) -> str:
    """Return the composite id of a cursor map."""
    return base64.urlsafe_b64encode(json.dumps(cursor).encode()).rstrip(b"=").decode()


def decoded(text: str) -> dict[str, int]:
    """Return the cursor map of a composite id. Fail on padding and on any other alphabet."""
    assert re.fullmatch("[A-Za-z0-9_-]+", text), f"not base64url without padding: {text!r}"
    cursor = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    assert isinstance(cursor, dict), cursor
    assert all(isinstance(name, str) and type(seq) is int for name, seq in cursor.items()), cursor
    return cursor


def session(api: Api, topics: dict[str, Any] | Iterable[str], **fields: Any) -> Any:
    """Return the response of POST /v0/watch. Topics without options are watched from the start."""
    chosen = topics if isinstance(topics, dict) else {topic: {} for topic in topics}
    return ok(api.call("POST", "/v0/watch", {"topics": chosen, **fields}))


def watch(api: Api, topics: dict[str, Any] | Iterable[str], **fields: Any) -> Stream:
    """Create a session and return its open stream."""
    return Stream(api.address, session(api, topics, **fields)["stream_url"])


def refused_stream(address: tuple[str, int], path: str, *headers: str) -> Answer:
    """Return the response to a GET that must not open a stream. Fail immediately if it opens one,
    because that would never end.
    """
    with Wire(address) as wire:
        wire.send(request("GET", path, None, *headers))
        status, named = wire.head()
        assert status != 200, f"a stream instead of a refusal: {named}"
        answer = Answer(status, named, wire._take(int(named["content-length"])))
        check_response("GET", path, answer)
        return answer


GAP_FIELDS = GAP | {"topic"}


def seqs(records: list[Any]) -> list[int]:
    return [record["$seq"] for record in records]


def gap_ends(body: Any, reason: str) -> tuple[int, int]:
    """Return both ends of a gap, whose event must have the fields of §7.2."""
    assert GAP_FIELDS <= set(body) <= GAP_FIELDS | {"missed_estimate", "epoch"}, body
    assert body["reason"] == reason, body
    return body["gap_from"], body["gap_to"]
