"""What routers cost on a real server: ``python -m tests.bench.routers [--only abcd] [--turns 5]``.

a   one append to a source with 0, 1, 10, 100 and 1,000 routers, half of the dests on either shard:
    - what the log grows by: the LSN behind the last frame of each shard, before the append and when
      all copies are readable. So room that a file was made with is not counted, and files that
      were given back are. The payload is shown apart.
    - the ack of sequential appends, with pauses in which all copies are made and back to back, turn
      by turn with appends to a topic without routers
    - the time until all copies are readable: one event stream that watches all dests has them
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
from tests.bench.live_clients import RECV_BYTES, connect, line, running, uncollected, until
from tests.bench.processes import Usage, cpu_s, quiet
from tests.bench.versions import stolen_s
from tests.support.log_bytes import log_length
from tests.support.routes import names_for, path
from tests.support.server import Server

FAN_OUTS = (0, 1, 10, 100, 1000)
SIZES = {"100 B": 100, "1 MiB": 1_048_000}
LATENCIES = 200
PAUSE_S = 0.01
BATCH, CLIENTS = 1000, 16
RATIO_MIN = 0.5
PER_COPY_MAX = 512  # bytes of log
IDLE_S, IDLE_ROUTERS = 5.0, 1000
IDLE_MAX = 0.02  # of a core
WAIT_S = 60.0


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
    put(client, path(f"{source}->{dest}"), {"source": source, "dest": dest})


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
    """One stream of many dests, which counts records."""

    def __init__(self, address: tuple[str, int], client: Client, topics: list[str]) -> None:
        body = {"topics": {name: {"tail": True} for name in topics}}
        url = client.ask_json(post("/v0/watch", json.dumps(body).encode()))["stream_url"]
        self.sock: socket.socket = connect(address)
        head = f"GET {url} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        self.sock.sendall(head.encode())
        self._rest = until(self.sock, b"\r\n\r\n").partition(b"\r\n\r\n")[2]
        self._read(b"event: caught-up\n", len(topics))

    def take(self, count: int) -> None:
        """Wait until so many records have come; each is an event of its own."""
        self._read(b"event: record\n", count)

    def _read(self, event: bytes, count: int) -> None:
        poll = select.epoll()
        poll.register(self.sock, select.EPOLLIN)
        seen = self._rest.count(event)
        self._rest = b""
        tail = b""
        while seen < count:
            assert poll.poll(WAIT_S), f"{seen} of {count} events, and no more for {WAIT_S} s"
            data = tail + self.sock.recv(RECV_BYTES)
            assert len(data) > len(tail), "the server has ended the stream"
            seen += data.count(event)
            tail = data[-(len(event) - 1) :]
        poll.close()


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
    watcher = Watcher(server.address, client, [*dests, source][:1000])
    seen = min(len(dests) + 1, 1000)
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
    watcher.sock.close()
    more = grown - SIZES[size]
    shown = f"log grows {grown:,} B = payload {SIZES[size]:,} + {more:,}"
    if dests:
        shown += f" ({more / len(dests):.0f} a copy)"
    shown += f"; readable {min(took):.1f} ms; stolen {stolen:.1f} s"
    holds = verdict(more <= PER_COPY_MAX * (1 + len(dests)))
    line(f"a {len(dests)} routers, {size}", shown, holds)


def _acks(client: Client, source: str, plain: str, count: int, size: str, turns: int) -> None:
    """Seconds of acks, alternating with a topic that feeds nothing."""
    stolen = stolen_s()
    for name, pause_s in (("pauses", PAUSE_S), ("back to back", 0.0)):
        times = {topic: array("d") for topic in (source, plain)}
        many = LATENCIES if size == "100 B" and count <= 100 else LATENCIES // 10
        requests = {topic: appending(topic, 1, SIZES[size]) for topic in times}
        with uncollected():
            for turn in range(turns):
                for topic in [*times] if turn % 2 else [*reversed(times)]:
                    _ask(client, requests[topic], max(many // turns, 4), pause_s, times[topic])
                    if pause_s or topic == source:
                        _rest(client, source, count)
        (p50, p99, *_), (q50, q99, *_) = (quantiles_ms(each) for each in times.values())
        shown = f"ack p50 {p50:.3f}  p99 {p99:.3f} ms; plain {q50:.3f}  {q99:.3f}"
        shown += f"  ratio {p50 / q50:.2f}; stolen {stolen_s() - stolen:.1f} s"
        line(f"a {count} routers, {size}, {name}", shown, "info")


def _ask(client: Client, request: bytes, count: int, pause_s: float, seconds: array[float]) -> None:
    for _ in range(count):
        time.sleep(pause_s)
        began = time.perf_counter()
        client.ask(request)
        seconds.append(time.perf_counter() - began)


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
        "b": (f"batches of {BATCH} x 100 B", _batches),
        "c": (f"{CLIENTS} appends of 1", _singles),
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
