"""Response heads: status line and header fields as bytes (RFC 9112 §4), and the chunks of a body
without a length (RFC 9112 §7.1). No other module renders header fields for a socket.

    chunk    = size in hex CRLF data CRLF    never empty: an empty one is `LAST_CHUNK`

Every response has a Date, and `Cache-Control: no-store` unless its headers contain another
Cache-Control. The constant part of a head is rendered once for each status, media type and Date.
"""

from __future__ import annotations

from http import HTTPStatus

from topics.formats.api.request_heads import Headers

JSON = b"application/json"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE = b"connection: close\r\n"
NO_STORE = b"cache-control: no-store\r\n"
CHUNKED = (b"transfer-encoding", b"chunked")
CHUNK_END = b"\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class ResponseHeads:
    """Renders the heads of responses."""

    def __init__(self) -> None:
        self._date = b""
        self._starts: dict[tuple[int, bytes], bytes] = {}

    def set_date(self, date: bytes) -> None:
        """Set the IMF-fixdate; called once a second."""
        if date != self._date:
            self._date = date
            self._starts.clear()

    def render(
        self,
        status: int,
        length: int,
        headers: Headers = (),
        *,
        lines: bytes = b"",
        media_type: bytes = JSON,
        close: bool = False,
    ) -> bytes:
        """Render a complete head. ``lines`` are field lines rendered by `field_lines`."""
        start = self._starts.get((status, media_type)) or self._start(status, media_type)
        if not headers and not close:
            return b"%b%d\r\n%b%b\r\n" % (start, length, lines, NO_STORE)
        return b"%b%d\r\n%b%b\r\n" % (start, length, lines, _last(headers, close))

    def render_bare(
        self, status: int, headers: Headers, *, lines: bytes = b"", close: bool = False
    ) -> bytes:
        """Render the head of a stream, or of a response without a body (204 or 304).

        It has no length, and it has a content type only if ``headers`` contains one.
        """
        last = _last(headers, close)
        return b"%bdate: %b\r\n%b%b\r\n" % (_status_line(status), self._date, lines, last)

    def _start(self, status: int, media_type: bytes) -> bytes:
        """Render and cache the head up to and including ``content-length: ``."""
        start = b"%bcontent-type: %b\r\ndate: %b\r\ncontent-length: " % (
            _status_line(status),
            media_type,
            self._date,
        )
        self._starts[status, media_type] = start
        return start


def _last(headers: Headers, close: bool) -> bytes:
    is_cached = any(name == b"cache-control" for name, _ in headers)
    return field_lines(headers) + (b"" if is_cached else NO_STORE) + (CLOSE if close else b"")


def chunk_start(length: int) -> bytes:
    """Return the bytes that precede a chunk's data. `CHUNK_END` must follow the data."""
    return b"%x\r\n" % length


def chunk_of(data: bytes) -> bytes:
    """Return data as one chunk. Return b"" for no data, because an empty chunk would terminate the
    body.
    """
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def field_lines(headers: Headers) -> bytes:
    """Render the fields as lines of a head."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def _status_line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode("ascii"))
