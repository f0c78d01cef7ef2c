"""HTTP/1.1 as bytes: heads, body framing, response heads (RFC 9112). Pure: no socket, no clock, no
task.

    request  = method SP target SP "HTTP/1." ("0" | "1") CRLF field* CRLF body
    field    = token ":" OWS value OWS CRLF            no folding, no bare CR or LF, no NUL
    body     = Content-Length bytes | chunks           never both, never twice, no other coding
    chunk    = 1*16 hex [";" extension] CRLF bytes CRLF
    chunks   = chunk* "0" CRLF field* CRLF

A head has at most `HEAD_MAX_BYTES` and `FIELDS_MAX` fields, because it is read before anybody knows
whose request it is.

Whatever is ambiguous is refused, because two servers that read one message differently are how
requests are smuggled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Protocol

from topics.errors import InvalidRequest
from topics.formats.api.fields import Headers, list_members

HEAD_END = b"\r\n\r\n"
HEAD_MAX_BYTES = 64 * 1024
FIELDS_MAX = 256  # of one head: parsing them takes 0.4 ms
OTHER_VERSION = re.compile(rb"[^\r\n]+ HTTP/(?!1\.[01]\r)[0-9](?:\.[0-9])?\r\n")

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
VALUE = rb"[\t\x20-\x7e\x80-\xff]*+"
HEAD = re.compile(
    rb"("
    + TOKEN
    + rb") ([\x21-\x7e]++) HTTP/1\.([01])\r\n((?:"
    + TOKEN
    + rb":"
    + VALUE
    + rb"\r\n)*+)\r\n"
)
FIELD = re.compile(rb"(" + TOKEN + rb"):(" + VALUE + rb")\r\n")
HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~%!$&'()*+,;=]*)(?::[0-9]*)?")
EMPTY_LINES = re.compile(rb"(?:\r\n)*+")
NEVER_IN_HEAD = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
TRAILER = re.compile(TOKEN + rb":" + VALUE)

LINE_MAX_BYTES = 4 * 1024  # of a chunk's head or a trailer
TRAILERS_MAX_BYTES = 16 * 1024
LINES_PER_TURN = 512  # of one Dechunker.take: half a millisecond for 1-byte chunks


@dataclass(frozen=True, slots=True)
class Head:
    """A request's head. ``length`` is None for a chunked body, 0 for none. Field names are
    lower-case.
    """

    method: str
    target: bytes
    fields: list[tuple[bytes, bytes]]
    length: int | None
    close: bool
    expects_continue: bool


def parse_head(raw: bytes) -> Head:
    """``raw`` ends with the empty line. Raises `InvalidRequest` for anything that is not strictly
    well-formed.
    """
    found = HEAD.fullmatch(raw) if len(raw) <= HEAD_MAX_BYTES else None
    if found is None:
        if OTHER_VERSION.match(raw):
            raise InvalidRequest("only HTTP/1.1 and HTTP/1.0 are spoken here")
        raise InvalidRequest("malformed HTTP request head")
    if raw.count(b"\r\n") > FIELDS_MAX + 2:  # the request line and the empty one
        raise InvalidRequest(f"the request head has more than {FIELDS_MAX} fields")
    fields = [(name.lower(), value.strip(b" \t")) for name, value in FIELD.findall(found[4])]
    is_1_1 = found[3] == b"1"
    _check_host(fields, is_1_1)
    connection = list_members(b",".join(_values(fields, b"connection")))
    return Head(
        method=found[1].decode("ascii"),
        target=found[2],
        fields=fields,
        length=_body_length(fields, is_1_1),
        close=not is_1_1 or b"close" in connection,
        expects_continue=is_1_1
        and [v.lower() for v in _values(fields, b"expect")] == [b"100-continue"],
    )


def end_of_empty_lines(data: bytes, pos: int) -> int:
    """The position behind the empty lines that stand at ``pos``."""
    found = EMPTY_LINES.match(data, pos)
    assert found is not None, "no line at all is a match, too"
    return found.end()


class PartialHead:
    """A head that comes in pieces. Every byte is copied and looked at a bounded number of times,
    however many pieces it has.
    """

    def __init__(self) -> None:
        self._part = bytearray()

    def feed(self, data: bytes) -> int | None:
        """How many bytes of ``data`` belong to the head, if it ends there.

        Raises `InvalidRequest` as soon as an unfinished head can no longer become a good one.
        """
        part, seen = self._part, len(self._part)
        part += data
        end = part.find(HEAD_END, max(0, seen - len(HEAD_END) + 1))
        if end >= 0:
            end += len(HEAD_END)
            del part[end:]
            return end - seen
        if len(part) > HEAD_MAX_BYTES:
            raise InvalidRequest(f"the request head is larger than {HEAD_MAX_BYTES} bytes")
        if NEVER_IN_HEAD.search(
            part, max(0, seen - 1)
        ):  # what the last byte means shows in the next one
            raise InvalidRequest("malformed HTTP request head")
        return None

    def whole(self) -> bytes:
        """The head, once its end has come."""
        return bytes(self._part)


def _values(fields: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for field, value in fields if field == name]


def _check_host(fields: list[tuple[bytes, bytes]], is_1_1: bool) -> None:
    hosts = _values(fields, b"host")
    if len(hosts) > 1 or (is_1_1 and not hosts):
        raise InvalidRequest("exactly one Host field is required")
    if hosts and HOST.fullmatch(hosts[0]) is None:
        raise InvalidRequest("malformed Host field")


def _body_length(fields: list[tuple[bytes, bytes]], is_1_1: bool) -> int | None:
    lengths = _values(fields, b"content-length")
    codings = _values(fields, b"transfer-encoding")
    if codings:
        if lengths or not is_1_1 or [coding.lower() for coding in codings] != [b"chunked"]:
            raise InvalidRequest(
                "Transfer-Encoding must be chunked, alone and without Content-Length"
            )
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not (lengths[0].isdigit() and len(lengths[0]) <= 18):
        raise InvalidRequest("Content-Length must be one decimal number")
    return int(lengths[0])


class Framing(Protocol):
    """Where a body ends. ``done`` after the last byte."""

    done: bool

    def take(self, data: bytes, pos: int) -> tuple[list[memoryview], int]:
        """The payload in ``data[pos:]`` and the position after what was used; past the body's end
        nothing is used.
        """


def framing(length: int | None) -> Framing:
    """The framing for a head's ``length``."""
    return Dechunker() if length is None else Sized(length)


class Sized:
    """A body of Content-Length bytes."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0

    def take(self, data: bytes, pos: int) -> tuple[list[memoryview], int]:
        end = min(pos + self._left, len(data))
        self._left -= end - pos
        self.done = self._left == 0
        return [memoryview(data)[pos:end]] if end > pos else [], end


class _Line(Enum):
    """What the next line of a chunked body is."""

    SIZE = auto()
    AFTER_DATA = auto()
    TRAILER = auto()


class Dechunker:
    """A chunked body.

    SIZE --n>0--> data --> AFTER_DATA --> SIZE
    SIZE --0----> TRAILER* --> done
    """

    def __init__(self) -> None:
        self.done = False
        self._next = _Line.SIZE
        self._line = bytearray()  # the start of a line whose end has not come yet
        self._left = 0  # of the current chunk
        self._trailer_bytes = 0

    def take(self, data: bytes, pos: int) -> tuple[list[memoryview], int]:
        """At most `LINES_PER_TURN` lines. Raises `InvalidRequest`."""
        pieces = []
        for _ in range(LINES_PER_TURN):
            if self._left and pos < len(data):
                end = min(pos + self._left, len(data))
                pieces.append(memoryview(data)[pos:end])
                self._left -= end - pos
                pos = end
            if self.done or pos == len(data):
                break
            pos = self._line_part(data, pos)
        return pieces, pos

    def _line_part(self, data: bytes, pos: int) -> int:
        newline = data.find(b"\n", pos, pos + LINE_MAX_BYTES)
        end = newline + 1 if newline >= 0 else min(len(data), pos + LINE_MAX_BYTES)
        self._line += data[pos:end]
        if len(self._line) > LINE_MAX_BYTES:
            raise InvalidRequest("a chunk's head is too long")
        if newline >= 0:
            line = bytes(self._line)
            self._line.clear()
            if not line.endswith(b"\r\n"):
                raise InvalidRequest("a chunked body's lines must end with CRLF")
            self._take_line(line[:-2])
        return end

    def _take_line(self, line: bytes) -> None:
        if self._next is _Line.SIZE:
            size = CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise InvalidRequest("malformed chunk size")
            self._left = int(size[1], 16)
            self._next = _Line.AFTER_DATA if self._left else _Line.TRAILER
        elif self._next is _Line.AFTER_DATA:
            if line:
                raise InvalidRequest("a chunk is longer than its size")
            self._next = _Line.SIZE
        elif not line:
            self.done = True
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > TRAILERS_MAX_BYTES or TRAILER.fullmatch(line) is None:
                raise InvalidRequest("malformed trailer")


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ResponseHeads:
    """Renders response heads. All but the length is made once for each status and Date."""

    def __init__(self) -> None:
        self._date = b""
        self._starts: dict[int, bytes] = {}

    def set_date(self, date: bytes) -> None:
        """An IMF-fixdate; comes once a second."""
        if date != self._date:
            self._date = date
            self._starts.clear()

    def start(self, status: int) -> bytes:
        """The head up to and with ``content-length: ``."""
        start = self._starts.get(status)
        if start is None:
            line = b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode("ascii"))
            start = (
                line
                + b"content-type: application/json\r\ndate: "
                + self._date
                + b"\r\ncontent-length: "
            )
            self._starts[status] = start
        return start

    def render(
        self, status: int, length: int, headers: Headers = (), *, close: bool = False
    ) -> bytes:
        """The whole head."""
        more = b"".join([b"%b: %b\r\n" % header for header in headers])
        return b"%b%d\r\n%b%b\r\n" % (
            self.start(status),
            length,
            more,
            b"connection: close\r\n" if close else b"",
        )
