"""WebSocket frames (RFC 6455), mostly parsed and serialized by the library `websockets`.

`WebSocketFrameReader` turns a client's byte stream into messages and control frames. The library
decodes, unmasks and checks single frames. The reader joins fragments and limits the size of
messages. The caller checks the UTF-8 of text messages, because this is slow for long messages.

Text frames from the server are serialized here, because the library copies the payload twice and a
page of records may have 8 MiB. Their layout:

    offset  size       field     meaning
    0       1          first     0x81: FIN and TEXT
    1       1          length    payload length up to 125; 126 or 127: it is in `extended`
    2       0, 2 or 8  extended  the length as a big-endian integer
    2 + x   length     payload   x is the size of ``extended``

No extension is negotiated, so no payload is compressed.
"""

from __future__ import annotations

import codecs
import io
import re
import struct
import sys
from collections.abc import Generator, Iterator
from typing import Final

from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.frames import CTRL_OPCODES, Close, CloseCode, Frame, Opcode
from websockets.streams import StreamReader
from websockets.utils import accept_key as accept_key_of

CONTROL_MAX_BYTES: Final = 125  # maximum payload of a control frame
REASON_MAX_BYTES: Final = CONTROL_MAX_BYTES - 2
LONG_BYTES: Final = 64 * 1024
CHECK_BYTES: Final = 1 << 20


class _Stream(StreamReader):
    """Received bytes. A long payload is not copied before it is unmasked, so a payload of 16 MiB
    takes 3 ms instead of 7.
    """

    def read_exact(self, n: int) -> Generator[None, None, bytearray]:
        """Return the next ``n`` bytes, and yield while they are incomplete."""
        while len(self.buffer) < n:
            yield
        if n < LONG_BYTES:
            taken = self.buffer[:n]
            del self.buffer[:n]
        else:
            taken = self.buffer
            self.buffer = taken[n:]
            del taken[n:]
        return taken


class WebSocketFrameReader:
    """Parses the byte stream of a client into complete messages (TEXT, BINARY) and control frames.

    Between two calls to `feed`, it buffers one incomplete message of at most ``max_message_bytes``
    and one frame header. While `has_more` is set, it also buffers the rest of the bytes passed to
    `feed`.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max = max_message_bytes
        self._stream = _Stream()
        self._parser: Generator[None, None, Frame] | None = None  # parses an incomplete frame
        self._opcode: Opcode | None = None  # set while a message is incomplete
        # The fragments of the message. A list would need much more memory for tiny fragments.
        self._message = io.BytesIO()
        self.has_more = False
        """Whether `feed` stopped at ``most`` frames, possibly with unread bytes."""
        self.failure: Close | None = None
        """Code and reason of the CLOSE to send if the client violated the protocol or a limit."""
        self.ended = False
        """Whether a CLOSE or a failure has occurred. Later bytes are ignored."""

    @property
    def is_incomplete(self) -> bool:
        """Whether a message or a frame is incomplete."""
        return self._parser is not None or self._opcode is not None

    @property
    def held_bytes(self) -> int:
        """The number of buffered bytes of incomplete frames and messages."""
        return self._message.tell() + len(self._stream.buffer)

    def feed(self, data: bytes, most: int = sys.maxsize) -> list[Frame]:
        """Return the messages and control frames that ``data`` completes, in order.

        Any bytes are accepted. `has_more` is set if there may be more than ``most`` frames. The
        next call continues there and needs no ``data``.
        """
        found: list[Frame] = []
        self.has_more = False
        if self.ended:
            return found
        if data:
            self._stream.feed_data(data)
        try:
            for _ in range(most):
                frame = self._next_frame()
                if frame is None:
                    return found
                joined_frame = self._joined(frame)
                if joined_frame is not None:
                    found.append(joined_frame)
                    if joined_frame.opcode is Opcode.CLOSE:
                        self._end()
                        return found
            self.has_more = True
        except PayloadTooBig:
            self._fail(CloseCode.MESSAGE_TOO_BIG, f"a message may have at most {self._max} bytes")
        except ProtocolError as error:
            self._fail(CloseCode.PROTOCOL_ERROR, str(error))
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "the reason of a close frame is not valid UTF-8")
        return found

    def _next_frame(self) -> Frame | None:
        """Return the next frame, or None if it is incomplete."""
        if self._parser is None:
            if not self._stream.buffer:
                return None
            # A control frame between two fragments may be longer than the rest of the message.
            most = max(self._max - self._message.tell(), CONTROL_MAX_BYTES)
            self._parser = Frame.parse(self._stream.read_exact, mask=True, max_size=most)
        try:
            next(self._parser)
        except StopIteration as parsed:
            self._parser = None
            frame: Frame = parsed.value
            return frame
        return None

    def _joined(self, frame: Frame) -> Frame | None:
        """Return a control frame, or the message that this frame completes. Raises `ProtocolError`
        or `PayloadTooBig`.
        """
        if frame.opcode in CTRL_OPCODES:
            if frame.opcode is Opcode.CLOSE:
                Close.parse(frame.data)
            return frame
        if (frame.opcode is Opcode.CONT) == (self._opcode is None):
            raise ProtocolError("fragments of messages must not be interleaved")
        length = self._message.tell() + len(frame.data)
        if length > self._max:
            raise PayloadTooBig(length, self._max)
        if frame.fin and self._opcode is None:
            return frame
        self._opcode = self._opcode or frame.opcode
        self._message.write(frame.data)
        if not frame.fin:
            return None
        joined_frame = Frame(self._opcode, self._message.getvalue())
        self._opcode, self._message = None, io.BytesIO()
        return joined_frame

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.failure = Close(code, reason)
        self._end()

    def _end(self) -> None:
        self.ended = True
        self._parser = self._opcode = None
        self._stream, self._message = _Stream(), io.BytesIO()


def utf8_steps(message: bytes) -> Iterator[None]:
    """Check that a long text message is UTF-8, in steps of about a millisecond. Raises
    UnicodeDecodeError.
    """
    decoder, view = codecs.getincrementaldecoder("utf-8")(), memoryview(message)
    for start in range(0, len(message), CHECK_BYTES):
        decoder.decode(view[start : start + CHECK_BYTES], start + CHECK_BYTES >= len(message))
        yield


def text_frame(*parts: bytes) -> bytes:
    """Return a text message from the server as one frame. ``parts`` must be valid UTF-8."""
    length = sum(map(len, parts))
    if length <= CONTROL_MAX_BYTES:
        header = bytes((0x81, length))
    elif length < 1 << 16:
        header = struct.pack(">BBH", 0x81, 126, length)
    else:
        header = struct.pack(">BBQ", 0x81, 127, length)
    return b"".join((header, *parts))


def control_frame(opcode: Opcode, payload: bytes = b"") -> bytes:
    """Return a PING, PONG or CLOSE frame. Raises `ProtocolError` for more than 125 bytes."""
    return Frame(opcode, payload).serialize(mask=False)


def close_frame(code: int, reason: str = "") -> bytes:
    """Return a CLOSE frame with a code and a reason, which is truncated to the maximum length."""
    cut = reason.encode()[:REASON_MAX_BYTES].decode(errors="ignore")
    return control_frame(Opcode.CLOSE, Close(code, cut).serialize())


# The handshake

VERSION: Final = b"13"
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")


def is_key(key: bytes) -> bool:
    """Return whether a Sec-WebSocket-Key is 16 bytes in base64 (RFC 6455 §4.2.1)."""
    return _KEY.fullmatch(key) is not None


def accept_key(key: bytes) -> bytes:
    """Return the Sec-WebSocket-Accept for a Sec-WebSocket-Key (RFC 6455 §4.2.2)."""
    return accept_key_of(key.decode()).encode()
