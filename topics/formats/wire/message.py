"""One message in a ring. Integers little-endian; the header, then subject, payload and attachment
without padding.

    offset  size  field         meaning
    0       4     total_len     bytes of the whole message, this header included
    4       4     payload_len   bytes of payload; what is left after it is the attachment
    8       8     frame_id      fresh for every message of a sender, never reused in a session
    16      2     subject_len   bytes of subject, ASCII, e.g. rpc/append
    18      2     flags         Flag
    20      4     reserved      zero

A payload is a small CBOR envelope. A body of JSON never goes into it: it is the attachment, as raw
bytes.
"""

from __future__ import annotations

import struct
from enum import IntFlag
from typing import Final

import msgspec

from topics.formats.buffers import Buffer

HEADER: Final = struct.Struct("<IIQHHI")
assert HEADER.size == 24

ARENA_REF: Final = struct.Struct(
    "<QQ"
)  # offset and length, in bytes, of a block in the sender's arena
assert ARENA_REF.size == 16

MAX_MESSAGE_BYTES: Final = 1 << 30  # a length above it can only be damage
VIEW_BYTES: Final = (
    64 * 1024
)  # a longer attachment is not copied again; it keeps the bytes that it was read with alive
SUBJECTS_MAX: Final = (
    4096  # a program has a few dozen subjects; the bound is for one that makes them up
)

DAMAGED: Final = -1
"""What ``announced_length`` says of bytes that no sender of ours wrote."""


class PeerGone(Exception):
    """The other process is not there, or the session with it is over."""


class Flag(IntFlag):
    """Bits of ``flags``. They cross between processes of one start only, never to disk."""

    ERROR = 1  # an ErrorFrame: payload is CBOR {code, message, about}
    ARENA = 2  # the attachment is an ARENA_REF
    RELEASE = (
        4  # no payload; the attachment is an ARENA_REF that the receiver of that block is done with
    )


ARENA: Final = int(Flag.ARENA)
RELEASE: Final = int(Flag.RELEASE)
ERROR: Final = int(Flag.ERROR)
_ALL_FLAGS: Final = ERROR | ARENA | RELEASE


class MessageFrame(msgspec.Struct, frozen=True, gc=False):
    """A message as it was received. ``payload`` and ``attachment`` are bytes, or views that keep
    their memory alive.
    """

    frame_id: int
    flags: int
    subject: str
    payload: bytes | memoryview
    attachment: bytes | memoryview


def encode_head(
    frame_id: int, subject: str, payload: bytes, attachment_len: int, flags: int = 0
) -> bytes:
    """Everything but the attachment, which the caller sends right behind it.

    Raises ValueError for a message that the layout cannot carry, UnicodeEncodeError for a subject
    outside ASCII.
    """
    name = subject.encode("ascii")
    total = 24 + len(name) + len(payload) + attachment_len
    if total > MAX_MESSAGE_BYTES or len(name) > 0xFFFF:
        raise ValueError(
            f"a message of {total} bytes with a subject of {len(name)} does not fit the layout"
        )
    return HEADER.pack(total, len(payload), frame_id, len(name), flags, 0) + name + payload


def encode(
    frame_id: int, subject: str, payload: bytes, attachment: Buffer = b"", flags: int = 0
) -> bytes:
    """The whole message as one piece; ``attachment`` is copied. Raises as ``encode_head`` does."""
    with memoryview(attachment) as view:
        return encode_head(frame_id, subject, payload, view.nbytes, flags) + view.cast("B")


def announced_length(buffer: bytes, start: int = 0) -> int:
    """``total_len`` of the message at ``start``; 0 when its header is not whole yet, DAMAGED when
    it cannot be true.
    """
    if len(buffer) - start < 24:
        return 0
    total, payload_len, _, subject_len, flags, reserved = HEADER.unpack_from(buffer, start)
    if (
        total > MAX_MESSAGE_BYTES
        or 24 + subject_len + payload_len > total
        or flags & ~_ALL_FLAGS
        or reserved
    ):
        return DAMAGED
    return int(total)


def decode_all(buffer: bytes) -> tuple[list[MessageFrame], int]:
    """The whole messages at the start of ``buffer``, and how many bytes they take.

    Never raises. The rest begins with a message that is not whole, or that ``announced_length``
    calls DAMAGED.
    """
    frames: list[MessageFrame] = []
    add, unpack, subjects, size = frames.append, HEADER.unpack_from, _SUBJECTS, len(buffer)
    start = 0
    while size - start >= 24:
        total, payload_len, frame_id, subject_len, flags, reserved = unpack(buffer, start)
        payload_at = start + 24 + subject_len
        attachment_at = payload_at + payload_len
        end = start + total
        if end > size or attachment_at > end or reserved or flags > _ALL_FLAGS:
            break
        name = buffer[start + 24 : payload_at]
        subject = subjects.get(name)
        if subject is None and (subject := _new_subject(name)) is None:
            break
        if end - attachment_at <= VIEW_BYTES:
            attachment: bytes | memoryview = buffer[attachment_at:end]
        else:
            attachment = memoryview(buffer)[attachment_at:end]
        add(MessageFrame(frame_id, flags, subject, buffer[payload_at:attachment_at], attachment))
        start = end
    return frames, start


class Assembler:
    """Messages out of a byte stream that is cut anywhere. Every byte is copied a bounded number of
    times.
    """

    __slots__ = ("_have", "_need", "_parts", "damaged")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0  # bytes in _parts
        self._need = 0  # bytes of the message, or of the header, that they begin
        self.damaged = False
        """The stream holds what no sender of ours wrote; everything from there on is ignored."""

    def feed(self, data: bytes) -> list[MessageFrame]:
        """The messages that ``data`` completes, in order."""
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(
                self._parts
            )  # it completes a message, or a header: never the same bytes again and again
            self._parts.clear()
        frames, consumed = decode_all(data)
        if consumed < len(data) and not self.damaged:
            self._keep(data[consumed:] if consumed else data)
        return frames

    def _keep(self, rest: bytes) -> None:
        length = announced_length(rest)
        if length == DAMAGED or 0 < length <= len(
            rest
        ):  # whole, and still decode_all would not have it
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
