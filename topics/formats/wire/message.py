"""Ring messages: header, subject, payload and attachment, without padding. Integers are
little-endian.

    offset  size  field         meaning
    0       4     total_len     bytes of the complete message, including this header
    4       4     payload_len   bytes of the payload; the rest of the message is the attachment
    8       8     message_id    unique for the sender, never reused in a link session
    16      2     subject_len   bytes of subject, ASCII, e.g. rpc/append
    18      2     flags         ERROR, ARENA, RELEASE
    20      4     reserved      zero

The payload is a small envelope (`topics.formats.wire.envelope`). The attachment is raw bytes,
such as a JSON body. The `Assembler` never raises. It stops at bytes that no sender of this program
can have written.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

HEADER: Final = struct.Struct("<IIQHHI")
assert HEADER.size == 24

ARENA_REF: Final = struct.Struct("<QQ")  # offset and bytes of a block in the sender's arena
assert ARENA_REF.size == 16

MAX_MESSAGE_BYTES: Final = 1 << 30  # A larger total_len means that the stream is corrupt.
# Attachments up to this size are copied. A longer attachment is a view, which keeps the complete
# read buffer in memory.
COPIED_MAX_BYTES: Final = 64 * 1024


class PeerClosed(Exception):
    """The other process is not running, or the link session with it is closed."""


# Bits of ``flags``. They are exchanged only between processes of one run of the server, and never
# stored.
ERROR: Final = 1  # a refusal: the payload is {code, message, about}
ARENA: Final = 2  # the attachment is an ARENA_REF
RELEASE: Final = 4  # no payload; the attachment is the ARENA_REF of a block that the peer may free
_ALL_FLAGS: Final = ERROR | ARENA | RELEASE


class Message(msgspec.Struct, frozen=True, gc=False):
    """A received message.

    ``payload`` and ``attachment`` are bytes, or views that keep their memory alive. ``parked_ms``
    is the time for which the receiver has delayed the message; it is not part of the bytes.
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
    """Encode a message without its attachment. The caller must send the attachment after it.

    Raises ValueError if the message is too long for the layout, and UnicodeEncodeError if the
    subject is not ASCII.
    """
    name = subject.encode("ascii")
    total = 24 + len(name) + len(payload) + attachment_len
    if total > MAX_MESSAGE_BYTES or len(name) > 0xFFFF:
        raise ValueError(
            f"a message of {total} bytes with a subject of {len(name)} does not fit the layout"
        )
    return HEADER.pack(total, len(payload), message_id, len(name), flags, 0) + name + payload


class Assembler:
    """Decodes messages from a byte stream that is received in arbitrary fragments.

    Each byte is copied a constant number of times.
    """

    __slots__ = ("_have", "_need", "_parts", "damaged")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0  # number of bytes in _parts
        self._need = 0  # size of the incomplete message, or of its header, if that is incomplete
        self.damaged = False
        """Whether the stream contains invalid bytes. In that case, it can no longer be used."""

    def feed(self, data: bytes) -> list[Message]:
        """Add bytes of the stream, and return the messages that they complete, in order."""
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            # Join only when a header or a message is complete, so that bytes are not copied again
            # for each fragment.
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
"""Cache of subjects, keyed by their bytes. It stays small, because both ends use the same few dozen
subjects.
"""
