"""Part d of `tests.bench.live`: a room whose members publish to the topic that all subscribe to."""

from __future__ import annotations

import re
import select
import time
from array import array
from pathlib import Path

from tests.bench.http_load import Client, append, quantiles_ms, verdict
from tests.bench.live_clients import (
    ACK,
    DRAIN_S,
    ERROR,
    RECV_BYTES,
    line,
    running,
    text,
    uncollected,
    until,
    web_socket,
)
from tests.bench.processes import Usage

ROOM, ROOM_HZ = 100, 20
ROOM_TIMED = 10  # the sockets of a room of which every delivery is timed
_SEQ = re.compile(rb'"\$seq":(\d+)')
_SENT = re.compile(rb'"sent":(\d+),"from":(\d+)')


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
        told = until(self.sock, b'"op":"caught_up"')
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
            shown = (
                f"{reached / took:>9,.0f} deliveries/s  p50 {p50:,.0f}  p99 {p99:,.0f}  max"
                f" {most:,.0f} ms   {usage}"
            )
            asked = sent >= seconds * ROOM * ROOM_HZ * 0.98 and took <= seconds * 1.05 + 0.5
            line(
                f"d {durability}, a room of {ROOM}",
                shown,
                verdict(asked and not lost and not wrong),
            )
            line(
                "",
                f"{sent:,} published in {seconds:.0f} s, {lost} deliveries lost, the rest came"
                f" {lag:.1f} s after the last publish",
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
