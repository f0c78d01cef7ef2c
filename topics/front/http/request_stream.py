"""Request stream: the HTTP/1.1 input of one connection, independent of its socket.

    receive --> next_head --> take, or skip: its body --.
                    ^-----------------------------------'

The caller adds received bytes and gets heads and bodies. They do not depend on how the network has
split the bytes. This module uses no sockets, clocks or tasks; the owner of the socket decides when
to read. A short body with a declared length is collected here. `topics.front.http.body_reader`
reads all other bodies, starting at ``buffer[pos:]``.
"""

from __future__ import annotations

from topics.formats.api.request_heads import HEAD_END, PartialHead, end_of_empty_lines


class RequestStream:
    """The input of one client.

    ``buffer[pos:]`` has been received and is not used yet. ``part`` is an incomplete head, or None.
    """

    def __init__(self, initial_input: bytes = b"") -> None:
        """``initial_input`` is input that has already been received."""
        self.buffer = initial_input
        self.pos = 0
        self.part: PartialHead | None = None

    def receive(self, data: bytes) -> None:
        """Append received bytes to the unused input."""
        self.buffer = self.buffer[self.pos :] + data if self.pos < len(self.buffer) else data
        self.pos = 0

    @property
    def is_idle(self) -> bool:
        """Whether no byte of a request has been received."""
        return self.part is None and self.pos == len(self.buffer)

    def next_head(self) -> bytes | None:
        """Return a complete head, or None if it has not fully arrived.

        Raise `InvalidRequest` if the input cannot become a head, because it is too long or
        malformed.
        """
        buffer, part = self.buffer, self.part
        if part is None:
            if self.pos == len(buffer):
                return None
            # Empty lines before a request are ignored (RFC 9112 §2.2).
            if buffer.startswith(b"\r\n", self.pos):
                self.pos = end_of_empty_lines(buffer, self.pos)
            # The usual case: the head arrived in one read.
            end = buffer.find(HEAD_END, self.pos)
            if end >= 0:
                raw = buffer[self.pos : end + 4]
                self.pos = end + 4
                return raw
            if self.pos == len(buffer):
                return None
            part = self.part = PartialHead()
        # The head arrives in fragments, which are collected in `part`.
        used = part.feed(buffer[self.pos :])
        if used is None:
            self.buffer, self.pos = b"", 0
            return None
        self.pos += used
        self.part, raw = None, part.complete()
        if not raw.startswith(b"\r\n"):
            return raw
        # The first byte of the head completed an empty line, so the bytes after it are parsed
        # again.
        self.buffer, self.pos = raw + buffer[self.pos :], 0
        return self.next_head()

    def take(self, length: int) -> bytes | None:
        """Return ``length`` bytes of a body, or None if they have not all arrived."""
        start, end = self.pos, self.pos + length
        if end > len(self.buffer):
            return None
        self.pos = end
        return self.buffer[start:end]

    def skip(self, length: int) -> int:
        """Skip ``length`` bytes of a body. Return how many of them have not been received yet."""
        passed = min(length, len(self.buffer) - self.pos)
        self.pos += passed
        return length - passed

    def compact(self) -> int:
        """Drop the used part of the buffer, and return the number of bytes that are kept.

        If the unused part is longer, keep both, because copying it each time would cost more. The
        result includes the bytes of a partial head.
        """
        if 2 * self.pos >= len(self.buffer):
            self.buffer, self.pos = self.buffer[self.pos :], 0
        return len(self.buffer) + (0 if self.part is None else self.part.size)

    def clear(self) -> None:
        """Drop all unused input."""
        self.buffer, self.pos, self.part = b"", 0, None
