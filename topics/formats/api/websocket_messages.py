"""WebSocket messages and closes: what a client's stream of frames says, as values, and the CLOSE
frames that end a connection.

A CLOSE payload holds nothing, or a table of two fields:

    offset  size  field   meaning
    0       2     code    big-endian; see `is_close_code`
    2       rest  reason  UTF-8, at most 123 bytes
"""

from __future__ import annotations

import base64
import hashlib
import re
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

from topics.formats.api.websocket_frames import SHORT_MAX_BYTES, Opcode, control_frame

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
    """What the payload of a CLOSE frame says."""
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


VERSION: Final = b"13"
_ACCEPT_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")


def is_key(key: bytes) -> bool:
    """Whether a Sec-WebSocket-Key is 16 bytes of base64 (§4.2.1)."""
    return _KEY.fullmatch(key) is not None


def accept_key(key: bytes) -> bytes:
    """The Sec-WebSocket-Accept that answers a Sec-WebSocket-Key (§4.2.2)."""
    return base64.b64encode(hashlib.sha1(key + _ACCEPT_SUFFIX, usedforsecurity=False).digest())
