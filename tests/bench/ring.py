"""How a link compares with what the system offers: ``python -m tests.bench.ring [SECONDS]``.

Round trips of 200 bytes, then one way: 200-byte messages in batches, and 1 MiB attachments. A link
runs under trio on both sides and copies every message into and out of frames; the pipe and the
socket pair are blocking and only carry the bytes, so they are the floor of what a transport between
two processes costs. Ratios are of one run; the absolute numbers are the machine's mood. The other
side counts bytes and says how many when asked, so that nothing is lost on the way unnoticed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import trio

from topics.actors.link.board import Board
from topics.actors.link.link import Link
from topics.actors.link.link_memory import LinkMemory, LinkSizes
from topics.actors.link.process_id import FRONT, shard_id
from topics.config import MIB, Settings
from topics.formats.wire.message import Message

SIZE = 200
BATCHES = (1, 16, 64)
BODY = bytes(MIB)
WINDOW = 64  # bodies on their way; they fit the arena
LENGTH = struct.Struct("<I")


def fork(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    return pid


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def percentiles(times: list[float]) -> tuple[float, float]:
    times.sort()
    return times[len(times) // 2] * 1e6, times[len(times) * 99 // 100] * 1e6


class LinkBench:
    """This side drives; the other answers ``ping`` and ``done`` and swallows everything else."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        board = Board(1)
        memory = LinkMemory(FRONT, shard_id(0), LinkSizes.of(Settings()))
        self.child = fork(lambda: serve(Link(memory, board, shard_id(0))))
        self.link = Link(memory, board, FRONT)
        self.answer = trio.Event()

    def on_messages(self, frames: list[Message]) -> None:
        if frames:
            self.answer.set()

    async def ask(self, subject: str, payload: bytes) -> None:
        self.answer = trio.Event()
        self.link.send(subject, payload)
        self.link.flush()
        await self.answer.wait()

    async def run(self, results: dict[str, float]) -> None:
        opened = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.link.run, opened.set, self.on_messages, lambda: None)
            await opened.wait()
            results["p50"], results["p99"] = percentiles(await self.round_trips())
            for batch in BATCHES:
                results[f"batch {batch}"] = await self.one_way(bytes(SIZE), b"", batch)
            results["1 MiB"] = await self.one_way(b"", BODY, 1)
            nursery.cancel_scope.cancel()
        results["late bells"] = self.link.statistics().late_bells
        stop(self.child)

    async def round_trips(self) -> list[float]:
        times, end = [], time.perf_counter() + self.seconds
        while (start := time.perf_counter()) < end:
            await self.ask("ping", bytes(SIZE))
            times.append(time.perf_counter() - start)
        return times

    async def one_way(self, payload: bytes, attachment: bytes, batch: int) -> float:
        """Messages a second, the last one's arrival included."""
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + self.seconds:
            for _ in range(batch):
                self.link.send("data", payload, attachment)
            self.link.flush()
            count += batch
            while self.link.backlog_bytes or (
                attachment and self.link.statistics().arena_used_bytes >= WINDOW * MIB
            ):
                await trio.lowlevel.checkpoint()
        await self.ask("ping", b"")
        return count / (time.perf_counter() - start)


def serve(link: Link) -> None:
    def on_messages(frames: list[Message]) -> None:
        for frame in frames:
            link.release(frame)
            if frame.subject == "ping":
                link.send("pong", bytes(frame.payload))

    trio.run(link.run, lambda: None, on_messages, lambda: None)


class Blocking:
    """The same measurements over something that sends and receives blocking. Messages of a batch
    are joined, as a link does.
    """

    def __init__(
        self, seconds: float, send: Callable[[bytes], None], receive: Callable[[], bytes]
    ) -> None:
        self.seconds, self.send, self.receive = seconds, send, receive

    def run(self, results: dict[str, float]) -> None:
        times, end = [], time.perf_counter() + self.seconds
        while (start := time.perf_counter()) < end:
            self.ask(b"p" * SIZE)
            times.append(time.perf_counter() - start)
        results["p50"], results["p99"] = percentiles(times)
        for batch in BATCHES:
            results[f"batch {batch}"] = batch * self.one_way(bytes(SIZE * batch))
        results["1 MiB"] = self.one_way(BODY)

    def ask(self, payload: bytes) -> None:
        self.send(payload)
        self.receive()

    def one_way(self, blob: bytes) -> float:
        count, start = 0, time.perf_counter()
        while time.perf_counter() < start + self.seconds:
            self.send(blob)
            count += 1
        self.ask(b"p")
        return count / (time.perf_counter() - start)

    def serve(self) -> None:
        while True:
            data = self.receive()
            if data[:1] == b"p":
                self.send(data)


def over_pipe(seconds: float, results: dict[str, float]) -> None:
    near, far = multiprocessing.Pipe()
    run_blocking(seconds, results, of_pipe(near), of_pipe(far))


def of_pipe(connection: Connection) -> tuple[Callable[[bytes], None], Callable[[], bytes]]:
    return connection.send_bytes, connection.recv_bytes


def over_socket(seconds: float, results: dict[str, float]) -> None:
    near, far = socket.socketpair()
    run_blocking(seconds, results, of_socket(near), of_socket(far))


def of_socket(end: socket.socket) -> tuple[Callable[[bytes], None], Callable[[], bytes]]:
    stream = end.makefile("rb", buffering=MIB)

    def receive() -> bytes:
        (length,) = LENGTH.unpack(stream.read(LENGTH.size))
        data: bytes = stream.read(length)
        return data

    return lambda data: end.sendall(LENGTH.pack(len(data)) + data), receive


Ends = tuple[Callable[[bytes], None], Callable[[], bytes]]


def run_blocking(seconds: float, results: dict[str, float], near: Ends, far: Ends) -> None:
    child = fork(Blocking(seconds, *far).serve)
    Blocking(seconds, *near).run(results)
    stop(child)


def main(seconds: float) -> None:
    """Run all three and print a table with the link's ratios to the others."""
    link: dict[str, float] = {}
    pipe: dict[str, float] = {}
    pair: dict[str, float] = {}
    trio.run(LinkBench(seconds).run, link)
    over_pipe(seconds, pipe)
    over_socket(seconds, pair)
    print(f"{'':12}{'link':>12}{'Pipe':>12}{'socketpair':>12}{'link/Pipe':>12}{'link/pair':>12}")
    for name in ("p50", "p99", *(f"batch {batch}" for batch in BATCHES), "1 MiB"):
        row = [link[name], pipe[name], pair[name]]
        unit = "us" if name.startswith("p") else "/s"
        cells = "".join(f"{value:>12,.0f}" for value in row)
        print(f"{name + ' ' + unit:12}{cells}{row[0] / row[1]:>12.2f}{row[0] / row[2]:>12.2f}")
    print(f"late bells  {link['late bells']:>12.0f}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
