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
so no payload is compressed. This module knows single frames; `websocket_decoder` follows a stream.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

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
    """As `text_frame`; long parts are copied once."""
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
