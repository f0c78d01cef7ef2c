"""WebSocket frames (RFC 6455), read and written by the library `websockets`.

`WebSocketFrameReader` turns a client's byte stream into messages and control frames. The library
decodes, unmasks and checks single frames. The reader joins fragments and bounds messages; the
caller checks the UTF-8 of text messages, because this takes long for a long one.

A server's text frame is the only one that is written here, because the library copies the payload
twice: a page of records may have 8 MiB.

    offset  size       field     meaning
    0       1          first     0x81: FIN and TEXT
    1       1          length    of the payload up to 125; 126 or 127: `extended` has it
    2       0, 2 or 8  extended  the length as a big-endian integer
    2 + x   length     payload   x is the size of ``extended``

No extension is ever negotiated, so no payload is compressed.
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

CONTROL_MAX_BYTES: Final = 125  # of a control frame's payload
REASON_MAX_BYTES: Final = CONTROL_MAX_BYTES - 2
LONG_BYTES: Final = 64 * 1024
CHECK_BYTES: Final = 1 << 20


class _Stream(StreamReader):
    """Received bytes. A long payload is not copied on its way to be unmasked: one of 16 MiB takes 3
    ms instead of 7.
    """

    def read_exact(self, n: int) -> Generator[None, None, bytearray]:
        """The next ``n`` bytes."""
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
    """Whole messages (TEXT, BINARY) and control frames out of a client's byte stream.

    Between two calls of `feed` it holds the bytes of one incomplete message, which are at most
    ``max_message_bytes``, and of one frame's header; while `has_more`, also the bytes that `feed`
    was given.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max = max_message_bytes
        self._stream = _Stream()
        self._parser: Generator[None, None, Frame] | None = None  # of a frame that has begun
        self._opcode: Opcode | None = None  # of a message whose last fragment is missing
        self._message = io.BytesIO()  # its fragments; a list would cost many times tiny ones
        self.has_more = False
        """`feed` stopped at ``most``, perhaps with unread bytes."""
        self.failure: Close | None = None
        """How the client broke the protocol or the bound: code and reason of the CLOSE to send."""
        self.ended = False
        """There was a CLOSE or a failure. Later bytes are ignored."""

    @property
    def is_incomplete(self) -> bool:
        """A message or a frame has begun and is not complete."""
        return self._parser is not None or self._opcode is not None

    @property
    def held_bytes(self) -> int:
        """Bytes of incomplete frames and messages."""
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
        """The next frame, or None if bytes are missing."""
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
        """The control frame, or the message that this frame completes. Raises `ProtocolError`,
        `PayloadTooBig`.
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
    """A text message of a server in one frame. The caller ensures that ``parts`` are UTF-8."""
    length = sum(map(len, parts))
    if length <= CONTROL_MAX_BYTES:
        header = bytes((0x81, length))
    elif length < 1 << 16:
        header = struct.pack(">BBH", 0x81, 126, length)
    else:
        header = struct.pack(">BBQ", 0x81, 127, length)
    return b"".join((header, *parts))


def control_frame(opcode: Opcode, payload: bytes = b"") -> bytes:
    """A PING, PONG or CLOSE of a server. Raises `ProtocolError` for more than 125 bytes."""
    return Frame(opcode, payload).serialize(mask=False)


def close_frame(code: int, reason: str = "") -> bytes:
    """A CLOSE with a code, and with as many characters of the reason as fit."""
    cut = reason.encode()[:REASON_MAX_BYTES].decode(errors="ignore")
    return control_frame(Opcode.CLOSE, Close(code, cut).serialize())


# The handshake

VERSION: Final = b"13"
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")


def is_key(key: bytes) -> bool:
    """Whether a Sec-WebSocket-Key is 16 bytes of base64 (RFC 6455 §4.2.1)."""
    return _KEY.fullmatch(key) is not None


def accept_key(key: bytes) -> bytes:
    """The Sec-WebSocket-Accept that answers a Sec-WebSocket-Key (RFC 6455 §4.2.2)."""
    return accept_key_of(key.decode()).encode()
