"""A Java process that stops at each call of a method, by JDWP, the protocol of Java's debuggers.
Tests use it to kill a process at an exact moment, regardless of the load of the machine.

Integers are big-endian; the ids of classes, methods and threads have eight bytes.

    packet   length u32, id u32, flags u8, then command: set u8, command u8; reply: error u16; data
    string   length u32, UTF-8
    event    suspend policy u8, count u32, then of each: kind u8, request u32, more by its kind
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Generator
from typing import Any, Final, Self

COMMAND: Final = struct.Struct(">IIBBB")
IS_REPLY: Final = 0x80
HANDSHAKE: Final = b"JDWP-Handshake"
# Command sets and commands.
RESUME, METHODS, SET_EVENT, COMPOSITE = (1, 9), (2, 5), (15, 1), (64, 100)
BREAKPOINT, CLASS_PREPARE = 2, 8  # kinds of events
SUSPEND_ALL = 2
LOCATION_ONLY, CLASS_MATCH = 7, 5  # modifiers of an event request
CLASS = 1  # type tag
WAIT_S: Final = 300.0


class Debugger:
    """Wait for one Java process, which is started with the argument `option` and does nothing
    until `calls`.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._number = 0
        self._events: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self._listener.close()
        if self._number:
            self._socket.close()

    @property
    def option(self) -> str:
        """The argument for the command line of Java."""
        port = self._listener.getsockname()[1]
        return f"-agentlib:jdwp=transport=dt_socket,server=n,suspend=y,address=127.0.0.1:{port}"

    def calls(self, class_pattern: str, method: str) -> Generator[None, None, None]:
        """Stop all threads before each call. They resume when the next item is requested.

        ``class_pattern`` may begin with ``*`` and must match one class.
        """
        self._listener.settimeout(WAIT_S)
        self._socket = self._listener.accept()[0]
        self._socket.settimeout(WAIT_S)
        self._socket.sendall(HANDSHAKE)
        assert self._read(len(HANDSHAKE)) == HANDSHAKE
        self._stop_at(CLASS_PREPARE, struct.pack(">B", CLASS_MATCH) + _string(class_pattern))
        while True:
            event = self._event()
            kind, _request, _thread = struct.unpack_from(">BIQ", event, 5)
            if kind == CLASS_PREPARE:
                tag, class_id = struct.unpack_from(">BQ", event, 18)
                assert tag == CLASS
                where = (LOCATION_ONLY, CLASS, class_id, self._method(class_id, method), 0)
                self._stop_at(BREAKPOINT, struct.pack(">BBQQQ", *where))
            elif kind == BREAKPOINT:
                yield
            self._execute(RESUME)

    def _stop_at(self, kind: int, modifier: bytes) -> None:
        self._execute(SET_EVENT, struct.pack(">BBI", kind, SUSPEND_ALL, 1) + modifier)

    def _method(self, class_id: int, method_name: str) -> int:
        """Return the id of a method."""
        data = self._execute(METHODS, struct.pack(">Q", class_id))
        (count,), at = struct.unpack_from(">I", data), 4
        found: list[int] = []
        for _ in range(count):
            (method_id,) = struct.unpack_from(">Q", data, at)
            name, at = _text_at(data, at + 8)
            _signature, at = _text_at(data, at)
            at += 4  # Modifiers of the method
            found += [method_id] * (name == method_name)
        assert len(found) == 1, f"{method_name} is not one method"
        return found[0]

    def _execute(self, command: tuple[int, int], data: bytes = b"") -> bytes:
        self._number += 1
        length = COMMAND.size + len(data)
        self._socket.sendall(COMMAND.pack(length, self._number, 0, *command) + data)
        while True:
            number, flags, code, reply = self._packet()
            if flags & IS_REPLY and number == self._number:
                assert code == 0, f"JDWP error {code}"
                return reply
            assert not flags & IS_REPLY
            self._events.append(reply)

    def _event(self) -> bytes:
        if self._events:
            return self._events.pop(0)
        _number, flags, code, data = self._packet()
        assert (flags, code) == (0, COMPOSITE[0] << 8 | COMPOSITE[1])
        return data

    def _packet(self) -> tuple[int, int, int, bytes]:
        length, number, flags, code = struct.unpack(">IIBH", self._read(COMMAND.size))
        return number, flags, code, self._read(length - COMMAND.size)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, "the process has ended"
            data += more
        return data


def _string(text: str) -> bytes:
    return struct.pack(">I", len(text)) + text.encode()


def _text_at(data: bytes, at: int) -> tuple[Any, int]:
    (length,) = struct.unpack_from(">I", data, at)
    return data[at + 4 : at + 4 + length].decode(), at + 4 + length
