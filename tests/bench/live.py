"""What live costs on a real server: ``python -m tests.bench.live [--only abcd] [--seconds 5]``.

a   publishes on one WebSocket, 50 of them unanswered: acks and records a second
b   from just before a publish is sent to when a subscriber has read its frame, at 100 messages a second; and the same on a path with
    nothing on it (`tests/bench/bare.py`)
c   memory of front and shards for each open idle stream, every one with a session of its own
d   a room: 100 WebSockets that each publish 20 messages a second to the one topic that all are subscribed to

Records are of 200 bytes. The clients are this process: frames made before they are sent, answers
counted in the bytes as they come, everything in one epoll loop. The machine's other load is in
every figure.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import re
import resource
import select
import shutil
import socket
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.bare import BarePath
from tests.bench.http_load import DATA, Client, append, post, quantiles_ms, verdict
from tests.bench.websocket import frame
from tests.server import Server, rss_bytes

WINDOW = 50
ACK, ERROR = b'"op":"ack"', b'"op":"error"'
ACKS_MIN, RECORDS_MIN = 20_000, 100_000  # a second, with 1 and with 20 records a message
BATCH = 20
DELIVERY_HZ = 100
P99_MS = 3.0
IDLE_STREAMS = 5000
IDLE_BYTES_MAX = 25 << 10
ROOM, ROOM_HZ = 100, 20
ROOM_TIMED = 10  # the sockets of a room of which every delivery is timed
DRAIN_S = 20.0
RECV_BYTES = 1 << 18
TICK_HZ = os.sysconf("SC_CLK_TCK")
CLASSES = ("ephemeral", "disk", "fsync")
_SEQ = re.compile(rb'"\$seq":(\d+)')
_SENT = re.compile(rb'"sent":(\d+),"from":(\d+)')
_NUMBER = re.compile(rb'"number":(\d+)')
_UPGRADE = (
    b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
CHANCE = random.Random(7)


def line(name: str, figures: str, holds: str) -> None:
    print(f"{name:<34}{figures:<98}  {holds}", flush=True)


def text(payload: bytes) -> bytes:
    """A masked text message."""
    return frame(payload, CHANCE, first=True, final=True)


def connect(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address, timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def web_socket(address: tuple[str, int]) -> socket.socket:
    """One that is open."""
    sock = connect(address)
    sock.sendall(_UPGRADE)
    head = _until(sock, b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 "), head
    assert head.endswith(b"\r\n\r\n"), "the server says more than it was asked"
    return sock


def stream(address: tuple[str, int], client: Client, topic: str) -> socket.socket:
    """A session of its own at the head of a topic, and its open stream, once it is live."""
    return _opened(
        address,
        client.ask_json(post("/v0/watch", b'{"topics":{"%b":{"tail":true}}}' % topic.encode()))[
            "stream_url"
        ],
    )


def _opened(address: tuple[str, int], url: str) -> socket.socket:
    sock = connect(address)
    sock.sendall(
        b"GET %b HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n" % url.encode()
    )
    _until(sock, b"event: caught-up\n")
    return sock


def _until(sock: socket.socket, end: bytes) -> bytes:
    found = b""
    while end not in found:
        piece = sock.recv(RECV_BYTES)
        assert piece, found
        found += piece
    return found


def cpu_s(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK_HZ


def machine_s() -> float:
    """The processor time that all processes together have used, and what the host has taken away."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split(None, 9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICK_HZ


class Usage:
    """CPU of front, shards, this process and all others from here on, as shares of one core each."""

    def __init__(self, server: Server) -> None:
        self._roles = server.roles()
        self._began, self._before, self._own, self._all = (
            time.perf_counter(),
            self._now(),
            time.process_time(),
            machine_s(),
        )

    def _now(self) -> dict[str, float]:
        return {role: cpu_s(pid) for role, pid in sorted(self._roles.items())}

    def __str__(self) -> str:
        took, now = time.perf_counter() - self._began, self._now()
        used = {role.split()[0]: now[role] - self._before[role] for role in now} | {
            "client": time.process_time() - self._own
        }
        used["others"] = max(machine_s() - self._all - sum(used.values()), 0)
        return ", ".join(f"{who} {share / took:.0%}" for who, share in used.items())


@contextmanager
def running(folder: Path | None, shards: int = 1) -> Iterator[Server]:
    """A server on a fresh data directory."""
    data = Path(tempfile.mkdtemp(prefix="topics-live-", dir=folder))
    try:
        with Server(data / "data", shards=shards) as server:
            yield server
    finally:
        shutil.rmtree(data)


@contextmanager
def uncollected() -> Iterator[None]:
    """The client's own collector stays out of the figures."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# a: publishes


def publishes(folder: Path | None, seconds: float) -> None:
    with running(folder) as server:
        client = Client(server.address)
        for durability in CLASSES:
            client.ask(append(durability, 1, b'{"durability":"%b"}' % durability.encode()))
            for records in (1, BATCH):
                usage = Usage(server)
                acks = _publish(server.address, durability, records, seconds)
                shown = f"{acks:>10,.0f} acks/s {acks * records:>10,.0f} records/s   {usage}"
                holds = verdict(acks >= ACKS_MIN if records == 1 else acks * records >= RECORDS_MIN)
                line(
                    f"a {durability}, {records} a message",
                    shown,
                    "info" if durability == "fsync" else holds,
                )


def _publish(address: tuple[str, int], topic: str, records: int, seconds: float) -> float:
    """Acks a second with a window of publishes on one connection."""
    rows = b",".join([b'{"data":%b}' % DATA] * records)
    message = text(
        b'{"op":"publish","request_id":"p","topic":"%b","return_seqs":false,"records":[%b]}'
        % (topic.encode(), rows)
    )
    window = memoryview(message * WINDOW)
    sock = web_socket(address)
    buffer = bytearray(RECV_BYTES)
    view, kept, acked, sent = memoryview(buffer), 0, 0, WINDOW
    with uncollected():
        began = time.perf_counter()
        deadline = began + seconds
        sock.sendall(window)
        while acked < sent:
            count = sock.recv_into(view[kept:])
            assert count, "the server hung up"
            end = kept + count
            came = buffer.count(ACK, 0, end)
            assert buffer.find(ERROR, 0, end) < 0, bytes(buffer[:end][:1000])
            kept = min(
                end, len(ERROR) - 1
            )  # the last bytes may begin an "op" that goes on in the next read ...
            at = buffer.rfind(ACK, 0, end)
            if at >= 0:
                kept = min(
                    kept, end - at - len(ACK)
                )  # ... but what was counted must not be counted again
            view[:kept] = bytes(view[end - kept : end])
            acked += came
            if came and time.perf_counter() < deadline:
                sock.sendall(window[: came * len(message)])
                sent += came
        took = time.perf_counter() - began
    sock.close()
    return acked / took


# b: publish to deliver


def deliveries(folder: Path | None, seconds: float) -> None:
    messages = int(seconds * DELIVERY_HZ)
    with running(folder) as server:
        client = Client(server.address)
        for durability in CLASSES:
            client.ask(append(durability, 1, b'{"durability":"%b"}' % durability.encode()))
            for subscribers, p50_ms in ((1, 0.5), (50, 1.0)):
                with BarePath(folder, synced=durability == "fsync") as bare:
                    streams = [_opened(bare.address, "/") for _ in range(subscribers)]
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
    next_of = dict.fromkeys(
        by_fd, 0
    )  # the number that each stream gets next: none is lost, doubled or out of order
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


# c: idle streams


def idle_streams(folder: Path | None) -> None:
    with running(folder) as server:
        client = Client(server.address)
        client.ask(append("idle", 1))
        early = [
            stream(server.address, client, "idle") for _ in range(50)
        ]  # what the first ones load is not theirs
        before = {role: rss_bytes(pid) for role, pid in server.roles().items()}
        began = time.perf_counter()
        streams = [stream(server.address, client, "idle") for _ in range(IDLE_STREAMS)]
        took = time.perf_counter() - began
        time.sleep(2)
        after = {role: rss_bytes(pid) for role, pid in server.roles().items()}
        front, shard = (
            (after[role] - before[role]) / IDLE_STREAMS for role in ("front 0", "shard 0")
        )
        usage = Usage(server)
        time.sleep(5)
        memory = f"front {front / 1024:>6.1f} KiB  shard {shard / 1024:>5.1f} KiB a stream"
        shown = f"{memory}, {IDLE_STREAMS / took:,.0f} opened/s; idle: {usage}"
        line(f"c {IDLE_STREAMS} idle streams", shown, verdict(front + shard <= IDLE_BYTES_MAX))
        client.ask(append("idle", 1))
        sent = time.perf_counter()
        for sock in streams:
            _until(sock, b"event: record\n")
        line(
            "c one record to all of them",
            f"{(time.perf_counter() - sent) * 1000:,.0f} ms until the last was read",
            "info",
        )
        for sock in (*streams, *early):
            sock.close()


# d: a room


class Member:
    """One socket of a room; ``seq`` is the last that it got."""

    def __init__(self, address: tuple[str, int], topic: bytes, number: int, *, timed: bool) -> None:
        self.sock = web_socket(address)
        self.timed, self.number = timed, number
        self.seq = self.got = self.acked = 0
        self.wrong: list[str] = []
        self._cut = b""
        self._topic = topic
        self._pad = b"x" * 150
        self.sock.sendall(
            text(b'{"op":"subscribe","request_id":"s","topic":"%b","tail":true}' % topic)
        )
        told = _until(self.sock, b'"op":"caught_up"')
        found = re.search(rb'"from_seq":(\d+)', told)
        assert found, told
        self.seq = int(found[1])

    def publish(self) -> None:
        sent = time.perf_counter_ns()
        data = b'{"sent":%d,"from":%d,"pad":"%b"}' % (sent, self.number, self._pad)
        self.sock.sendall(
            text(
                b'{"op":"publish","request_id":"p","topic":"%b","return_seqs":false,"records":[{"data":%b}]}'
                % (self._topic, data)
            )
        )

    def take(self, times: array[float]) -> None:
        """Read what has come and look whether each seq follows the one before."""
        data = self._cut + self.sock.recv(RECV_BYTES)
        read_at = time.perf_counter_ns()
        # A record ends the part that is looked at; what follows the last one may be a frame's head
        # or a cut one.
        end = data.rfind(b"}}") + 2 if b"}}" in data else 0
        self._cut = data[end:]
        assert len(self._cut) < 1 << 20, self._cut[:1000]
        self.acked += data.count(ACK, 0, end)
        if ERROR in data:
            self.wrong.append(str(data[:300]))
        seqs = [*map(int, _SEQ.findall(data, 0, end))]
        if seqs and (
            seqs[0] != self.seq + 1
            or seqs[-1] - seqs[0] != len(seqs) - 1
            or seqs != list(range(seqs[0], seqs[-1] + 1))
        ):
            self.wrong.append(f"after {self.seq} came {seqs[:20]}")
        if seqs:
            self.seq = seqs[-1]
            self.got += len(seqs)
        if self.timed:
            times.extend([(read_at - int(sent)) / 1e9 for sent, _ in _SENT.findall(data, 0, end)])


def room(folder: Path | None, seconds: float) -> None:
    with running(folder) as server:
        client = Client(server.address)
        for durability in ("ephemeral", "disk"):
            client.ask(append(durability, 1, b'{"durability":"%b"}' % durability.encode()))
            members = [
                Member(server.address, durability.encode(), n, timed=n % (ROOM // ROOM_TIMED) == 0)
                for n in range(ROOM)
            ]
            usage = Usage(server)
            times, sent, took, lag = _talk(members, seconds)
            reached = sum(member.got for member in members)
            wrong = [f"{member.number}: {wrong}" for member in members for wrong in member.wrong]
            p50, p99, _, most = quantiles_ms(times)
            lost = sent * ROOM - reached
            shown = f"{reached / took:>9,.0f} deliveries/s  p50 {p50:,.0f}  p99 {p99:,.0f}  max {most:,.0f} ms   {usage}"
            asked = sent >= seconds * ROOM * ROOM_HZ * 0.98 and took <= seconds * 1.05 + 0.5
            line(
                f"d {durability}, a room of {ROOM}",
                shown,
                verdict(asked and not lost and not wrong),
            )
            line(
                "",
                f"{sent:,} published in {seconds:.0f} s, {lost} deliveries lost, the rest came {lag:.1f} s after the last publish",
                "",
            )
            for fault in wrong[:5]:
                line("", fault, "FAIL")
            for member in members:
                member.sock.close()


def _talk(members: list[Member], seconds: float) -> tuple[array[float], int, float, float]:
    """Times of deliveries, how many were published, and how long it took until all was delivered,
    in all and after the last.
    """
    poll, times, clock = select.epoll(), array("d"), time.perf_counter
    by_fd = {member.sock.fileno(): member for member in members}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    total, sent = int(seconds * ROOM * ROOM_HZ), 0
    first = members[0].seq
    with uncollected():
        began = last = clock()
        deadline = began + seconds + DRAIN_S
        while clock() < deadline and (
            sent < total or any(member.seq < first + total for member in members)
        ):
            due = min(int((clock() - began) * ROOM * ROOM_HZ) + 1, total)
            while sent < due:
                members[sent % ROOM].publish()
                sent += 1
                last = clock()
            for fd, _ in poll.poll(0.001 if sent < total else 0.1):
                by_fd[fd].take(times)
        ended = clock()
    poll.close()
    return times, sent, ended - began, ended - last


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="abcd")
    options.add_argument("--seconds", type=float, default=5.0, help="for each figure")
    options.add_argument(
        "--dir",
        type=Path,
        default=None,
        help="where to write, default the system's folder for temporary files",
    )
    chosen = options.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if "a" in chosen.only:
        publishes(chosen.dir, chosen.seconds)
    if "b" in chosen.only:
        deliveries(chosen.dir, chosen.seconds)
    if "c" in chosen.only:
        idle_streams(chosen.dir)
    if "d" in chosen.only:
        room(chosen.dir, chosen.seconds)


if __name__ == "__main__":
    main()
