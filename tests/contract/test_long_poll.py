"""wait_ms of a diff (§3): what ends a long poll and what does not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.api import SLACK_S, Answer, Api, Wire, ok, reached, refused, request
from tests.support.server import Server


class Poll:
    """A long poll that was sent, whose answer is waited for in the background."""

    def __init__(
        self, pool: ThreadPoolExecutor, server: Server, topic: str, fields: dict[str, Any]
    ) -> None:
        wire = Wire(server.address, 40)
        self._sent = time.monotonic()
        wire.send(request("POST", f"/v0/topics/{topic}/diff", json.dumps(fields).encode()))
        self._future: Future[tuple[Answer, float]] = pool.submit(self._wait, wire)

    def _wait(self, wire: Wire) -> tuple[Answer, float]:
        with wire:
            return wire.answer(), time.monotonic()

    def answer(self) -> tuple[Answer, float]:
        """The answer, and how long it took in seconds."""
        answer, at = self._future.result(60)
        return answer, at - self._sent

    @property
    def done(self) -> bool:
        return self._future.done()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(24) as pool:
        yield pool


def test_an_append_wakes_a_long_poll(
    server: Server, api: Api, topic: str, pool: ThreadPoolExecutor
) -> None:
    ok(api.append(topic, 1), 201)
    poll = Poll(pool, server, topic, {"from_seq": 1, "wait_ms": 20_000})
    reached(api, topic)
    assert not poll.done
    ok(api.append(topic, 2, 3))
    answer, took_s = poll.answer()
    page = ok(answer)
    assert [record["data"] for record in page["records"]] == [2, 3]
    assert (page["next_from_seq"], page["caught_up"]) == (3, True)
    assert took_s < SLACK_S


def test_a_cursor_above_the_head_waits_for_records_above_itself(
    server: Server, api: Api, topic: str, pool: ThreadPoolExecutor
) -> None:
    epoch = ok(api.put(topic), 201)["epoch"]
    ok(api.append(topic, 1, 2, 3))
    poll = Poll(pool, server, topic, {"from_seq": 5, "epoch": epoch, "wait_ms": 20_000})
    reached(api, topic)
    ok(api.append(topic, 4))
    reached(api, topic)
    ok(api.append(topic, 5, 6))
    page = ok(poll.answer()[0])
    assert [record["data"] for record in page["records"]] == [6]
    assert page["next_from_seq"] == 6


def test_one_append_wakes_every_long_poll(
    server: Server, api: Api, topic: str, pool: ThreadPoolExecutor
) -> None:
    ok(api.put(topic), 201)
    polls = [Poll(pool, server, topic, {"wait_ms": 20_000}) for _ in range(20)]
    reached(api, topic)
    ok(api.append(topic, "x"))
    for poll in polls:
        answer, took_s = poll.answer()
        assert [record["data"] for record in ok(answer)["records"]] == ["x"]
        assert took_s < SLACK_S


@pytest.mark.parametrize("wait_ms", [1, 300])
def test_a_long_poll_ends_on_time(api: Api, topic: str, wait_ms: int) -> None:
    ok(api.append(topic, 1), 201)
    sent = time.monotonic()
    page = ok(api.diff(topic, from_seq=1, wait_ms=wait_ms))
    took_s = time.monotonic() - sent
    assert wait_ms / 1000 - 0.005 <= took_s < wait_ms / 1000 + SLACK_S
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["tombstone"]) == (
        [],
        1,
        True,
        None,
    )


READY: list[tuple[str, dict[str, Any]]] = [
    ("records are there", {"from_seq": 0, "wait_ms": 20_000}),
    ("no wait", {"from_seq": 1, "wait_ms": 0}),
    ("no wait by default", {"from_seq": 1}),
    ("a tombstone", {"from_seq": 50, "wait_ms": 20_000}),
]


@pytest.mark.parametrize(
    "fields", [fields for _, fields in READY], ids=[f"3 {name}" for name, _ in READY]
)
def test_what_is_there_is_answered_at_once(api: Api, topic: str, fields: dict[str, Any]) -> None:
    ok(api.append(topic, 1), 201)
    sent = time.monotonic()
    ok(api.diff(topic, **fields))
    assert time.monotonic() - sent < SLACK_S


def test_own_records_do_not_end_a_long_poll(
    server: Server, api: Api, topic: str, pool: ThreadPoolExecutor
) -> None:
    ok(api.put(topic), 201)
    poll = Poll(pool, server, topic, {"wait_ms": 20_000, "node": "me"})
    reached(api, topic)
    for number in range(5):
        ok(api.append(topic, number, node="me"))
    reached(api, topic)
    assert not poll.done
    ok(api.append(topic, "yours", node="you"))
    page = ok(poll.answer()[0])
    assert [record["data"] for record in page["records"]] == ["yours"]
    assert (page["next_from_seq"], page["caught_up"]) == (6, True)


@pytest.mark.slow
def test_a_poll_that_saw_only_own_records_ends_at_the_head(
    server: Server, api: Api, topic: str, pool: ThreadPoolExecutor
) -> None:
    ok(api.put(topic), 201)
    poll = Poll(pool, server, topic, {"wait_ms": 3000, "node": "me"})
    reached(api, topic)
    ok(api.append(topic, 1, 2, node="me"))
    answer, took_s = poll.answer()
    page = ok(answer)
    assert (page["records"], page["next_from_seq"], page["head_seq"], page["caught_up"]) == (
        [],
        2,
        2,
        True,
    )
    assert took_s >= 2.99


def test_a_deletion_ends_a_long_poll(
    server: Server, api: Api, topic: str, pool: ThreadPoolExecutor
) -> None:
    ok(api.append(topic, 1), 201)
    poll = Poll(pool, server, topic, {"from_seq": 1, "wait_ms": 20_000})
    reached(api, topic)
    ok(api.delete(topic))
    answer, took_s = poll.answer()
    assert took_s < SLACK_S
    if answer.status == 200:
        assert ok(answer)["records"] == []
    else:
        refused(answer, 404, "topic_not_found")


@pytest.mark.slow
def test_an_append_to_another_topic_does_not_end_a_long_poll(
    server: Server, api: Api, topic: str, pool: ThreadPoolExecutor
) -> None:
    ok(api.put(topic), 201)
    poll = Poll(pool, server, topic, {"wait_ms": 600})
    reached(api, topic)
    for number in range(8):
        ok(api.append(f"{topic}.{number}", 1), 201)
    answer, took_s = poll.answer()
    assert ok(answer)["records"] == []
    assert took_s >= 0.59


@pytest.mark.slow
def test_a_wait_holds_up_nobody_else(
    server: Server, api: Api, topic: str, pool: ThreadPoolExecutor
) -> None:
    ok(api.put(topic), 201)
    polls = [Poll(pool, server, topic, {"wait_ms": 1500}) for _ in range(20)]
    sent = time.monotonic()
    for number in range(20):
        ok(api.append(f"{topic}.other", number), 200 if number else 201)
        ok(api.get(topic))
    assert time.monotonic() - sent < SLACK_S
    for poll in polls:
        assert ok(poll.answer()[0])["records"] == []


def test_a_client_that_leaves_while_it_waits_costs_nothing(
    server: Server, api: Api, topic: str
) -> None:
    ok(api.put(topic), 201)
    body = json.dumps({"wait_ms": 30_000}).encode()
    for _ in range(50):
        with Wire(server.address) as wire:
            wire.send(request("POST", f"/v0/topics/{topic}/diff", body))
    ok(api.append(topic, 1))
    assert len(api.read(topic)) == 1


@pytest.mark.slow
def test_requests_behind_a_long_poll_are_answered_in_order(
    wire: Wire, api: Api, topic: str
) -> None:
    ok(api.append(topic, 1), 201)
    poll = request("POST", f"/v0/topics/{topic}/diff", b'{"from_seq":1,"wait_ms":300}')
    wire.send(
        poll
        + request("GET", f"/v0/topics/{topic}")
        + poll
        + request("POST", f"/v0/topics/{topic}", b'{"records":[{"data":2}]}')
    )
    assert ok(wire.answer())["records"] == []
    assert ok(wire.answer())["count"] == 1
    assert ok(wire.answer())["records"] == []
    assert ok(wire.answer())["seqs"] == [2]
