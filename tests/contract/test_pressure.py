"""A server that has more to do than it can: 429 with a time that is kept, and soon none again."""

from __future__ import annotations

import select
import socket
import threading
import time
from pathlib import Path
from typing import Self

import pytest

from tests.support.api import Api, ok, request
from tests.support.queues import until
from tests.support.server import Server

FLOODING = 900  # sockets
AHEAD = 4  # requests of each that are not answered
RECORDS = [{"data": 1}]
BODY = b'{"records":[{"data":1}]}'
FORCED = {"records": RECORDS, "disable_backpressure": True}


class Flood(threading.Thread):
    """Sends appends on many sockets, always some ahead of their answers, until it is stopped."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self.refused = self.answered = 0
        self._stopped = threading.Event()
        self._socks = [socket.create_connection(address) for _ in range(FLOODING)]
        self._requests = [
            request("POST", f"/v0/topics/flood-{number}", BODY) for number in range(FLOODING)
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()
        for sock in self._socks:
            sock.close()

    def run(self) -> None:
        poll, by_fd = select.poll(), {}
        for sock, asked in zip(self._socks, self._requests, strict=True):
            sock.sendall(asked * AHEAD)
            poll.register(sock, select.POLLIN)
            by_fd[sock.fileno()] = sock, asked
        while not self._stopped.is_set():
            for fd, _ in poll.poll(100):
                sock, asked = by_fd[fd]
                came = sock.recv(1 << 16)
                answers = came.count(b"HTTP/1.1 ")
                self.answered += answers
                self.refused += came.count(b"HTTP/1.1 429")
                sock.sendall(asked * answers)


@pytest.mark.slow
def test_under_pressure_a_refused_write_is_let_in_when_it_was_told_to_come(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=1) as server, Api(server.address) as api:
        ok(api.put("mine", {"priority": -1000}), 201)  # refused before all others
        with Flood(server.address):
            answer = until(lambda: api.append("mine", RECORDS), lambda answer: answer.status == 429)
            error = answer.json()["error"]
            assert error["code"] == "throttled"
            assert error["detail"].keys() == {"retry_after_ms"}
            retry_ms = error["detail"]["retry_after_ms"]
            assert 1000 <= retry_ms <= 30_000
            assert int(answer.headers["retry-after"]) == -(-retry_ms // 1000)
            ok(
                api.call(
                    "POST", "/v0/topics/mine", {"records": RECORDS, "disable_backpressure": True}
                )
            )
            time.sleep(retry_ms / 1000)
            ok(api.append("mine", RECORDS))
        until(lambda: all(api.append("mine", RECORDS).status == 200 for _ in range(100)))
        assert "under pressure: writes are refused" in server.logged
