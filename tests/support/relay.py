"""A relay between a client and a server whose connections a test can cut, as networks do."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Relay:
    """Listen on ``address`` and connect each client with ``target`` until ``cut``."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.connections = 0
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def cut(self) -> None:
        """Close every open connection. New connections are accepted."""
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                with self._lock:
                    self._open += [near, far]
                    self.connections += 1
                threading.Thread(target=self._pump, args=(near, far), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, True), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, owner: bool = False) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if owner:
            source.close()
            sink.close()
