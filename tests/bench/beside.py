"""The load beside the small appends of `tests.bench.tails`, in a process of its own: the client
that measures has no other work. The load counts what it has done.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

from tests.bench.http_load import Client, TaggedAppends, append, post
from tests.bench.live_clients import RECV_BYTES, stream

BODY_BYTES = (64 << 20) - 100_000
STREAMS, PUBLISH_HZ = 500, 20
TAGS = 100_000
READY_S = 60.0
Address = tuple[str, int]
Done = Callable[[int], None]  # so much has been done; the first call says that it has begun


def body(size: int) -> bytes:
    """A write of about ``size`` bytes."""
    each = min(200_000, size // 30)
    record = b'{"data":"%b"}' % (b"x" * each)
    return b'{"records":[' + b",".join([record] * (size // (each + 12))) + b"]}"


def bodies(address: Address, done: Done) -> None:
    """Appends of 64 MiB, one after the other."""
    client, request = Client(address), post("/v0/topics/long", body(BODY_BYTES))
    client.ask(append("long", 1, b'{"durability":"disk","cap_records":1000}'))
    done(0)
    while True:
        client.ask(request)
        done(1)


def sealing(address: Address, done: Done) -> None:
    """Appends of 100 records with tags, as fast as they are answered."""
    client, request = Client(address), TaggedAppends("sealed", 100, TAGS)
    client.ask(append("sealed", 1, b'{"durability":"disk","cap_records":1000000}'))
    done(0)
    while True:
        client.ask(request())
        done(100)


def streams(address: Address, done: Done) -> None:
    """Readers of one topic, and what they read."""
    client, request = Client(address), append("room", 1)
    client.ask(append("room", 1, b'{"durability":"disk","cap_records":1000}'))
    opened = [stream(address, client, "room") for _ in range(STREAMS)]
    readers = {each.fileno(): each for each in opened}
    poll = select.epoll()
    for fd in readers:
        poll.register(fd, select.EPOLLIN)
    done(0)
    due = time.perf_counter()
    while True:
        client.ask(request)
        due += 1 / PUBLISH_HZ
        while (left := due - time.perf_counter()) > 0:
            for fd, _ in poll.poll(left):
                done(readers[fd].recv(RECV_BYTES).count(b"event: record\n"))


def nothing(_address: Address, done: Done) -> None:
    """The appends are alone."""
    done(0)
    signal.pause()


class Beside(NamedTuple):
    """A load, the unit of its count, and the settings of the server."""

    work: Callable[[Address, Done], None]
    unit: str
    env: dict[str, int]


SCENES = {
    "alone": Beside(nothing, "", {}),
    "64 MiB bodies": Beside(bodies, "bodies", {}),
    "sealing": Beside(sealing, "records", {"wal_file_bytes": 8 << 20}),
    "500 streams": Beside(streams, "deliveries", {}),
}


class Worker:
    """A running one."""

    def __init__(self, pid: int, count: mmap.mmap) -> None:
        self._pid, self._count = pid, memoryview(count).cast("Q")

    @property
    def count(self) -> int:
        """What it has done; 0 while it begins."""
        return max(self._count[0] - 1, 0)

    @property
    def has_begun(self) -> bool:
        return self._count[0] > 0

    def check(self) -> None:
        """It must go on for as long as something is measured."""
        assert os.waitpid(self._pid, os.WNOHANG) == (0, 0), "what goes on beside has failed"


@contextlib.contextmanager
def going_on(beside: Beside, address: Address) -> Iterator[Worker]:
    """Start it, wait until it has begun, end it."""
    count = mmap.mmap(-1, mmap.PAGESIZE)
    pid = os.fork()
    if pid == 0:
        _run(beside, address, count)
    worker = Worker(pid, count)
    try:
        deadline = time.monotonic() + READY_S
        while not worker.has_begun:
            worker.check()
            assert time.monotonic() < deadline, "what goes on beside does not begin"
            time.sleep(0.01)
        yield worker
        worker.check()
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _run(beside: Beside, address: Address, count: mmap.mmap) -> NoReturn:
    words = memoryview(count).cast("Q")
    words[0] = 0

    def done(more: int) -> None:
        words[0] = max(words[0], 1) + more

    try:
        beside.work(address, done)
    finally:
        os._exit(1)  # whatever happened: the parent's clean-up is not the child's
