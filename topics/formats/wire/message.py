"""Ring messages: header, subject, payload and attachment, without padding. Integers little-endian.

    offset  size  field         meaning
    0       4     total_len     bytes of the whole message, this header included
    4       4     payload_len   bytes of payload; what is left after it is the attachment
    8       8     message_id    fresh for every message of a sender, never reused in a link session
    16      2     subject_len   bytes of subject, ASCII, e.g. rpc/append
    18      2     flags         Flag
    20      4     reserved      zero

The payload is a small CBOR envelope (`topics.formats.wire.envelope`). The attachment is raw bytes,
such as a JSON body. A message that arrives in pieces is put together by the `Assembler`. Decoders
never raise: they stop at bytes that no sender of this program wrote.
"""

from __future__ import annotations

import struct
from enum import IntFlag
from typing import Final

import msgspec

from topics.formats.buffers import Buffer

HEADER: Final = struct.Struct("<IIQHHI")
assert HEADER.size == 24

ARENA_REF: Final = struct.Struct("<QQ")  # offset and bytes of a block in the sender's arena
assert ARENA_REF.size == 16

MAX_MESSAGE_BYTES: Final = 1 << 30  # a longer total_len is damage
# Up to this an attachment is copied. A longer one is a view, which keeps all bytes that were read
# with it alive.
COPIED_MAX_BYTES: Final = 64 * 1024
# Subjects that are decoded once. A program has a few dozen; the bound stops one that makes them up.
SUBJECTS_MAX: Final = 4096

DAMAGED: Final = -1
"""``announced_length`` of bytes that no sender of this program wrote."""


class PeerGone(Exception):
    """The other process is not there, or the link session with it is closed."""


class Flag(IntFlag):
    """Bits of ``flags``. They travel between processes of one start only, never to disk."""

    ERROR = 1  # a refusal: payload is CBOR {code, message, about}
    ARENA = 2  # the attachment is an ARENA_REF
    RELEASE = 4  # no payload; the attachment is the ARENA_REF of a block that the peer may free


ARENA: Final = int(Flag.ARENA)
RELEASE: Final = int(Flag.RELEASE)
ERROR: Final = int(Flag.ERROR)
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


def encode(
    message_id: int, subject: str, payload: bytes, attachment: Buffer = b"", flags: int = 0
) -> bytes:
    """The whole message as one piece; ``attachment`` is copied. Raises as ``encode_head`` does."""
    with memoryview(attachment) as view:
        return encode_head(message_id, subject, payload, view.nbytes, flags) + view.cast("B")


def announced_length(buffer: bytes) -> int:
    """``total_len`` of the first message; 0 while its header is incomplete, DAMAGED when it cannot
    be true.
    """
    if len(buffer) < 24:
        return 0
    total, payload_len, _, subject_len, flags, reserved = HEADER.unpack_from(buffer)
    if (
        total > MAX_MESSAGE_BYTES
        or 24 + subject_len + payload_len > total
        or flags & ~_ALL_FLAGS
        or reserved
    ):
        return DAMAGED
    return int(total)


def decode_all(buffer: bytes) -> tuple[list[Message], int]:
    """The complete messages at the start of ``buffer``, and how many bytes they take.

    Never raises. The rest begins with an incomplete message, or with one that ``announced_length``
    calls DAMAGED.
    """
    messages: list[Message] = []
    add, unpack, subjects, size = messages.append, HEADER.unpack_from, _SUBJECTS, len(buffer)
    start = 0
    while size - start >= 24:
        total, payload_len, message_id, subject_len, flags, reserved = unpack(buffer, start)
        payload_at = start + 24 + subject_len
        attachment_at = payload_at + payload_len
        end = start + total
        if end > size or attachment_at > end or reserved or flags > _ALL_FLAGS:
            break
        name = buffer[start + 24 : payload_at]
        subject = subjects.get(name)
        if subject is None and (subject := _new_subject(name)) is None:
            break
        if end - attachment_at <= COPIED_MAX_BYTES:
            attachment: bytes | memoryview = buffer[attachment_at:end]
        else:
            attachment = memoryview(buffer)[attachment_at:end]
        add(Message(message_id, flags, subject, buffer[payload_at:attachment_at], attachment))
        start = end
    return messages, start


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
        """The stream holds bytes that no sender of this program wrote; the rest is ignored."""

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
        messages, consumed = decode_all(data)
        if consumed < len(data) and not self.damaged:
            self._keep(data[consumed:] if consumed else data)
        return messages

    def _keep(self, rest: bytes) -> None:
        length = announced_length(rest)
        is_refused = 0 < length <= len(rest)  # complete, and `decode_all` has stopped before it
        if length == DAMAGED or is_refused:
            self.damaged = True
            return
        self._parts.append(rest)
        self._have = len(rest)
        self._need = length or HEADER.size


_SUBJECTS: dict[bytes, str] = {}


def _new_subject(name: bytes) -> str | None:
    if not name.isascii():
        return None
    subject = name.decode("ascii")
    if len(_SUBJECTS) < SUBJECTS_MAX:
        _SUBJECTS[name] = subject
    return subject
