"""Ring messages: header, subject, payload and attachment, without padding. Integers little-endian.

    offset  size  field         meaning
    0       4     total_len     bytes of the whole message, this header included
    4       4     payload_len   bytes of payload; what is left after it is the attachment
    8       8     message_id    fresh for every message of a sender, never reused in a link session
    16      2     subject_len   bytes of subject, ASCII, e.g. rpc/append
    18      2     flags         ERROR, ARENA, RELEASE
    20      4     reserved      zero

The payload is a small envelope (`topics.formats.wire.envelope`). The attachment is raw bytes,
such as a JSON body. The `Assembler` never raises: it stops at bytes that no sender of this program
wrote.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

HEADER: Final = struct.Struct("<IIQHHI")
assert HEADER.size == 24

ARENA_REF: Final = struct.Struct("<QQ")  # offset and bytes of a block in the sender's arena
assert ARENA_REF.size == 16

MAX_MESSAGE_BYTES: Final = 1 << 30  # a longer total_len is damage
# Up to this an attachment is copied. A longer one is a view, which keeps all bytes that were read
# with it alive.
COPIED_MAX_BYTES: Final = 64 * 1024


class PeerGone(Exception):
    """The other process is not there, or the link session with it is closed."""


# Bits of ``flags``. They travel between processes of one start only, never to disk.
ERROR: Final = 1  # a refusal: the payload is {code, message, about}
ARENA: Final = 2  # the attachment is an ARENA_REF
RELEASE: Final = 4  # no payload; the attachment is the ARENA_REF of a block that the peer may free
_ALL_FLAGS: Final = ERROR | ARENA | RELEASE


class Message(msgspec.Struct, frozen=True, gc=False):
    """A received message. ``payload`` and ``attachment`` are bytes, or views that keep their memory
    alive. ``parked_ms``: for how long the receiver has let it wait behind others; it does not
    travel.
    """

    message_id: int
    flags: int
    subject: str
    payload: bytes | memoryview
    attachment: bytes | memoryview
    parked_ms: float = 0.0


def encode_head(
    message_id: int, subject: str, payload: bytes, attachment_len: int, flags: int = 0
) -> bytes:
    """The message without its attachment, which the caller sends right behind it.

    Raises ValueError for a message that the layout cannot carry, UnicodeEncodeError for a subject
    outside ASCII.
    """
    name = subject.encode("ascii")
    total = 24 + len(name) + len(payload) + attachment_len
    if total > MAX_MESSAGE_BYTES or len(name) > 0xFFFF:
        raise ValueError(
            f"a message of {total} bytes with a subject of {len(name)} does not fit the layout"
        )
    return HEADER.pack(total, len(payload), message_id, len(name), flags, 0) + name + payload


class Assembler:
    """Makes messages of a byte stream that is cut anywhere. It copies every byte a bounded number
    of times.
    """

    __slots__ = ("_have", "_need", "_parts", "damaged")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0  # bytes in _parts
        self._need = 0  # bytes of the message, or of the header, that they begin
        self.damaged = False
        """The stream holds bytes that no sender of this program wrote; it is of no use any more."""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that ``data`` completes, in order."""
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            # Once for each message and header, so the same bytes are not joined again and again.
            data = b"".join(self._parts)
            self._parts.clear()
        messages: list[Message] = []
        unpack, subjects, size, start = HEADER.unpack_from, _SUBJECTS, len(data), 0
        while size - start >= 24:
            total, payload_len, message_id, subject_len, flags, reserved = unpack(data, start)
            payload_at = start + 24 + subject_len
            attachment_at, end = payload_at + payload_len, start + total
            if attachment_at > end or total > MAX_MESSAGE_BYTES or flags > _ALL_FLAGS or reserved:
                self.damaged = True
                return messages
            if end > size:
                break
            name = data[start + 24 : payload_at]
            subject = subjects.get(name)
            if subject is None:
                if not name.isascii():
                    self.damaged = True
                    return messages
                subject = subjects[name] = name.decode("ascii")
            if end - attachment_at <= COPIED_MAX_BYTES:
                attachment: bytes | memoryview = data[attachment_at:end]
            else:
                attachment = memoryview(data)[attachment_at:end]
            payload = data[payload_at:attachment_at]
            messages.append(Message(message_id, flags, subject, payload, attachment))
            start = end
        if start < size:
            self._parts.append(data[start:] if start else data)
            self._have = size - start
            self._need = total if size - start >= 24 else 24
        return messages


_SUBJECTS: dict[bytes, str] = {}
"""Subjects by their bytes: some dozens, for both ends are this program."""
