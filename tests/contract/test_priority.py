"""Priority of topics (§0.9, §0.10), and a server under overload."""

from __future__ import annotations

import select
import socket
import threading
import time
from pathlib import Path
from typing import Any, Self

import pytest

from tests.contract.test_ws_publish import answers, publish, send_batch
from tests.support.api import TIMEOUT_S, Api, ok, request
from tests.support.queues import Queue, until
from tests.support.server import Server
from tests.support.ws import Socket

TOPICS, ROUNDS = 250, 4  # the number of unanswered publishes that a WebSocket may have
ATTEMPTS = 20


def waited_ms(answer: Any) -> float:
    found: float = answer["performance"]["throttle_wait_ms"]
    return found


def test_an_idle_server_defers_no_request(api: Api, socket: Socket, topic: str) -> None:
    replies = [ok(api.append(topic, *range(8)), 201), ok(api.append(topic, 1))]
    replies += [ok(api.diff(topic, from_seq=seq, limit=1)) for seq in range(8)]
    replies.append(socket.request("publish", "1", topic=topic, records=[{"data": 1}]))
    replies.append(Queue.create(api, f"{topic}.queue", 1).claimed())
    assert [waited_ms(answer) for answer in replies] == [0.0] * len(replies)


def test_a_read_raises_the_priority_of_a_topic_for_a_while(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    assert api.state(topic)["effective_priority"] == 0, "the topic was read before"
    ok(api.diff(topic))
    assert 450 <= api.state(topic)["effective_priority"] <= 500
    ok(api.put(topic, {"auto_priority": False}))
    assert api.state(topic)["effective_priority"] == 0
    ok(api.put(topic, {"priority": 2000}))
    assert api.state(topic)["effective_priority"] == 1000


def test_many_publishes_are_delayed_and_keep_their_order(socket: Socket, new_name: Any) -> None:
    # If the client has to wait for a core, the server may read the publishes in short iterations.
    for _ in range(ATTEMPTS):
        topics = [new_name() for _ in range(TOPICS)]
        config = {"durability": "ephemeral"}
        send_batch(
            socket,
            [
                publish(f"{number}", name, number, config=config)
                for number in range(ROUNDS)
                for name in topics
            ],
        )
        replies = answers(socket, TOPICS * ROUNDS)
        assert {answer["op"] for answer in replies} == {"ack"}
        seqs: dict[str, list[tuple[str, int]]] = {name: [] for name in topics}
        for answer in replies:
            seqs[answer["topic"]].append((answer["request_id"], answer["last_seq"]))
        in_order = [(f"{number}", number + 1) for number in range(ROUNDS)]
        assert all(found == in_order for found in seqs.values())
        if max(map(waited_ms, replies)) > 0.0:
            return
    pytest.fail("no publish was delayed")


FLOODING = 900  # sockets
AHEAD = 4  # unanswered requests of each socket
RECORDS = [{"data": 1}]
BODY = b'{"records":[{"data":1}]}'
FORCED = {"records": RECORDS, "disable_backpressure": True}


class Flood(threading.Thread):
    """Sends pipelined appends on many sockets until it is stopped."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self.refused = self.answered = 0
        self._stopped = threading.Event()
        self._socks = [socket.create_connection(address, TIMEOUT_S) for _ in range(FLOODING)]
        self._requests = [
            request("POST", f"/v0/topics/flood-{number}", BODY) for number in range(FLOODING)
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join(TIMEOUT_S)
        for sock in self._socks:
            sock.close()

    def run(self) -> None:
        poll, by_fd = select.poll(), {}
        for sock, raw_request in zip(self._socks, self._requests, strict=True):
            sock.sendall(raw_request * AHEAD)
            poll.register(sock, select.POLLIN)
            by_fd[sock.fileno()] = sock, raw_request
        while not self._stopped.is_set():
            for fd, _ in poll.poll(100):
                sock, raw_request = by_fd[fd]
                received = sock.recv(1 << 16)
                answers = received.count(b"HTTP/1.1 ")
                self.answered += answers
                self.refused += received.count(b"HTTP/1.1 429")
                sock.sendall(raw_request * answers)


@pytest.mark.slow
def test_under_overload_a_refused_write_is_admitted_after_its_retry_after(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=1) as server, Api(server.address) as api:
        ok(api.put("mine", {"priority": -1000}), 201)  # refused before all other topics
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
        assert "writes throttled" in server.logged
