"""The path of an append with nothing on it: from a client to a front, to a shard, to the disk, and
back.

Two processes with bare sockets, one page of shared memory and two eventfds between them. They
understand no HTTP: what comes in one read is a request, every answer is the same, and the request
itself is the event that subscribers get. So a figure here is what the machine takes for sockets,
wake-ups and syncs alone, in Python as the server is: none of this shape can be faster on it.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, Self

RECV_BYTES = 4096
FILE_BYTES = 4 << 20
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
OPENED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: caught-up\n\n"


class BarePath:
    """A running one; ``synced``: each request is written to a file in ``folder`` and synced before
    its answer.
    """

    def __init__(self, folder: Path | None, *, synced: bool) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._page = mmap.mmap(-1, RECV_BYTES)
        self._to_shard, self._to_front = (
            os.eventfd(0, os.EFD_CLOEXEC),
            os.eventfd(0, os.EFD_CLOEXEC),
        )
        self._folder, self._synced = folder, synced
        self._processes: list[int] = []

    def __enter__(self) -> Self:
        self._processes = [_fork(self._front), _fork(self._shard)]
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._processes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._listener.close()
        self._page.close()
        os.close(self._to_shard)
        os.close(self._to_front)

    def _front(self) -> NoReturn:
        poll = select.epoll()
        poll.register(self._listener, select.EPOLLIN)
        poll.register(self._to_front, select.EPOLLIN)
        clients: dict[int, socket.socket] = {}
        streams: list[socket.socket] = []
        asker, length = self._listener, 0
        while True:
            for fd, _ in poll.poll():
                if fd == self._to_front:
                    os.eventfd_read(fd)
                    asker.send(ANSWER)
                    event = b"id: 1\nevent: record\ndata: " + self._page[:length] + b"\n\n"
                    for stream in streams:
                        stream.send(event)
                elif fd == self._listener.fileno():
                    client = self._listener.accept()[0]
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    clients[client.fileno()] = client
                    poll.register(client, select.EPOLLIN)
                elif not (data := clients[fd].recv(RECV_BYTES)):
                    poll.unregister(fd)
                    streams = [stream for stream in streams if stream is not clients[fd]]
                    clients.pop(fd).close()
                elif data.startswith(b"GET "):
                    streams.append(clients[fd])
                    clients[fd].send(OPENED)
                else:
                    asker, length = clients[fd], len(data)
                    self._page[:length] = data
                    os.eventfd_write(self._to_shard, 1)

    def _shard(self) -> NoReturn:
        with tempfile.TemporaryFile(dir=self._folder) as file:
            file.write(bytes(FILE_BYTES))
            os.fsync(file.fileno())
            at = 0
            while True:
                os.eventfd_read(self._to_shard)
                if self._synced:
                    os.pwrite(file.fileno(), self._page[:300], at)
                    os.fdatasync(file.fileno())
                    at = (at + 300) % (FILE_BYTES - 300)
                os.eventfd_write(self._to_front, 1)


def _fork(work: Callable[[], NoReturn]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)  # whatever happened: the parent's clean-up is not the child's
    return pid
