"""Idempotent appends (§0.8, §2)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Answer, Api, Wire, ok, refused, request
from tests.support.server import Server

SAME = ("topic", "first_seq", "last_seq", "seqs", "head_seq", "count")


def same(first: dict[str, Any], again: dict[str, Any]) -> None:
    """Check that ``again`` equals the first response and is marked as a duplicate."""
    assert {name: again[name] for name in SAME} == {name: first[name] for name in SAME}
    assert (again["created"], again["deduped"]) == (False, True)


def test_a_key_in_the_body_deduplicates(api: Api, topic: str) -> None:
    first = ok(api.append(topic, 1, 2, idempotency_key="k"), 201)
    assert (first["created"], first["deduped"]) == (True, False)
    same(first, ok(api.append(topic, 1, 2, idempotency_key="k")))
    assert api.state(topic)["head_seq"] == 2


def test_a_key_in_the_header_deduplicates(api: Api, topic: str) -> None:
    header = {"Idempotency-Key": "k"}
    first = ok(api.append(topic, 1, headers=header), 201)
    same(first, ok(api.append(topic, 1, headers=header)))
    same(first, ok(api.append(topic, 1, headers={"idempotency-key": "k"})))
    same(first, ok(api.append(topic, 1, idempotency_key="k")))


def test_a_key_in_the_body_overrides_the_header(api: Api, topic: str) -> None:
    first = ok(
        api.append(topic, 1, idempotency_key="body", headers={"Idempotency-Key": "header"}), 201
    )
    assert ok(api.append(topic, 2, headers={"Idempotency-Key": "header"}))["seqs"] == [2]
    same(first, ok(api.append(topic, 3, headers={"Idempotency-Key": "body"})))


def test_a_duplicate_gets_the_first_response_even_after_later_appends(api: Api, topic: str) -> None:
    ok(api.append(topic, 0), 201)
    first = ok(api.append(topic, 1, 2, 3, idempotency_key="k"))
    ok(api.append(topic, *range(10)))
    same(first, ok(api.append(topic, 1, 2, 3, idempotency_key="k")))
    same(first, ok(api.append(topic, "another payload", idempotency_key="k")))
    assert api.state(topic)["head_seq"] == 14


def test_a_duplicate_may_omit_its_seqs(api: Api, topic: str) -> None:
    body = {"records": [{"data": 1}, {"data": 2}], "idempotency_key": "k"}
    ok(api.call("POST", f"/v0/topics/{topic}?return_seqs=false", body), 201)
    again = ok(api.call("POST", f"/v0/topics/{topic}?return_seqs=false", body))
    assert "seqs" not in again
    assert (again["first_seq"], again["last_seq"], again["deduped"]) == (1, 2, True)
    assert ok(api.call("POST", f"/v0/topics/{topic}", body))["seqs"] == [1, 2]


def test_keys_are_compared_exactly_and_belong_to_one_topic(api: Api, topic: str) -> None:
    for key in ("k", "K", "k ", "é", "e\u0301", "k\u0000"):
        assert (
            ok(api.append(topic, 1, idempotency_key=key), 201 if key == "k" else 200)["deduped"]
            is False
        )
    assert api.state(topic)["head_seq"] == 6
    assert ok(api.append(f"{topic}.other", 1, idempotency_key="k"), 201)["seqs"] == [1]


BAD_HEADERS = ["", "x" * 257]


@pytest.mark.parametrize("key", BAD_HEADERS, ids=["0.8 empty", "0.8 257 characters"])
def test_an_invalid_key_header_gets_400(server: Server, topic: str, key: str) -> None:
    with Wire(server.address) as wire:
        wire.send(
            request(
                "POST",
                f"/v0/topics/{topic}",
                b'{"records":[{"data":1}]}',
                f"Idempotency-Key: {key}",
            )
        )
        refused(wire.answer(), 400, "invalid_request")


def test_a_failed_append_does_not_store_its_key(api: Api, topic: str) -> None:
    refused(api.append(topic, 1, idempotency_key="k", create=False), 404, "topic_not_found")
    refused(api.append(topic, "x" * 2**20, idempotency_key="k"), 400, "record_too_large")
    refused(api.append(topic, *range(10_001), idempotency_key="k"), 400, "batch_too_large")
    first = ok(api.append(topic, 1, idempotency_key="k"), 201)
    assert first["deduped"] is False
    same(first, ok(api.append(topic, 1, idempotency_key="k", create=False)))


def test_a_window_of_0_stores_no_keys(api: Api, topic: str) -> None:
    ok(api.put(topic, {"idempotency_window_ms": 0}), 201)
    assert [ok(api.append(topic, 1, idempotency_key="k"))["seqs"] for _ in range(3)] == [
        [1],
        [2],
        [3],
    ]


@pytest.mark.slow
def test_a_key_is_kept_exactly_for_its_window(api: Api, topic: str) -> None:
    window_ms = 2000
    ok(api.put(topic, {"idempotency_window_ms": window_ms}), 201)
    requested_at = time.monotonic()
    ok(api.append(topic, 1, idempotency_key="k"))
    answered = time.monotonic()
    while True:  # duplicates do not extend the window
        sent = time.monotonic()
        again = ok(api.append(topic, 1, idempotency_key="k"))
        if not again["deduped"]:
            break
        assert (sent - answered) * 1000 < window_ms + 2000, "the key outlived its window"
        time.sleep(0.05)
    assert (time.monotonic() - requested_at) * 1000 >= window_ms - 50, (
        "the key was dropped before its window ended"
    )
    assert again["seqs"] == [2]


def send_concurrently(
    server: Server, count: int, call: Callable[[Api, int], Answer]
) -> list[Answer]:
    """Send a request from ``count`` clients at the same moment."""
    # The timeout is for clients that fail before they reach the barrier.
    barrier = threading.Barrier(count, timeout=30)

    def client(number: int) -> Answer:
        with Api(server.address) as api:
            ok(api.listing(page_size=1))  # establish the connection
            barrier.wait()
            return call(api, number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(client, range(count)))


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync", "ephemeral"])
def test_concurrent_duplicates_append_once(
    server: Server, api: Api, topic: str, durability: str
) -> None:
    ok(api.put(topic, {"durability": durability}), 201)
    answers = send_concurrently(
        server, 20, lambda api, number: api.append(topic, number, number, idempotency_key="k")
    )
    bodies = [ok(answer) for answer in answers]
    assert [body["deduped"] for body in bodies].count(False) == 1
    assert all(body["seqs"] == [1, 2] for body in bodies)
    assert len(api.read(topic)) == 2


def test_concurrent_duplicates_create_once(server: Server, api: Api, topic: str) -> None:
    answers = send_concurrently(
        server, 20, lambda api, number: api.append(topic, number, idempotency_key="k")
    )
    assert sorted(answer.status for answer in answers) == [200] * 19 + [201]
    bodies = [answer.json() for answer in answers]
    assert [body["created"] for body in bodies].count(True) == 1
    assert [body["deduped"] for body in bodies].count(False) == 1
    assert api.state(topic)["head_seq"] == 1


def test_concurrent_batches_get_consecutive_seqs(server: Server, api: Api, topic: str) -> None:
    answers = send_concurrently(server, 16, lambda api, number: api.append(topic, *[number] * 10))
    batches = sorted(answer.json()["seqs"] for answer in answers)
    assert [seq for batch in batches for seq in batch] == list(range(1, 161))
    writers = {record["$seq"]: record["data"] for record in api.read(topic)}
    assert all(len({writers[seq] for seq in batch}) == 1 for batch in batches), (
        "the seqs of a batch are not consecutive"
    )


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_keys_survive_the_process_like_their_records(tmp_path: Path, end: str) -> None:
    server = Server(tmp_path / "data")
    first: dict[str, dict[str, Any]] = {}
    with server:
        with Api(server.address) as api:
            for durability in ("memory", "disk", "fsync"):
                ok(api.put(durability, {"durability": durability}), 201)
                first[durability] = ok(api.append(durability, 1, 2, idempotency_key="k"))
                ok(api.append(durability, 3))
        with server.again(end) as api:
            for durability, answer in first.items():
                same(answer, ok(api.append(durability, 9, idempotency_key="k")))
                assert [record["data"] for record in api.read(durability)] == [1, 2, 3]
