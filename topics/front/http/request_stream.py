"""Request stream: HTTP/1.1 of one connection without its socket. Bytes in, requests out.

    receive --> next_head --> take, or skip: its body --.
                    ^-----------------------------------'

It knows neither sockets nor clocks nor tasks: whoever holds the socket decides when. However the
bytes are cut, the same heads and bodies come out. A short body of a declared length is collected
here; `topics.front.http.body_reader` reads all others, from ``buffer[pos:]`` on.
"""

from __future__ import annotations

from topics.formats.api.request_heads import HEAD_END, PartialHead, end_of_empty_lines


class RequestStream:
    """What one client sends. ``buffer[pos:]`` has come and is not used yet. ``part``: of a head."""

    def __init__(self, said: bytes = b"") -> None:
        """``said`` has come already."""
        self.buffer = said
        self.pos = 0
        self.part: PartialHead | None = None

    def receive(self, data: bytes) -> None:
        """These bytes have come."""
        self.buffer = self.buffer[self.pos :] + data if self.pos < len(self.buffer) else data
        self.pos = 0

    @property
    def is_idle(self) -> bool:
        """Nothing of a request has come."""
        return self.part is None and self.pos == len(self.buffer)

    def next_head(self) -> bytes | None:
        """A whole head, or None before all of it has come. Raises `InvalidRequest` when it cannot
        become one.
        """
        buffer, part = self.buffer, self.part
        if part is None:
            if self.pos == len(buffer):
                return None
            # Empty lines before a request mean nothing (RFC 9112 §2.2).
            if buffer.startswith(b"\r\n", self.pos):
                self.pos = end_of_empty_lines(buffer, self.pos)
            end = buffer.find(HEAD_END, self.pos)
            if end >= 0:
                raw = buffer[self.pos : end + 4]
                self.pos = end + 4
                return raw
            if self.pos == len(buffer):
                return None
            part = self.part = PartialHead()
        used = part.feed(buffer[self.pos :])
        if used is None:
            self.buffer, self.pos = b"", 0
            return None
        self.pos += used
        self.part, raw = None, part.whole()
        if not raw.startswith(b"\r\n"):
            return raw
        # Its first byte ended an empty line: the bytes after it are searched again.
        self.buffer, self.pos = raw + buffer[self.pos :], 0
        return self.next_head()

    def take(self, length: int) -> bytes | None:
        """So many bytes of a body, or None before all have come."""
        start, end = self.pos, self.pos + length
        if end > len(self.buffer):
            return None
        self.pos = end
        return self.buffer[start:end]

    def skip(self, length: int) -> int:
        """Pass over a body; how many bytes of it are still to come."""
        passed = min(length, len(self.buffer) - self.pos)
        self.pos += passed
        return length - passed

    def compact(self) -> int:
        """Drop the used part of the buffer, and return the number of bytes that are kept.

        If the unused rest is longer, keep both, because copying the rest each time would cost more.
        The result includes the bytes of a partial head.
        """
        if 2 * self.pos >= len(self.buffer):
            self.buffer, self.pos = self.buffer[self.pos :], 0
        return len(self.buffer) + (0 if self.part is None else self.part.size)

    def clear(self) -> None:
        """Forget what is left."""
        self.buffer, self.pos, self.part = b"", 0, None
