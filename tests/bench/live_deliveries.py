"""Part b of `tests.bench.live`: from before a publish is sent to when a subscriber has read it."""

from __future__ import annotations

import re
import select
import socket
import time
from array import array
from pathlib import Path

from tests.bench.bare import BarePath
from tests.bench.http_load import Client, append, post, quantiles_ms, verdict
from tests.bench.live_clients import (
    CLASSES,
    DRAIN_S,
    RECV_BYTES,
    line,
    opened,
    running,
    stream,
    uncollected,
)
from tests.bench.processes import Usage

DELIVERY_HZ = 100
P99_MS = 3.0
_NUMBER = re.compile(rb'"number":(\d+)')


def deliveries(folder: Path | None, seconds: float) -> None:
    messages = int(seconds * DELIVERY_HZ)
    with running(folder) as server:
        client = Client(server.address)
        for durability in CLASSES:
            client.ask(append(durability, 1, b'{"durability":"%b"}' % durability.encode()))
            for subscribers, p50_ms in ((1, 0.5), (50, 1.0)):
                with BarePath(folder, synced=durability == "fsync") as bare:
                    streams = [opened(bare.address, "/") for _ in range(subscribers)]
                    line(
                        f"b bare, {durability}, {subscribers}",
                        _shown(_deliver(bare.address, "bare", streams, messages)),
                        "peer",
                    )
                usage = Usage(server)
                streams = [stream(server.address, client, durability) for _ in range(subscribers)]
                times = _deliver(server.address, durability, streams, messages)
                p50, p99, _, _ = quantiles_ms(times)
                line(
                    f"b {durability}, {subscribers} subscribers",
                    f"{_shown(times)}   {usage}",
                    verdict(p50 <= p50_ms and p99 <= P99_MS),
                )


def _shown(times: array[float]) -> str:
    p50, p99, p999, most = quantiles_ms(times)
    return f"p50 {p50:>6.2f}  p99 {p99:>6.2f}  p99.9 {p999:>6.2f}  max {most:>6.2f} ms"


def _deliver(
    address: tuple[str, int], topic: str, streams: list[socket.socket], messages: int
) -> array[float]:
    """Seconds of every delivery of so many publishes."""
    publisher, poll, clock = Client(address), select.epoll(), time.perf_counter
    by_fd = {sock.fileno(): sock for sock in streams}
    for fd in (*by_fd, publisher.sock.fileno()):
        poll.register(fd, select.EPOLLIN)
    path, pad = f"/v0/topics/{topic}?return_seqs=false", b"x" * 180
    requests = [
        post(path, b'{"records":[{"data":{"number":%d,"pad":"%b"}}]}' % (number, pad))
        for number in range(messages)
    ]
    sent_at, times = [0.0] * messages, array("d")
    # The number that each stream gets next: none is lost, doubled or out of order.
    next_of = dict.fromkeys(by_fd, 0)
    cut = dict.fromkeys(by_fd, b"")
    sent, waits, left, began = 0, False, messages * len(streams), clock()
    deadline = began + messages / DELIVERY_HZ + DRAIN_S
    with uncollected():
        while left:
            now = clock()
            assert now < deadline, f"{left} deliveries of {topic} are missing"
            due = began + sent / DELIVERY_HZ
            if sent < messages and not waits and now >= due:
                waits, sent_at[sent] = True, clock()
                publisher.send(requests[sent])
                sent += 1
            for fd, _ in poll.poll(
                max(began + sent / DELIVERY_HZ - clock(), 0) if sent < messages and not waits else 1
            ):
                if fd not in by_fd:
                    waits = not publisher.collect()
                    continue
                data = cut[fd] + by_fd[fd].recv(RECV_BYTES)
                read_at = clock()
                whole = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
                cut[fd] = data[whole:]
                for number in map(int, _NUMBER.findall(data, 0, whole)):
                    assert number == next_of[fd], f"{number} came where {next_of[fd]} belongs"
                    next_of[fd] += 1
                    times.append(read_at - sent_at[number])
                    left -= 1
    publisher.close()
    for sock in streams:
        sock.close()
    poll.close()
    return times
