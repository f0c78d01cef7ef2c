"""WebSocket frames, the server's side of RFC 6455. Integers big-endian. Without extensions:
compression is never negotiated.

    offset  size       field     meaning
    0       1          first     0x80 FIN: the last frame of its message; 0x70 RSV: zero; 0x0f Opcode
    1       1          second    0x80 MASK: 1 from a client, 0 from a server; 0x7f: 0..125 is the length, 126 and 127 say where it is
    2       0, 2 or 8  extended  the length after 126 (at least 126) and after 127 (at least 65536, below 2**63)
    2 + x   0 or 4     key       if MASK; byte i of the payload was XORed with byte i % 4 of it
    6 + x   length     payload   x is the size of ``extended``; without a key the payload begins at 2 + x

A message is one TEXT or BINARY frame and, until FIN, CONTINUATION frames. Control frames (CLOSE,
PING, PONG) come between them; they have at most 125 bytes and FIN. A CLOSE holds nothing, or a code
of 2 bytes and a reason in UTF-8.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import io
import re
import struct
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

SHORT_MAX: Final = 125  # the longest payload without an extended length, and of a control frame
REASON_MAX: Final = SHORT_MAX - 2
PIECE_BYTES: Final = (
    64 * 1024
)  # of a payload that are unmasked and checked at a time; about what a cache holds

_ACCEPT_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")
_TWO_AND_KEY: Final = struct.Struct(
    ">HI"
)  # first and second, or an extended length of 2 bytes; then the key
_EXTENDED: Final = {
    126: (struct.Struct(">H"), 126),
    127: (struct.Struct(">Q"), 1 << 16),
}  # and the least length that needs it
_ALL: Final = 1 << 62
_EMPTY_TEXT: Final = 0x8180  # first and second of a masked TEXT frame with FIN and no payload


class Opcode(IntEnum):
    """Low bits of the first byte (§5.2); 8 and above are control frames."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class CloseCode(IntEnum):
    """The codes that this server gives or must know (§7.4.1)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    NO_STATUS = 1005  # never on the wire: a CLOSE without a code
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008
    TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    TRY_AGAIN_LATER = 1013  # registered after the document


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
    """The answer to a ping, or a heartbeat that nobody asked for."""

    payload: bytes


class Close(msgspec.Struct, frozen=True, gc=False):
    """The last thing a client says; ``code`` is NO_STATUS if it gave none. To be answered with
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


def is_key(key: bytes) -> bool:
    """Whether a Sec-WebSocket-Key is 16 bytes of base64 (§4.2.1)."""
    return _KEY.fullmatch(key) is not None


def accept_key(key: bytes) -> bytes:
    """The Sec-WebSocket-Accept that answers a Sec-WebSocket-Key (§4.2.2)."""
    return base64.b64encode(hashlib.sha1(key + _ACCEPT_SUFFIX, usedforsecurity=False).digest())


def text_header(length: int) -> bytes:
    """What stands before ``length`` bytes of UTF-8 to make them a text frame, so that a shared
    payload is not copied.
    """
    return _header(Opcode.TEXT, length)


def text_frame(payload: bytes) -> bytes:
    """A text message in one frame. That ``payload`` is UTF-8 is the caller's promise."""
    return _header(Opcode.TEXT, len(payload)) + payload


def ping_frame(payload: bytes = b"") -> bytes:
    """Raises ValueError for more than 125 bytes."""
    return _control(Opcode.PING, payload)


def pong_frame(payload: bytes = b"") -> bytes:
    """Raises ValueError for more than 125 bytes."""
    return _control(Opcode.PONG, payload)


def close_frame(code: int = CloseCode.NORMAL, reason: str = "") -> bytes:
    """A reason is cut to the 123 bytes that fit. NO_STATUS gives a frame without a code, so any
    `Close` can be answered with its code.

    Raises ValueError for a code that must not be sent, and for a reason with lone surrogates.
    """
    if code == CloseCode.NO_STATUS:
        return _control(Opcode.CLOSE, b"")
    if not is_close_code(code):
        raise ValueError(f"{code} is not a close code that may be sent")
    cut = reason.encode()[:REASON_MAX].decode(errors="ignore")  # whole characters
    return _control(Opcode.CLOSE, code.to_bytes(2) + cut.encode())


def is_close_code(code: int) -> bool:
    """Whether a CLOSE frame may hold it: registered by now, or left to libraries and applications
    (§7.4).
    """
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def _header(opcode: Opcode, length: int) -> bytes:
    if length <= SHORT_MAX:
        return bytes((0x80 | opcode, length))
    if length < 1 << 16:
        return struct.pack(">BBH", 0x80 | opcode, 126, length)
    return struct.pack(">BBQ", 0x80 | opcode, 127, length)


def _control(opcode: Opcode, payload: bytes) -> bytes:
    if len(payload) > SHORT_MAX:
        raise ValueError(f"a control frame of {len(payload)} bytes: at most {SHORT_MAX}")
    return _header(opcode, len(payload)) + payload


class FrameParser:
    """Events out of a client's byte stream that is cut anywhere.

        between messages --TEXT, BINARY--> in a message --FIN--> between messages
        between messages, in a message --CLOSE, Failure--> ended

    The events of a stream are the same wherever it is cut. Every byte is copied a bounded number of
    times. Between two calls at most ``max_message_bytes`` (and an eighth, to grow) and one control
    frame are held, and only as much as has really come; and while `has_more` also what `feed` was
    given.
    """

    __slots__ = (
        "_data",
        "_final",
        "_key",
        "_kind",
        "_left",
        "_max",
        "_message",
        "_pos",
        "_small_max",
        "_utf8",
        "ended",
        "has_more",
    )

    def __init__(self, max_message_bytes: int) -> None:
        """A longer message, whole or in fragments, is Failure 1009 as soon as a header announces
        it.
        """
        self._max = max_message_bytes
        self._small_max = min(_XOR_MAX, max_message_bytes)
        self._data = (
            b""  # not looked at from ``_pos`` on, or the start of a header or a control frame
        )
        self._pos = 0
        self.has_more = False
        """`feed` has stopped because it was told to, not for want of bytes."""
        self._kind = (
            Opcode.CONTINUATION
        )  # of the message that has begun; CONTINUATION between messages
        self._message = (
            io.BytesIO()
        )  # a list of pieces would cost many times their bytes when they are tiny
        self._utf8 = _Utf8()
        self._left = 0  # bytes to come of the current data frame's payload
        self._key = 0  # turned so that it begins with the byte for the next byte of the payload
        self._final = True  # the current data frame is the last one of its message
        self.ended = False
        """There was a Close or a Failure; everything after it is ignored."""

    @property
    def is_amid(self) -> bool:
        """Something has begun, a message or a frame, and not come whole."""
        return bool(self._kind or self._data) and not self.ended

    @property
    def held_bytes(self) -> int:
        """Of the message that has begun."""
        return self._message.tell()

    def feed(self, data: bytes, most: int = _ALL) -> list[Event]:
        """The events that ``data`` completes, in order. Never raises on any bytes.

        After about ``most`` frames and pieces it stops; `has_more` then, and the rest comes with
        the next call, which needs no ``data``. Not to be given more than that rest: it is copied
        each time.
        """
        events: list[Event] = []
        if data:
            self._data, self._pos = self._data[self._pos :] + data if self._data else data, 0
        data, pos, size, self.has_more = self._data, self._pos, len(self._data), False
        while pos < size and not self.ended:
            if most <= 0:
                self.has_more, self._pos = True, pos
                return events
            most -= 1
            if self._left:
                pos = self._take_payload(data, pos, events)
                continue
            if not self._kind:
                before = len(events)
                pos = _small_texts(data, pos, self._small_max, most, events)
                most -= len(events) - before
            begun = self._begin_frame(data, pos, events)
            if begun == pos:
                break
            pos = begun
        self._data, self._pos = b"" if self.ended else data[pos:], 0
        return events

    def _begin_frame(self, data: bytes, pos: int, events: list[Event]) -> int:
        """Where a data frame's payload begins, or the frame ends; ``pos`` if there must be more
        bytes first, or never again.
        """
        have = len(data) - pos
        if have < 2:
            return pos
        first, second = data[pos], data[pos + 1]
        if refusal := self._refusal(first, second):
            self._fail(events, CloseCode.PROTOCOL_ERROR, refusal)
            return pos
        length, start = second & 0x7F, pos + 6
        if length > SHORT_MAX:
            extended, least = _EXTENDED[length]
            if have < 2 + extended.size:
                return pos
            (length,) = extended.unpack_from(data, pos + 2)
            start += extended.size
            if length < least or length >> 63:
                self._fail(
                    events,
                    CloseCode.PROTOCOL_ERROR,
                    "a frame's length is not in its shortest form, or has its top bit set",
                )
                return pos
        opcode = first & 0x0F
        if opcode < Opcode.CLOSE and self._message.tell() + length > self._max:
            self._fail(events, CloseCode.TOO_BIG, f"a message may have at most {self._max} bytes")
            return pos
        end = start + length
        if len(data) < (end if opcode >= Opcode.CLOSE else start):
            return pos
        key = int.from_bytes(data[start - 4 : start])
        if opcode >= Opcode.CLOSE:
            self._take_control(opcode, _unmask(data[start:end], key), events)
        elif first >= 0x80 and opcode and end <= len(data) and length <= PIECE_BYTES:
            self._deliver(opcode, _unmask(data[start:end], key), events)
        else:
            self._kind = Opcode(opcode) or self._kind
            self._left, self._key, self._final = length, key, first >= 0x80
            if not length:
                self._end_frame(events)
            return start
        return end

    def _refusal(self, first: int, second: int) -> str:
        """Why a frame must not begin like this; empty if it may."""
        opcode = first & 0x0F
        if first & 0x70:
            return "reserved bits are set, but no extension was agreed on"
        if opcode not in _OPCODES:
            return f"unknown opcode {opcode}"
        if not second & 0x80:
            return "a frame from a client must be masked"
        if opcode >= Opcode.CLOSE:
            if not first & 0x80:
                return "a control frame must not be fragmented"
            return "a control frame may have at most 125 bytes" if second & 0x7F > SHORT_MAX else ""
        if opcode and self._kind:
            return "a new message began within a fragmented one"
        return "" if opcode or self._kind else "a continuation without a message"

    def _take_payload(self, data: bytes, pos: int, events: list[Event]) -> int:
        """A piece of the current data frame's payload."""
        end = min(pos + self._left, pos + PIECE_BYTES, len(data))
        piece = _unmask(data[pos:end], self._key)
        self._left -= end - pos
        turn = (end - pos) % 4 * 8
        self._key = (self._key << turn | self._key >> 32 - turn) & 0xFFFFFFFF
        if self._kind is Opcode.TEXT and not self._is_utf8_so_far(piece):
            self._fail(events, CloseCode.INVALID_DATA, _NOT_UTF8)
        else:
            self._message.write(piece)
            if not self._left:
                self._end_frame(events)
        return end

    def _is_utf8_so_far(self, piece: bytes, *, final: bool = False) -> bool:
        """``piece`` goes on where the last one ended, perhaps within a character."""
        try:
            self._utf8.decode(piece, final)
        except UnicodeDecodeError:
            return False
        return True

    def _end_frame(self, events: list[Event]) -> None:
        if not self._final:
            return
        if self._kind is Opcode.TEXT and not self._is_utf8_so_far(b"", final=True):
            self._fail(events, CloseCode.INVALID_DATA, _NOT_UTF8)
            return
        payload = self._message.getvalue()  # not a copy: the buffer itself, cut to its length
        events.append(Text(payload) if self._kind is Opcode.TEXT else Binary(payload))
        self._kind, self._message = Opcode.CONTINUATION, io.BytesIO()

    def _deliver(self, opcode: int, payload: bytes, events: list[Event]) -> None:
        """A message that came whole."""
        if opcode == Opcode.BINARY:
            events.append(Binary(payload))
        elif _is_utf8(payload):
            events.append(Text(payload))
        else:
            self._fail(events, CloseCode.INVALID_DATA, _NOT_UTF8)

    def _take_control(self, opcode: int, payload: bytes, events: list[Event]) -> None:
        if opcode == Opcode.PING:
            events.append(Ping(payload))
        elif opcode == Opcode.PONG:
            events.append(Pong(payload))
        else:
            self._end(events, _close_of(payload))

    def _fail(self, events: list[Event], code: CloseCode, reason: str) -> None:
        self._end(events, Failure(int(code), reason))

    def _end(self, events: list[Event], last: Close | Failure) -> None:
        events.append(last)
        self.ended = True
        self._left, self._message = 0, io.BytesIO()


_OPCODES: Final = frozenset(map(int, Opcode))
_NOT_UTF8: Final = "a text message is not valid UTF-8"
_Utf8: Final = codecs.getincrementaldecoder("utf-8")


def _small_texts(data: bytes, pos: int, small_max: int, most: int, events: list[Event]) -> int:
    """The text messages of one whole small frame each that stand at ``pos``, almost all that a busy
    client sends; so many at most.

    Stops at the first frame that is anything else, or bad: the general way will look at it again.
    Returns its position.
    """
    add, unpack, from_bytes, ones, cut, size = (
        events.append,
        _TWO_AND_KEY.unpack_from,
        int.from_bytes,
        _ONES,
        _CUT,
        len(data),
    )
    most += len(events)
    while size - pos >= 8 and len(events) < most:
        head, key = unpack(data, pos)
        length = head - _EMPTY_TEXT
        start = pos + 6
        if length == 126:
            length, key = unpack(data, pos + 2)
            start = pos + 8
            if length < 126:
                break
        elif not 0 <= length < 126:
            break
        end = start + length
        if length > small_max or end > size:
            break
        payload = (from_bytes(data[start:end]) ^ key * ones[length] >> cut[length]).to_bytes(
            length
        )  # _unmask, in place
        if not payload.isascii() and not _is_utf8(payload):
            break
        add(Text(payload))
        pos = end
    return pos


# The key times ...0000000100000001 is the key again and again; what is more than the payload is cut
# off at the right.
_XOR_MAX: Final = (
    1024  # above it, translating every fourth byte is faster than going through an integer
)
_ONES: Final = [
    int.from_bytes(b"\0\0\0\1" * words)
    for words in range(_XOR_MAX // 4 + 1)
    for _ in range(4 if words else 1)
]
_CUT: Final = [-length % 4 * 8 for length in range(_XOR_MAX + 1)]
_XOR_TABLES: Final = [bytes(byte ^ key for byte in range(256)) for key in range(256)]


def _unmask(masked: bytes, key: int) -> bytes:
    length = len(masked)
    if length <= _XOR_MAX:
        return (int.from_bytes(masked) ^ key * _ONES[length] >> _CUT[length]).to_bytes(length)
    plain = bytearray(masked)
    for offset, byte in enumerate(key.to_bytes(4)):
        plain[offset::4] = plain[offset::4].translate(_XOR_TABLES[byte])
    return bytes(plain)


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _close_of(payload: bytes) -> Close | Failure:
    if not payload:
        return Close(int(CloseCode.NO_STATUS), "")
    if len(payload) == 1:
        return Failure(int(CloseCode.PROTOCOL_ERROR), "a close frame of one byte")
    code = int.from_bytes(payload[:2])
    if not is_close_code(code):
        return Failure(int(CloseCode.PROTOCOL_ERROR), f"close code {code} must not be sent")
    try:
        return Close(code, payload[2:].decode())
    except UnicodeDecodeError:
        return Failure(
            int(CloseCode.INVALID_DATA), "the reason of a close frame is not valid UTF-8"
        )
