"""WebSocket decoder: a client's byte stream, cut anywhere, to messages and control events.

    between messages --TEXT, BINARY--> in a message --FIN--> between messages
    between messages, in a message --CLOSE, Failure--> ended

The events of a stream are the same wherever it is cut, and any bytes give an answer, never an
exception. A long frame is taken in pieces, so that none holds up others: the library `websockets`
unmasks one of 64 MiB in a step of 80 ms (`decisions/0064`).
"""

from __future__ import annotations

import codecs
import io
from typing import Final

from topics.formats.api.websocket_frames import (
    EXTENDED,
    SHORT_MAX_BYTES,
    Binary,
    Close,
    CloseCode,
    Event,
    Failure,
    Opcode,
    Ping,
    Pong,
    Text,
    decode_close,
    header_error,
    unmask,
)

PIECE_MAX_BYTES: Final = 64 * 1024  # of a payload, unmasked and checked at a time: fits a cache
_ALL: Final = 1 << 62
_NOT_UTF8: Final = "a text message is not valid UTF-8"
_BAD_LENGTH: Final = "a frame's length is not in its shortest form, or has its top bit set"
_Utf8: Final = codecs.getincrementaldecoder("utf-8")


class WebSocketDecoder:
    """Events out of a client's byte stream.

    Every byte is copied a bounded number of times. Between two calls the decoder holds at most
    ``max_message_bytes`` (and an eighth, to grow) and one control frame, and only what has really
    arrived; while `has_more` also what `feed` was given.
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
        "_utf8",
        "ended",
        "has_more",
    )

    def __init__(self, max_message_bytes: int) -> None:
        """A longer message, whole or in fragments, is Failure 1009 as soon as a header announces
        it.
        """
        self._max = max_message_bytes
        self._data = b""  # from ``_pos`` on: not decoded, or the start of a frame
        self._pos = 0
        self.has_more = False
        """`feed` stopped at ``most``, not for want of bytes."""
        self._kind = Opcode.CONTINUATION  # of the current message; CONTINUATION between messages
        self._message = io.BytesIO()  # a list of tiny pieces would cost many times their bytes
        self._utf8 = _Utf8()
        self._left = 0  # bytes to come of the current data frame's payload
        self._key = 0  # turned, so that it begins with the byte for the payload's next byte
        self._final = True  # the current data frame is the last one of its message
        self.ended = False
        """There was a Close or a Failure; everything after it is ignored."""

    @property
    def is_amid(self) -> bool:
        """A message or a frame has begun and is not complete."""
        return bool(self._kind or self._data) and not self.ended

    @property
    def held_bytes(self) -> int:
        """Bytes of the message that is not complete."""
        return self._message.tell()

    def feed(self, data: bytes, most: int = _ALL) -> list[Event]:
        """The events that ``data`` completes, in order. Never raises on any bytes.

        Stops after about ``most`` frames and pieces; `has_more` is set then, and the next call,
        which needs no ``data``, goes on. Data given before that is copied once more.
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
        if error := header_error(first, second, self._kind):
            self._fail(events, CloseCode.PROTOCOL_ERROR, error)
            return pos
        length, start = second & 0x7F, pos + 6
        if length > SHORT_MAX_BYTES:
            length, start = self._extended(data, pos, length, events)
            if not start:
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
            self._take_control(opcode, unmask(data[start:end], key), events)
        elif first >= 0x80 and opcode and end <= len(data) and length <= PIECE_MAX_BYTES:
            self._deliver(opcode, unmask(data[start:end], key), events)
        else:
            self._kind = Opcode(opcode) or self._kind
            self._left, self._key, self._final = length, key, first >= 0x80
            if not length:
                self._end_frame(events)
            return start
        return end

    def _extended(self, data: bytes, pos: int, short: int, events: list[Event]) -> tuple[int, int]:
        """An extended length, and where the payload begins: 0 if there must be more bytes first, or
        never again.
        """
        extended, least = EXTENDED[short]
        if len(data) - pos < 2 + extended.size:
            return 0, 0
        (length,) = extended.unpack_from(data, pos + 2)
        if length < least or length >> 63:
            self._fail(events, CloseCode.PROTOCOL_ERROR, _BAD_LENGTH)
            return 0, 0
        return length, pos + 6 + extended.size

    def _take_payload(self, data: bytes, pos: int, events: list[Event]) -> int:
        """Take a piece of the current data frame's payload; where it ends."""
        end = min(pos + self._left, pos + PIECE_MAX_BYTES, len(data))
        piece = unmask(data[pos:end], self._key)
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
        """Whether ``piece`` continues the last one, perhaps within a character."""
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
            self._end(events, decode_close(payload))

    def _fail(self, events: list[Event], code: CloseCode, reason: str) -> None:
        self._end(events, Failure(int(code), reason))

    def _end(self, events: list[Event], last: Close | Failure) -> None:
        events.append(last)
        self.ended = True
        self._left, self._message = 0, io.BytesIO()


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
