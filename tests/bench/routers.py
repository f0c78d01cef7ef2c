"""What routers cost on a real server: ``python -m tests.bench.routers [--only abcd] [--turns 5]``.

a   one append to a source with 0, 1, 10, 100 and 1,000 routers, half of the dests on either shard:
    - what the log grows by: the LSN behind the last frame of each shard, before the append and when
      all copies are readable. So room that a file was made with is not counted, and files that
      were given back are. The payload is shown apart.
    - the ack of sequential appends, each when all copies of the one before are made (``at rest``),
      and in a row; turn by turn with appends to a topic without routers
    - the time until all copies are readable: event streams that watch all dests, without data,
      have them
b   a router in batches of 1,000 records of 100 B: records a second from the first append until the
    last copy is readable, turn by turn with the same appends without a router
c   16 clients of single appends to a source with one router, turn by turn with one without
d   processor time of a server with 1,000 routers that have nothing to do, and without

b and c have their dest on the shard of the source, and on the other. The clients are this process.
``stolen`` is what the host took away; the machine's other load is in every figure.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

from tests.bench.http_load import Client, Load, drive, post, quantiles_ms, verdict
from tests.bench.live_clients import RECV_BYTES, connect, line, running, uncollected
from tests.bench.processes import Usage, cpu_s, quiet
from tests.bench.versions import stolen_s
from tests.support.log_bytes import log_length
from tests.support.routers import names_for, path_of
from tests.support.server import Server

FAN_OUTS = (0, 1, 10, 100, 1000)
SIZES = {"100 B": 100, "1 MiB": 1_048_000}
LATENCIES = 200
PAUSE_S = 0.01
BATCH, CLIENTS = 1000, 16
RATIO_MIN = 0.5
PER_COPY_MAX = 512  # bytes of log
FILE_BYTES = 64 << 20  # TOPICS_WAL_FILE_BYTES
IDLE_S, IDLE_ROUTERS = 5.0, 1000
IDLE_MAX = 0.02  # of a core
WAIT_S = 60.0
WATCHED_MAX = 250  # topics of one stream


def body_of(records: int, size: int) -> bytes:
    """An append's body: so many records of ``size`` bytes."""
    row = b'{"data":"%b"}' % (b"x" * (size - 2))
    return b'{"records":[%b]}' % b",".join([row] * records)


def appending(topic: str, records: int, size: int) -> bytes:
    return post(f"/v0/topics/{topic}?return_seqs=false", body_of(records, size))


def put(client: Client, target: str, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    head = f"PUT {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.ask(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)


def topic_of(client: Client, name: str, **config: Any) -> None:
    put(client, f"/v0/topics/{name}", {"durability": "disk", **config})


def route(client: Client, source: str, dest: str) -> None:
    put(client, path_of(f"{source}->{dest}"), {"source": source, "dest": dest})


def head_seq(client: Client, topic: str) -> int:
    request = f"GET /v0/topics/{topic}?touch=false HTTP/1.1\r\nHost: localhost\r\n\r\n"
    return int(client.ask_json(request.encode())["head_seq"])


def totals(client: Client, source: str) -> int:
    """``forwarded_total`` of all routers of a source."""
    request = f"GET /v0/routers?source={source}&page_size=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    listed = client.ask_json(request.encode())["routers"]
    return sum(router["forwarded_total"] for router in listed)


# a: fan-out


class Watcher:
    """Streams of many dests, which count records."""

    def __init__(self, address: tuple[str, int], client: Client, topics: list[str]) -> None:
        self._poll = select.epoll()
        self._rests: dict[int, tuple[socket.socket, bytes]] = {}
        for first in range(0, len(topics), WATCHED_MAX):
            watched = topics[first : first + WATCHED_MAX]
            body = {"topics": {name: {"tail": True} for name in watched}, "include_data": False}
            url = client.ask_json(post("/v0/watch", json.dumps(body).encode()))["stream_url"]
            sock = connect(address)
            head = f"GET {url} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
            sock.sendall(head.encode())
            self._rests[sock.fileno()] = sock, b""
            self._poll.register(sock, select.EPOLLIN)
        self.take(len(topics), b"event: caught-up\n")

    def take(self, count: int, event: bytes = b"event: record\n") -> None:
        """Wait until so many have come; each record is an event of its own."""
        seen = 0
        while seen < count:
            ready = self._poll.poll(WAIT_S)
            assert ready, f"{seen} of {count} events, and no more for {WAIT_S} s"
            for fd, _ in ready:
                sock, rest = self._rests[fd]
                data = sock.recv(RECV_BYTES)
                assert data, "the server has ended the stream"
                whole, end, rest = (rest + data).rpartition(b"\n")
                seen += (whole + end).count(event)
                self._rests[fd] = sock, rest

    def close(self) -> None:
        self._poll.close()
        for sock, _ in self._rests.values():
            sock.close()


def fan_out(folder: Path | None, turns: int) -> None:
    with running(folder, shards=2) as server:
        client = Client(server.address)
        (plain,) = names_for("plain", [0])
        topic_of(client, plain, cap_records=10_000)
        for count in FAN_OUTS:
            source, *dests = names_for(f"fan{count}", [0] + [n % 2 for n in range(count)])
            topic_of(client, source, cap_records=10_000)
            for dest in dests:
                topic_of(client, dest, cap_records=100)
                route(client, source, dest)
            quiet(server)
            for size in SIZES:
                _grows(server, client, source, dests, size)
            for size in SIZES:
                _acks(client, source, plain, count, size, turns)


def _grows(server: Server, client: Client, source: str, dests: list[str], size: str) -> None:
    """The log's growth, and how long it takes until all copies are readable."""
    watcher = Watcher(server.address, client, [*dests, source])
    seen = len(dests) + 1
    request = appending(source, 1, SIZES[size])
    took = []
    for _ in range(3):
        before, done, stolen = log_length(server.data_dir), totals(client, source), stolen_s()
        began = time.perf_counter()
        client.ask(request)
        watcher.take(seen)
        took.append((time.perf_counter() - began) * 1000)
        while totals(client, source) < done + len(dests):
            time.sleep(0.01)
        grown, stolen = log_length(server.data_dir) - before, stolen_s() - stolen
    watcher.close()
    payloads = grown // SIZES[size] if SIZES[size] > PER_COPY_MAX * (1 + len(dests)) else 1
    more = grown - payloads * SIZES[size]
    shown = f"log grows {grown:,} B = {payloads} x payload {SIZES[size]:,} + {more:,}"
    if dests:
        shown += f" ({more / len(dests):.0f} a copy)"
    shown += f"; readable {min(took):.1f} ms; stolen {stolen:.1f} s"
    files = 2 + len(dests) * SIZES[size] // FILE_BYTES  # a file ends behind so many bytes of copies
    holds = verdict(payloads <= files and more <= PER_COPY_MAX * (1 + len(dests)))
    line(f"a {len(dests):>4} routers, {size}", shown, holds)


def _acks(client: Client, source: str, plain: str, count: int, size: str, turns: int) -> None:
    """Seconds of acks, alternating with a topic that feeds nothing."""
    many = LATENCIES if count <= 10 else LATENCIES // 10
    for name, is_at_rest in (("at rest", True), ("in a row", False)):
        times, stolen = {topic: array("d") for topic in (source, plain)}, stolen_s()
        with uncollected():
            for turn in range(turns):
                for topic in [*times] if turn % 2 else [*reversed(times)]:
                    request = appending(topic, 1, SIZES[size])
                    for _ in range(many // turns):
                        began = time.perf_counter()
                        client.ask(request)
                        times[topic].append(time.perf_counter() - began)
                        if is_at_rest:
                            _rest(client, source, count)
                            time.sleep(PAUSE_S)
                    _rest(client, source, count)
        (p50, p99, *_), (q50, q99, *_) = (quantiles_ms(each) for each in times.values())
        shown = f"ack p50 {p50:.3f}  p99 {p99:.3f} ms; plain {q50:.3f}  {q99:.3f}"
        shown += f"  ratio {p50 / q50:.2f}; stolen {stolen_s() - stolen:.1f} s"
        line(f"a {count:>4} routers, {size}, {name}", shown, "info")


def _rest(client: Client, source: str, count: int) -> None:
    """Until all copies are made."""
    deadline = time.perf_counter() + WAIT_S
    expected = head_seq(client, source) * count
    while totals(client, source) < expected:
        assert time.perf_counter() < deadline, "copies are made in time"
        time.sleep(0.02)


# b, c: one router


def one_to_one(folder: Path | None, turns: int, seconds: float, only: str) -> None:
    kinds: dict[str, tuple[str, Callable[[Server, Client, str, str | None, float], float]]] = {
        "b": (f"{BATCH} x 100 B", _batches),
        "c": (f"{CLIENTS} x 1", _singles),
    }
    for shards, where in (([0, 0], "same shard"), ([0, 1], "another shard")):
        for kind in sorted({*only} & {*kinds}):
            name, run = kinds[kind]
            with running(folder, shards=2) as server:
                client = Client(server.address)
                source, dest = names_for("routed", shards)
                (plain,) = names_for("plain", [0])
                for topic in (source, dest, plain):
                    topic_of(client, topic, cap_records=1_000_000)
                route(client, source, dest)
                figures: dict[str, list[float]] = {source: [], plain: []}
                dests = {source: dest, plain: None}
                for topic in figures:
                    run(server, client, topic, dests[topic], seconds / 3)
                stolen, usage = stolen_s(), Usage(server)
                for turn in range(turns):
                    for topic in [*figures] if turn % 2 else [*reversed(figures)]:
                        figures[topic].append(run(server, client, topic, dests[topic], seconds))
                shown = f"stolen {stolen_s() - stolen:.1f} s; {usage}"
                _show(f"{kind} {name}, {where}", figures[source], figures[plain], shown)


def _show(name: str, routed: list[float], plain: list[float], shown: str) -> None:
    rate, peer = statistics.median(routed), statistics.median(plain)
    spread = f"({min(routed):,.0f}-{max(routed):,.0f})"
    figure = f"{rate:,.0f}/s {spread}; plain {peer:,.0f}/s  ratio {rate / peer:.2f}; {shown}"
    line(name, figure, verdict(rate / peer >= RATIO_MIN))


def _batches(server: Server, client: Client, topic: str, dest: str | None, seconds: float) -> float:
    """Records a second until the last is readable where it goes."""
    request = appending(topic, BATCH, 100)
    began, records = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        client.ask(request)
        records += BATCH
    _readable(client, topic, dest)
    return records / (time.perf_counter() - began)


def _singles(server: Server, client: Client, topic: str, dest: str | None, seconds: float) -> float:
    load = Load(topic, CLIENTS, repeat(appending(topic, 1, 100)).__next__)
    began = time.perf_counter()
    drive(server.address, [load], seconds)
    _readable(client, topic, dest)
    return len(load.seconds) / (time.perf_counter() - began)


def _readable(client: Client, topic: str, dest: str | None) -> None:
    """Until the dest shows all that its source holds."""
    if dest is None:
        return
    wanted, deadline = head_seq(client, topic), time.perf_counter() + WAIT_S
    while head_seq(client, dest) < wanted:
        assert time.perf_counter() < deadline, "copies are made in time"
        time.sleep(0.002)


# d: idle


def idle(folder: Path | None) -> None:
    with running(folder, shards=2) as server:
        client = Client(server.address)
        used = []
        for count in (0, IDLE_ROUTERS):
            if count:
                source, *dests = names_for("idle", [0] + [n % 2 for n in range(count)])
                began = time.perf_counter()
                for dest in dests:
                    route(client, source, dest)
                took = time.perf_counter() - began
                line(f"d {count} routers made", f"{took / count * 1000:.2f} ms each", "info")
                client.ask(appending(source, 1, 100))
                _rest(client, source, count)
            quiet(server)
            before, stolen = sum(map(cpu_s, server.pids())), stolen_s()
            time.sleep(IDLE_S)
            used.append((sum(map(cpu_s, server.pids())) - before) / IDLE_S)
            shown = f"{used[-1]:.2%} of a core; stolen {stolen_s() - stolen:.1f} s"
            line(
                f"d {count} routers, idle",
                shown,
                "peer" if not count else verdict(used[-1] - used[0] <= IDLE_MAX),
            )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="abcd")
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.5, help="of one turn of b and c")
    options.add_argument(
        "--dir", type=Path, help=f"where to write, default {tempfile.gettempdir()}"
    )
    chosen = options.parse_args()
    if "a" in chosen.only:
        fan_out(chosen.dir, chosen.turns)
    if {*"bc"} & {*chosen.only}:
        one_to_one(chosen.dir, chosen.turns, chosen.seconds, chosen.only)
    if "d" in chosen.only:
        idle(chosen.dir)


if __name__ == "__main__":
    main()
