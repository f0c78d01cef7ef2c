"""Body framing: finds the end of the body of an HTTP/1.1 request (RFC 9112 §6).

The code performs no I/O: it uses no socket, no clock and no task.

    body     = Content-Length bytes | chunks           never both; chunked is the only coding
    chunk    = 1*16 hex [";" extension] CRLF bytes CRLF
    chunks   = chunk* "0" CRLF field* CRLF

A malformed chunk is rejected and never skipped.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import TypeAlias

from topics.errors import InvalidRequest
from topics.formats.api.request_heads import TOKEN, VALUE

CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
TRAILER = re.compile(TOKEN + rb":" + VALUE)

LINE_MAX_BYTES = 4 * 1024  # maximum length of a chunk-size line or a trailer line
TRAILERS_MAX_BYTES = 16 * 1024
# Maximum number of lines that a call to `ChunkedBody.take` reads. With 1-byte chunks, this takes
# 0.5 ms.
LINES_PER_CALL = 512


class SizedBody:
    """A body of Content-Length bytes. ``done`` is set after the last one."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0

    def take(self, data: bytes, pos: int) -> tuple[list[memoryview], int]:
        """Return the payload in ``data[pos:]``, and the position after it.

        Bytes after the body are not consumed.
        """
        end = min(pos + self._left, len(data))
        self._left -= end - pos
        self.done = self._left == 0
        return [memoryview(data)[pos:end]] if end > pos else [], end


class _Line(Enum):
    """The kind of the next line of a chunked body."""

    SIZE = auto()
    AFTER_DATA = auto()
    TRAILER = auto()


class ChunkedBody:
    """A chunked body. ``done`` is set after the last line.

    SIZE --n>0--> data --> AFTER_DATA --> SIZE
    SIZE --0----> TRAILER* --> done
    """

    def __init__(self) -> None:
        self.done = False
        self._next = _Line.SIZE
        self._line = bytearray()  # the start of an incomplete line
        self._left = 0  # number of remaining bytes of the current chunk
        self._trailer_bytes = 0

    def take(self, data: bytes, pos: int) -> tuple[list[memoryview], int]:
        """Read at most `LINES_PER_CALL` lines. Returns their payload and the position after them.

        Raises `InvalidRequest`.
        """
        chunks = []
        for _ in range(LINES_PER_CALL):
            if self._left and pos < len(data):
                end = min(pos + self._left, len(data))
                chunks.append(memoryview(data)[pos:end])
                self._left -= end - pos
                pos = end
            if self.done or pos == len(data):
                break
            pos = self._line_part(data, pos)
        return chunks, pos

    def _line_part(self, data: bytes, pos: int) -> int:
        newline = data.find(b"\n", pos, pos + LINE_MAX_BYTES)
        end = newline + 1 if newline >= 0 else min(len(data), pos + LINE_MAX_BYTES)
        self._line += data[pos:end]
        if len(self._line) > LINE_MAX_BYTES:
            raise InvalidRequest("the header line of a chunk is too long")
        if newline >= 0:
            line = bytes(self._line)
            self._line.clear()
            if not line.endswith(b"\r\n"):
                raise InvalidRequest("the lines of a chunked body must end with CRLF")
            self._take_line(line[:-2])
        return end

    def _take_line(self, line: bytes) -> None:
        if self._next is _Line.SIZE:
            self._take_size(line)
        elif self._next is _Line.AFTER_DATA:
            if line:
                raise InvalidRequest("a chunk is longer than its size")
            self._next = _Line.SIZE
        elif not line:
            self.done = True
        else:
            self._take_trailer(line)

    def _take_size(self, line: bytes) -> None:
        size = CHUNK_SIZE.fullmatch(line)
        if size is None:
            raise InvalidRequest("malformed chunk size")
        self._left = int(size[1], 16)
        self._next = _Line.AFTER_DATA if self._left else _Line.TRAILER

    def _take_trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if self._trailer_bytes > TRAILERS_MAX_BYTES or TRAILER.fullmatch(line) is None:
            raise InvalidRequest("malformed trailer")


Framing: TypeAlias = SizedBody | ChunkedBody


def framing(length: int | None) -> Framing:
    """Return the parser for a body, given the ``length`` from its `Head`."""
    return ChunkedBody() if length is None else SizedBody(length)
