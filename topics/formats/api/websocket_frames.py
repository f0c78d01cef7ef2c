"""WebSocket frames, the byte layer of RFC 6455 as a server speaks it. Integers big-endian.

    offset  size       field     meaning
    0       1          first     0x80 FIN: last frame of its message; 0x70 RSV: zero; 0x0f Opcode
    1       1          second    0x80 MASK: 1 from a client, 0 from a server; 0x7f: the length
    2       0, 2 or 8  extended  the length when the short one is 126 (126 and more) or 127 (65536
                                 and more, below 2**63)
    2 + x   0 or 4     key       if MASK; byte i of the payload was XORed with byte i % 4 of it
    6 + x   length     payload   x is the size of ``extended``; without a key it begins at 2 + x

A message is one TEXT or BINARY frame and, until FIN, CONTINUATION frames. Control frames (CLOSE,
PING, PONG) come between them; they have at most 125 bytes and FIN. No extension is ever negotiated,
so no payload is compressed. This module knows single frames, what they say, and the handshake;
`websocket_decoder` follows a stream.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

SHORT_MAX_BYTES: Final = 125  # of a payload without an extended length, and of a control frame

# By the short length: ``extended``, and the least length that needs it.
EXTENDED: Final = {126: (struct.Struct(">H"), 126), 127: (struct.Struct(">Q"), 1 << 16)}


class Opcode(IntEnum):
    """Low bits of the first byte (§5.2); 8 and above are control frames."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


OPCODES: Final = frozenset(map(int, Opcode))


def text_frame(payload: bytes) -> bytes:
    """A text message in one frame. That ``payload`` is UTF-8 is the caller's promise."""
    return _header(Opcode.TEXT, len(payload)) + payload


def text_frame_of(*parts: bytes) -> bytes:
    """A text message of parts in one frame; long ones are copied once."""
    return b"".join((_header(Opcode.TEXT, sum(map(len, parts))), *parts))


def ping_frame(payload: bytes = b"") -> bytes:
    """Raises ValueError for more than 125 bytes."""
    return control_frame(Opcode.PING, payload)


def pong_frame(payload: bytes = b"") -> bytes:
    """Raises ValueError for more than 125 bytes."""
    return control_frame(Opcode.PONG, payload)


def control_frame(opcode: Opcode, payload: bytes) -> bytes:
    """Raises ValueError for more than 125 bytes."""
    if len(payload) > SHORT_MAX_BYTES:
        raise ValueError(f"control frame of {len(payload)} bytes: at most {SHORT_MAX_BYTES}")
    return _header(opcode, len(payload)) + payload


def _header(opcode: Opcode, length: int) -> bytes:
    if length <= SHORT_MAX_BYTES:
        return bytes((0x80 | opcode, length))
    if length < 1 << 16:
        return struct.pack(">BBH", 0x80 | opcode, 126, length)
    return struct.pack(">BBQ", 0x80 | opcode, 127, length)


def header_error(first: int, second: int, in_message: int) -> str:
    """Why no frame of a client may begin with these bytes, within a message or between messages;
    empty if one may.
    """
    opcode = first & 0x0F
    if first & 0x70:
        return "reserved bits are set, but no extension was agreed on"
    if opcode not in OPCODES:
        return f"unknown opcode {opcode}"
    if not second & 0x80:
        return "a frame from a client must be masked"
    if opcode >= Opcode.CLOSE:
        if not first & 0x80:
            return "a control frame must not be fragmented"
        if second & 0x7F > SHORT_MAX_BYTES:
            return "a control frame may have at most 125 bytes"
        return ""
    if opcode and in_message:
        return "a new message began within a fragmented one"
    return "" if opcode or in_message else "a continuation without a message"


# Masks. The key times ...0000000100000001 is the key repeated; what is longer than the payload is
# shifted out at the right.
XOR_MAX_BYTES: Final = 1024  # above it, translating every fourth byte is faster than one integer
ONES: Final = [
    int.from_bytes(b"\0\0\0\1" * words)
    for words in range(XOR_MAX_BYTES // 4 + 1)
    for _ in range(4 if words else 1)
]
CUT_BITS: Final = [-length % 4 * 8 for length in range(XOR_MAX_BYTES + 1)]
_XOR_TABLES: Final = [bytes(byte ^ key for byte in range(256)) for key in range(256)]


def unmask(masked: bytes, key: int) -> bytes:
    """The payload; masking is its own inverse."""
    length = len(masked)
    if length <= XOR_MAX_BYTES:
        return (int.from_bytes(masked) ^ key * ONES[length] >> CUT_BITS[length]).to_bytes(length)
    plain = bytearray(masked)
    for offset, byte in enumerate(key.to_bytes(4)):
        plain[offset::4] = plain[offset::4].translate(_XOR_TABLES[byte])
    return bytes(plain)


# Messages and closes: what a client's stream of frames says

CODE_BYTES: Final = 2
REASON_MAX_BYTES: Final = SHORT_MAX_BYTES - CODE_BYTES


class CloseCode(IntEnum):
    """The codes that this server sends or must know (RFC 6455 §7.4.1)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    NO_STATUS = 1005  # never in a frame: a CLOSE without a code
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008
    TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    TRY_AGAIN_LATER = 1013  # registered after the RFC


class Text(msgspec.Struct, frozen=True, gc=False):
    """A whole text message; ``payload`` is valid UTF-8."""

    payload: bytes


class Binary(msgspec.Struct, frozen=True, gc=False):
    """A whole binary message."""

    payload: bytes


class Ping(msgspec.Struct, frozen=True, gc=False):
    """To be answered with `pong_frame` of the same payload."""

    payload: bytes


class Pong(msgspec.Struct, frozen=True, gc=False):
    """The answer to a ping, or an unsolicited heartbeat."""

    payload: bytes


class Close(msgspec.Struct, frozen=True, gc=False):
    """The client's last frame; ``code`` is NO_STATUS if it gave none. To be answered with
    `close_frame` of the code.
    """

    code: int
    reason: str


class Failure(msgspec.Struct, frozen=True, gc=False):
    """The client broke the protocol or a bound. ``code`` and ``reason`` are for the `close_frame`
    that ends the connection.
    """

    code: int
    reason: str


Event: TypeAlias = Text | Binary | Ping | Pong | Close | Failure


def close_frame(code: int = CloseCode.NORMAL, reason: str = "") -> bytes:
    """A reason is cut to the 123 bytes that fit. NO_STATUS gives a frame without a code, so any
    `Close` can be answered with its code.

    Raises ValueError for a code that must not be sent, and for a reason with lone surrogates.
    """
    if code == CloseCode.NO_STATUS:
        return control_frame(Opcode.CLOSE, b"")
    if not is_close_code(code):
        raise ValueError(f"close code {code} must not be sent")
    cut = reason.encode()[:REASON_MAX_BYTES].decode(errors="ignore")  # whole characters
    return control_frame(Opcode.CLOSE, code.to_bytes(CODE_BYTES) + cut.encode())


def is_close_code(code: int) -> bool:
    """Whether a CLOSE frame may hold it: registered by now, or left to libraries and applications
    (RFC 6455 §7.4).
    """
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def decode_close(payload: bytes) -> Close | Failure:
    """What the payload of a CLOSE frame says: nothing, or a table of two fields.

    offset  size  field   meaning
    0       2     code    big-endian; see `is_close_code`
    2       rest  reason  UTF-8, at most 123 bytes
    """
    if not payload:
        return Close(int(CloseCode.NO_STATUS), "")
    if len(payload) < CODE_BYTES:
        return Failure(int(CloseCode.PROTOCOL_ERROR), "a close frame of one byte")
    code = int.from_bytes(payload[:CODE_BYTES])
    if not is_close_code(code):
        return Failure(int(CloseCode.PROTOCOL_ERROR), f"close code {code} must not be sent")
    try:
        return Close(code, payload[CODE_BYTES:].decode())
    except UnicodeDecodeError:
        return Failure(
            int(CloseCode.INVALID_DATA), "the reason of a close frame is not valid UTF-8"
        )


# The handshake

VERSION: Final = b"13"
_ACCEPT_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")


def is_key(key: bytes) -> bool:
    """Whether a Sec-WebSocket-Key is 16 bytes of base64 (§4.2.1)."""
    return _KEY.fullmatch(key) is not None


def accept_key(key: bytes) -> bytes:
    """The Sec-WebSocket-Accept that answers a Sec-WebSocket-Key (§4.2.2)."""
    return base64.b64encode(hashlib.sha1(key + _ACCEPT_SUFFIX, usedforsecurity=False).digest())
