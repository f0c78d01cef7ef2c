"""HTTP helpers for tests: a plain client, a raw connection, and assertions about responses."""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlencode

import msgspec

from tests.support.traffic_checks import check_response, check_unknown, checks

TIMEOUT_S = 20.0
SLACK_S = 10.0  # For a machine on which a process may be suspended for seconds
GAP = {
    "reason",
    "gap_from",
    "gap_to",
    "earliest_seq",
    "head_seq",
}  # the members of a tombstone (§7) in any representation
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset
REQUEST_LINE = re.compile(rb"(GET|HEAD|PUT|POST|DELETE|OPTIONS) (/[!-~]*) HTTP/1\.[01]\r\n")
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP response, with header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def __str__(self) -> str:
        return f"{self.status} {self.body[:600]!r}"


class Api:
    """A client on one kept-alive connection, for one thread. It reconnects if the server has
    closed the connection.
    """

    def __init__(
        self, address: tuple[str, int], *, token: str | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.address = address
        self._connection = http.client.HTTPConnection(*address, timeout=timeout_s)
        self._token = token

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Make a request.

        ``body``: None sends no body, bytes are sent unchanged, and other values as JSON. A header
        with the value "" is omitted.
        """
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = dict(headers or {})
        if raw is not None and not any(name.lower() == "content-type" for name in sent):
            sent |= JSON
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        self._drop_stale()
        try:
            self._connection.request(
                method,
                path,
                body=raw,
                headers={name: value for name, value in sent.items() if value},
            )
            answer = self._connection.getresponse()
            content = answer.read()
        except BaseException:
            self._connection.close()
            raise
        found = Answer(
            answer.status, {name.lower(): value for name, value in answer.getheaders()}, content
        )
        check_response(method, path, found, None if "Content-Encoding" in sent else raw)
        return found

    def _drop_stale(self) -> None:
        idle = self._connection.sock
        if idle is None:
            return
        poller = select.poll()  # `select.select` accepts no descriptor above 1,023
        poller.register(idle, select.POLLIN)
        if poller.poll(0):
            self._connection.close()

    def put(self, topic: str, config: Any = None, **query: object) -> Answer:
        path = f"/v0/topics/{topic}{_query(query)}"
        return self.call("PUT", path, {} if config is None else config)

    def get(self, topic: str, **query: object) -> Answer:
        return self.call("GET", f"/v0/topics/{topic}{_query(query)}")

    def delete(self, topic: str, **query: object) -> Answer:
        return self.call("DELETE", f"/v0/topics/{topic}{_query(query)}")

    def listing(self, **query: object) -> Answer:
        return self.call("GET", f"/v0/topics{_query(query)}")

    def append(
        self, topic: str, *data: Any, headers: dict[str, str] | None = None, **fields: Any
    ) -> Answer:
        """Append one record for each of ``data``. ``fields`` are other members of the body;
        ``records`` replaces ``data``.
        """
        body = {"records": [{"data": value} for value in data], **fields}
        return self.call("POST", f"/v0/topics/{topic}", body, headers)

    def diff(self, topic: str, **fields: Any) -> Answer:
        return self.call("POST", f"/v0/topics/{topic}/diff", fields)

    def state(self, topic: str) -> Any:
        """Return the state of an existing topic without marking the topic as used."""
        return ok(self.get(topic, touch="false"))

    def read(self, topic: str, **fields: Any) -> list[Any]:
        """Return all records from ``from_seq`` on, read page by page."""
        records: list[Any] = []
        cursor = fields.pop("from_seq", 0)
        while True:
            page = ok(self.diff(topic, from_seq=cursor, limit=1000, **fields))
            records += page["records"]
            assert page["caught_up"] or page["next_from_seq"] > cursor, (
                f"the cursor does not advance: {page}"
            )
            cursor = page["next_from_seq"]
            if page["caught_up"]:
                return records


def _query(query: dict[str, object]) -> str:
    return f"?{urlencode(query)}" if query else ""


def listed(api: Api, **query: object) -> list[str]:
    """Return the names of all topics from all pages."""
    names: list[str] = []
    page = ok(api.listing(**query))
    while True:
        names += [item["topic"] for item in page["topics"]]
        if "next_cursor" not in page:
            return names
        assert page["topics"], "an empty page with a next cursor"
        page = ok(api.listing(**query | {"cursor": page["next_cursor"]}))


class RawRecord(msgspec.Struct):
    """A record whose values keep the bytes that the server sent."""

    seq: int = msgspec.field(name="$seq")
    data: msgspec.Raw
    meta: msgspec.Raw = msgspec.Raw()


class RawDiff(msgspec.Struct):
    records: list[RawRecord]


def raw_records(answer: Answer) -> list[RawRecord]:
    """Return the records of a diff with ``data`` and ``meta`` as bytes."""
    ok(answer)
    return msgspec.json.decode(answer.body, type=RawDiff).records


def ok(answer: Answer, status: int = 200) -> Any:
    """Check for a success and return the body: JSON without an ``error``, with a ``performance``
    object (§0.5, §0.9).
    """
    assert answer.status == status, f"{status} expected, got {answer}"
    assert answer.headers.get("content-type", "").split(";")[0] == "application/json", (
        answer.headers
    )
    body = answer.json()
    assert isinstance(body, dict)
    assert "error" not in body
    assert isinstance(body["performance"], dict)
    assert 0 <= body["performance"]["server_total_ms"] < 120_000
    return body


def refused(answer: Answer, status: int, *codes: str) -> Any:
    """Check for an error in the exact envelope of §0.5 and return the ``error`` object. ``codes``
    are the allowed codes.
    """
    assert answer.status == status, f"{status} {'/'.join(codes)} expected, got {answer}"
    assert answer.headers.get("content-type", "").split(";")[0] == "application/json", (
        answer.headers
    )
    body = answer.json()
    assert set(body) - {"performance"} == {"error"}, body
    error = body["error"]
    assert {"code", "message"} <= set(error) <= {"code", "message", "detail"}, error
    assert error["code"] in codes, f"{codes} expected, got {error}"
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error.get("detail", {}), dict)
    return error


def create(api: Api, topic: str, *data: Any, **config: Any) -> int:
    """Create a topic with these records and return its epoch."""
    ok(api.put(topic, config), 201)
    if data:
        ok(api.append(topic, *data))
    return int(api.state(topic)["epoch"])


def spread(api: Api, make_call: Callable[[Api, int], object], count: int) -> None:
    """Make a call for each number below ``count``, on 16 connections in parallel so that commits
    are shared.
    """

    def some(numbers: Sequence[int]) -> None:
        with Api(api.address, token=api._token) as own:
            for number in numbers:
                make_call(own, number)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(some, [range(first, count, 16) for first in range(16)]))


def data(records: list[Any]) -> list[Any]:
    return [record["data"] for record in records]


def reached(api: Api, topic: str) -> None:
    """Wait until earlier requests on other connections have reached the shard of this topic.

    Ten further requests are made, because no external signal shows that a call waits.
    """
    for _ in range(10):
        api.get(topic, touch="false")


def request(
    method: str, path: str, body: bytes | None = None, *headers: str, version: str = "1.1"
) -> bytes:
    """Return the bytes of one request, with Host, Content-Type and Content-Length."""
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


class Wire:
    """A raw connection. Bytes are sent unchanged, and responses are read one by one."""

    def __init__(
        self,
        address: tuple[str, int],
        timeout_s: float = TIMEOUT_S,
        *,
        receive_bytes: int | None = None,
    ) -> None:
        """Connect. ``receive_bytes`` is the size of the receive buffer, for readers that stall. It
        must be set before the connection is made.
        """
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.settimeout(timeout_s)
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        try:
            self.socket.connect(address)
        except BaseException:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        # Method and target of each pending request, if it is known
        self._unanswered: deque[tuple[str, str]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def close(self) -> None:
        """Close the connection with a FIN."""
        self.socket.close()

    def reset(self) -> None:
        """Close the connection with an RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        for part in parts:
            if checks:
                lines = REQUEST_LINE.findall(part)
                self._unanswered += [(method.decode(), target.decode()) for method, target in lines]
            self.socket.sendall(part)

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def answer(self, method: str = "GET") -> Answer:
        """Return the next complete response. With ``method`` HEAD it has no body. Raise EOFError
        if the server closes the connection earlier.
        """
        answer = self._answer(method)
        if answer.status >= 200:
            if self._unanswered:
                check_response(*self._unanswered.popleft(), answer)
            else:
                check_unknown(answer)
        return answer

    def _answer(self, method: str) -> Answer:
        status, headers = self.head()
        if method == "HEAD" or status < 200 or status in (204, 304):
            return Answer(status, headers, b"")
        if "chunked" in headers.get("transfer-encoding", ""):
            return Answer(status, headers, self._chunks())
        if "content-length" in headers:
            return Answer(status, headers, self._take(int(headers["content-length"])))
        return Answer(status, headers, self.rest())

    def head(self) -> tuple[int, dict[str, str]]:
        """Return status and headers of the next response, which may be an interim one (100)."""
        first, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, status = first.split(" ", 2)[:2]
        assert version == "HTTP/1.1", first
        pairs = (line.partition(":") for line in lines if line)
        return int(status), {name.strip().lower(): value.strip() for name, _, value in pairs}

    def rest(self) -> bytes:
        """Return everything up to the end of the connection. A reset counts as an end."""
        while self._receive():
            pass
        rest, self._buffer = bytes(self._buffer), bytearray()
        return rest

    def assert_closed(self) -> None:
        """Check that the server closes the connection without sending more."""
        assert self.rest() == b"", "more bytes after the last response"

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            body += self._take(size)
            self._take(2)
        self._until(b"\r\n")
        return body

    def _until(self, end: bytes) -> bytes:
        while (at := self._buffer.find(end)) < 0:
            self._need()
        return self._take(at + len(end))[:at]

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._need()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _need(self) -> None:
        if not self._receive():
            raise EOFError(f"the server closed within a response: {bytes(self._buffer)!r}")

    def _receive(self) -> bool:
        try:
            chunk = self.socket.recv(1 << 16)
        except (ConnectionResetError, BrokenPipeError):
            return False
        self._buffer += chunk
        return bool(chunk)
