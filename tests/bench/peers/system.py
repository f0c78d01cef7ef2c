"""The interface of the compared servers to the measurements, and the programs of a server.

The programs of the peers must be on PATH. Durable Streams is a package for Node:
``DURABLE_STREAMS`` is the folder in which ``npm install @durable-streams/server`` was run.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from tests.bench.peers.load import Address, Client, Connection, Subscriber, repeated
from tests.bench.peers.replies import HEAD_END, Http, Marks, Reply

NPM = Path(os.environ.get("DURABLE_STREAMS", ".")).absolute()
START_S = 30.0
NAME = "bench"  # the name of the topic, stream or queue


class NotFound(Exception):
    """A program that is not installed."""


class NotStarted(Exception):
    """A program that did not open its port."""


def find(program: str) -> str:
    """Return the path of a program. Raises `NotFound`."""
    path = shutil.which(program)
    if path is None:
        raise NotFound(f"{program} is not on PATH")
    return path


def version_of(program: str, option: str) -> str:
    """Return the first number with dots in the output of the program."""
    ran = subprocess.run([find(program), option], capture_output=True, text=True, timeout=20)
    found = re.search(r"\d+(\.\d+)+", ran.stdout + ran.stderr)
    return found.group() if found else "?"


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class Programs:
    """The programs of one server, by name. Each runs in its own process session."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, port: int, cwd: Path) -> None:
        """Start a program and wait until it listens. Raises `NotStarted`."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running[name] = process
        deadline = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.01)
        raise NotStarted(f"{name}: {self._log.read_text(errors='replace')[-300:]}")

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._running.items()}

    def kill(self) -> None:
        """Kill all programs."""
        for process in self._running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._running.clear()


class System:
    """A server with one topic. The order of calls is `start`, `make`, a load, `count`, `stop`.

    ``groups`` are the measurements that the server supports: append, read, live, queue.
    """

    name: ClassVar[str]
    groups: ClassVar[frozenset[str]]
    classes: ClassVar[frozenset[str]] = frozenset({"fsync", "disk"})
    batch_max: ClassVar[int] = 10_000

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address: Address = ("127.0.0.1", 0)

    @classmethod
    def version(cls) -> str:
        """Return the installed version. Raises `NotFound` if there is none."""
        raise NotImplementedError

    def start(self, durability: str) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def pids(self) -> dict[str, int]:
        """Return the pids of the server's processes by their roles."""
        raise NotImplementedError

    def make(self, kind: str, durability: str) -> None:
        """Create the topic; ``kind`` is log or queue."""

    def connect(self) -> Connection:
        return Connection(self.address, Http())

    def request(self, records: int) -> bytes:
        """Return an append request of ``records`` records."""
        raise NotImplementedError

    def reply(self, records: int) -> Reply:
        """Return the reader of the reply to an append of ``records`` records."""
        return Http()

    def appender(self, records: int) -> Client:
        """Return a client that appends forever."""
        return self.connect(), repeated(self.request(records), self.reply(records), records)

    def publisher(self) -> tuple[Connection, bytes]:
        """Return a connection and the request that publishes one record. By default the request is
        an append.
        """
        connection = self.connect()
        connection.reply = self.reply(1)
        return connection, self.request(1)

    def count(self) -> int:
        """Return the number of stored records, or of unfinished jobs, that the server reports."""
        raise NotImplementedError

    def read(self, limit: int) -> Iterator[int]:
        """Read all records from the start. Yields the number of records of each page."""
        raise NotImplementedError

    def subscriber(self) -> Subscriber:
        """Return a subscriber to the records published from now on."""
        raise NotImplementedError

    def worker(self, number: int, batch: int) -> Client:
        """Return a client that claims ``batch`` jobs at a time and completes them, until the queue
        is empty.
        """
        raise NotImplementedError

    def call(self, request: bytes, reply: Reply) -> bytes:
        """Send a request on a new connection and return its reply."""
        connection = self.connect()
        try:
            return connection.call(request, reply)
        finally:
            connection.close()


class Peer(System):
    """A compared server other than topics. Each start uses a new data folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data = folder / self.name
        self.programs = Programs(folder)

    def start(self, durability: str) -> None:
        self.data.mkdir()
        self.address = ("127.0.0.1", free_port())
        self.launch(durability)

    def launch(self, durability: str) -> None:
        """Start the programs of the server."""
        raise NotImplementedError

    def stop(self) -> None:
        self.programs.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def pids(self) -> dict[str, int]:
        return self.programs.pids()


def event_stream(connection: Connection, path: str, until: bytes = HEAD_END) -> Connection:
    """Open an event stream and read it up to a mark."""
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    began = connection.call(head.encode(), Marks(until))
    assert began[9:12] == b"200", began
    return connection
