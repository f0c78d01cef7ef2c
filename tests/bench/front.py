"""How much the front costs: appends per second and CPU per request, with a stub in place of the
shards.

    python tests/bench/front.py [--seconds 3] [--connections 1,16] [--profile FILE]

The server runs in a forked child, the generator here, over loopback. Beside the fast lane, in the
same run: the floor (trio that reads and writes without looking), the same server with everything
through Hypercorn and Quart, and a bare Quart application on Hypercorn's own server. CPU is the
child's. The kernel's part of a send varies a lot between machines and moments: compare with the
floor of the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import hypercorn.trio
import trio
from hypercorn.config import Config
from quart import Response
from quart import request as quart_request
from quart_trio import QuartTrio

from tests.support.front import GivenKeys
from topics.actors.link.arena import Holder
from topics.actors.shard_client.readiness import Readiness
from topics.config import Settings
from topics.formats.wire.calls import AppendOutcome, AppendResult
from topics.formats.wire.contract import Call
from topics.front.backend import Body
from topics.front.server import Server

KEY = "a-secret-of-ordinary-length"
RECORD = (
    b'{"records":[{"data":{"type":"resize","url":"s3://bucket/some/path.png","w":256},'
    b'"tag":"tenant42:job-9001"}],"node":"w1"}'
)
HEAD = (
    b"POST /v0/topics/jobs HTTP/1.1\r\nHost: 127.0.0.1:4000\r\nUser-Agent: bench/1\r\n"
    b"Accept: */*\r\n"
    b"Authorization: Bearer "
    + KEY.encode()
    + b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(RECORD)
)
REQUEST = HEAD + RECORD
ANSWER = (
    b'{"topic":"jobs","first_seq":480232,"last_seq":480232,"seqs":[480232],"head_seq":480232,'
    b'"count":1,"created":false,"deduped":false,"performance":{"server_total_ms":0.62,"wal_append_ms":0.10,"fsync_ms":0.0}}'
)


class StubReply:
    result = AppendResult(bytes((AppendOutcome.APPENDED,)))
    body = ANSWER

    def release(self) -> None:
        """Nothing is shared."""


class StubBackend:
    """Answers at once."""

    shards = 1
    batch = contextlib.nullcontext()
    reply = StubReply()

    def listen(self, listener: Any) -> None:
        """Nothing is told."""

    def shard_of(self, topic: str) -> int:
        return 0

    async def call(
        self, shard: int, call: Call[Any, Any], params: Any, body: Body = b""
    ) -> StubReply:
        return self.reply

    def reserve(self, shard: int, length: int, holder: Holder) -> None:
        return None

    def delay_ms(self, shard: int) -> float:
        return 0.0

    def readiness(self) -> Readiness:
        return Readiness(True, 1.0, 1, False)


async def front(listener: socket.socket, *, fast: bool) -> None:
    keys = GivenKeys(f"{KEY},other-key,third-key")
    backend: Any = StubBackend()
    await Server(Settings(), keys, backend, use_fast_lane=fast).run(listener, trio.Event())


async def floor(listener: socket.socket) -> None:
    """The least that a trio server can do for a request."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)

    async def connection(sock: socket.socket) -> None:
        with sock, contextlib.suppress(ConnectionError):
            while True:
                await trio.lowlevel.wait_readable(sock)
                if not sock.recv(65536):
                    return
                await trio.lowlevel.cancel_shielded_checkpoint()
                sock.send(answer)

    listener.setblocking(False)
    async with trio.open_nursery() as nursery:
        while True:
            await trio.lowlevel.wait_readable(listener)
            sock, _ = listener.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nursery.start_soon(connection, sock)


async def bare_quart(listener: socket.socket) -> None:
    app = QuartTrio(__name__)

    async def append(topic: str) -> Response:
        await quart_request.get_data()
        return Response(ANSWER, content_type="application/json")

    app.add_url_rule("/v0/topics/<topic>", "append", append, methods=["POST"])
    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.errorlog = None
    config.keep_alive_max_requests = 2**62
    await hypercorn.trio.serve(app, config)


def generate(address: tuple[str, int], connections: int, seconds: float) -> tuple[int, float]:
    """Send one request at a time on every connection; how many answers came in how many seconds."""
    socks = [socket.create_connection(address) for _ in range(connections)]
    poll = select.epoll()
    by_fd: dict[int, list[Any]] = {}
    for sock in socks:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(sock, select.EPOLLIN)
        by_fd[sock.fileno()] = [sock, b""]
        sock.send(REQUEST)
    answers = 0
    start = time.perf_counter()
    while (now := time.perf_counter()) < start + seconds:
        for fd, _ in poll.poll(1):
            pair = by_fd[fd]
            pair[1] += pair[0].recv(65536)
            if pair[1].endswith(ANSWER):
                assert pair[1].startswith(b"HTTP/1.1 200"), pair[1]
                pair[1] = b""
                answers += 1
                pair[0].send(REQUEST)
    for sock in socks:
        sock.close()
    return answers, now - start


def measure(
    name: str,
    serve: Callable[[socket.socket], Any],
    connections: list[int],
    seconds: float,
    profile: str,
) -> None:
    for count in connections:
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        child = os.fork()
        if child == 0:
            _child(serve, listener, profile)
        address = listener.getsockname()
        generate(address, count, 0.3)  # warm
        before = _cpu_s(child)
        answers, took = generate(address, count, seconds)
        user_us, system_us = (
            (then - now) / answers * 1e6 for then, now in zip(_cpu_s(child), before, strict=True)
        )
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        listener.close()
        print(
            f"{name:24} {count:4} conns {answers / took:9.0f} req/s {user_us:7.1f} us user +"
            f" {system_us:5.1f} us system",
            flush=True,
        )


def _child(serve: Callable[[socket.socket], Any], listener: socket.socket, profile: str) -> None:
    profiler = cProfile.Profile()

    async def main() -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, listener)
                async for _ in signals:
                    nursery.cancel_scope.cancel()

    try:
        profiler.runcall(trio.run, main) if profile else trio.run(main)
        if profile:
            profiler.dump_stats(profile)
    finally:
        os._exit(0)


def _cpu_s(pid: int) -> tuple[float, float]:
    """User and system time."""
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
        fields = stat.read().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_argument("--connections", default="1,16")
    options.add_argument("--only", default="", help="floor, fast, cold or bare")
    options.add_argument("--profile", default="", help="write the child's cProfile here")
    chosen = options.parse_args()
    counts = [int(count) for count in chosen.connections.split(",")]
    rows: dict[str, tuple[str, Callable[[socket.socket], Any]]] = {
        "floor": ("floor: trio alone", floor),
        "fast": ("front, fast lane", lambda listener: front(listener, fast=True)),
        "cold": ("front, cold lane", lambda listener: front(listener, fast=False)),
        "bare": ("bare Hypercorn + Quart", bare_quart),
    }
    for key, (name, serve) in rows.items():
        if chosen.only in ("", key):
            measure(name, serve, counts, chosen.seconds, chosen.profile)


if __name__ == "__main__":
    main()
