"""Find the last byte of a reply in the received data. Only the necessary parts are parsed.

    feed(data) -> False ... -> True, then ``body`` is the reply; the next `feed` begins the next one

An error in a reply raises `BadReply`.
"""

from __future__ import annotations

from typing import Protocol

HEAD_END = b"\r\n\r\n"


def http(method: str, path: str, body: bytes = b"", media_type: str = "application/json") -> bytes:
    """Return the bytes of an HTTP request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_type}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class BadReply(Exception):
    """The server refused the request."""


class Reply(Protocol):
    """The replies of one connection, in sequence."""

    body: bytes

    def feed(self, data: bytes) -> bool:
        """Add received data. Return whether the reply is complete."""
        ...


class Http:
    """An HTTP/1.1 response with status 2xx."""

    def __init__(self, bad: bytes = b"") -> None:
        self.body, self.head = b"", b""
        self._bad, self._parts, self._left = bad, list[bytes](), -1
        self._chunks: Chunks | None = None

    def feed(self, data: bytes) -> bool:
        """As `Reply.feed`."""
        if self._left < 0:
            data = b"".join((*self._parts, data))
            at = data.find(HEAD_END)
            if at < 0:
                self._parts = [data]
                return False
            self._begin_body(data[:at])
            data = data[at + len(HEAD_END) :]
            self._parts = []
        if self._chunks is not None:
            return self._chunks.feed(data) and self._end(self._chunks.body)
        self._parts.append(data)
        self._left -= len(data)
        return self._left <= 0 and self._end(b"".join(self._parts))

    def _begin_body(self, head: bytes) -> None:
        self.head = head
        self._chunks = Chunks() if b"transfer-encoding: chunked" in head.lower() else None
        self._left = int(self.field(b"content-length") or 0)

    def field(self, name: bytes) -> bytes:
        """Return a field of the last head, or an empty value if the head lacks it."""
        at = self.head.lower().find(b"\r\n" + name + b":")
        return self.head[at + 3 + len(name) :].split(b"\r\n", 1)[0].strip() if at >= 0 else b""

    def _end(self, body: bytes) -> bool:
        self.body, self._parts, self._left = body, [], -1
        if self.head[9:10] != b"2" or (self._bad and self._bad in body):
            raise BadReply((self.head[:80] + b" ... " + body[:200]).decode(errors="replace"))
        return True


class Chunks:
    """A chunked body; trailers are not expected."""

    def __init__(self) -> None:
        self.body, self._parts = b"", list[bytes]()
        self._data = bytearray()  # of the body, from the next chunk on

    def feed(self, data: bytes) -> bool:
        """As `Reply.feed`."""
        self._data += data
        at = 0
        while (line := self._data.find(b"\r\n", at)) >= 0:
            size = int(self._data[at:line], 16)
            end = line + 2 + size + 2
            if len(self._data) < end:
                break
            self._parts.append(bytes(self._data[line + 2 : end - 2]))
            at = end
            if not size:
                self.body = b"".join(self._parts)
                return True
        del self._data[:at]
        return False


class Marks:
    """A reply that is complete when it contains ``count`` marks. It is an error if the reply or one
    of its lines starts with ``bad``.
    """

    def __init__(self, mark: bytes, count: int = 1, bad: bytes = b"") -> None:
        self.body = b""
        self._mark, self._count, self._bad = mark, count, bad
        self._data, self._seen, self._searched = bytearray(), 0, 0

    def feed(self, data: bytes) -> bool:
        """As `Reply.feed`."""
        self._data += data
        self._seen += self._data.count(self._mark, self._searched)
        at = self._data.rfind(self._mark, self._searched)
        # Count no mark twice. The data may end in the middle of a mark.
        cut = max(self._searched, len(self._data) - len(self._mark) + 1)
        self._searched = max(cut, at + len(self._mark)) if at >= 0 else cut
        bad = self._bad
        if bad and (self._data.startswith(bad) or b"\r\n" + bad in self._data):
            raise BadReply(bytes(self._data[:300]).decode(errors="replace"))
        if self._seen < self._count:
            return False
        assert self._seen == self._count, "received more than one reply"
        self.body, self._data = bytes(self._data), bytearray()
        self._seen = self._searched = 0
        return True
