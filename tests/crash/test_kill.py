"""Real processes and SIGKILL: no acknowledged write is lost or duplicated, the other processes
continue, and a stop is clean.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import crc32c
import pytest

from tests.campaigns.writers import Writer, finish, verify
from tests.support.api import Answer, Api, Wire, ok, refused, request
from tests.support.server import Server, kill_one

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("TEST_SEED", "1"))
SHARD_RESTART_S = 10.0  # One second on an idle machine
CLASSES = ("memory", "disk", "fsync")


def topics_of(shard: int, shards: int, count: int = 1) -> list[str]:
    """Return names of topics in one shard: crc32c of the name, modulo the number of shards."""
    names = (f"on-{shard}-{number}" for number in range(10_000))
    return [name for name in names if crc32c.crc32c(name.encode()) % shards == shard][:count]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_shard_restarts_within_seconds_and_the_other_shards_continue(
    tmp_path: Path, victim: int
) -> None:
    with Server(tmp_path / "data", shards=2) as server:
        (killed_topic,), (other_topic,) = topics_of(victim, 2), topics_of(1 - victim, 2)
        with Api(server.address) as api:
            for topic in (killed_topic, other_topic):
                ok(api.put(topic, {"durability": "fsync"}), 201)
            ok(api.append(killed_topic, "before"))
            roles = server.wait_roles(3)
            restarted = threading.Event()
            neighbour = Neighbour(server, other_topic, restarted)
            neighbour.start()
            killed_at = time.monotonic()
            kill_one(roles[f"shard {victim}"])
            refusals = append_until_acknowledged(api, killed_topic)
            took_s = time.monotonic() - killed_at
            restarted.set()
            neighbour.join(20)
            assert [record["data"] for record in api.read(killed_topic)] == ["before", "after"]
            assert len(api.read(other_topic)) == neighbour.acknowledged
        after = server.wait_roles(3)
        assert {role for role in after if after[role] != roles[role]} == {f"shard {victim}"}
    assert took_s < SHARD_RESTART_S
    assert neighbour.problems == []
    assert neighbour.acknowledged > 0
    for answer in refusals:
        refused(answer, 503, "not_ready")
        assert int(answer.headers["retry-after"]) >= 0


def append_until_acknowledged(api: Api, topic: str) -> list[Answer]:
    """Repeat one keyed write until it is acknowledged, and return the earlier refusals."""
    refusals: list[Answer] = []
    deadline = time.monotonic() + 20
    while (answer := api.append(topic, "after", idempotency_key="after")).status != 200:
        refusals.append(answer)
        assert time.monotonic() < deadline, str(answer)
        time.sleep(0.005)
    return refusals


class Neighbour(threading.Thread):
    """Writes to a topic of a running shard without pauses, until the killed shard has restarted."""

    def __init__(self, server: Server, topic: str, restarted: threading.Event) -> None:
        super().__init__(daemon=True)
        self._server, self._topic, self._restarted = server, topic, restarted
        self.acknowledged = 0
        self.problems: list[str] = []

    def run(self) -> None:
        with Api(self._server.address) as api:
            while not self._restarted.is_set():
                answer = api.append(self._topic, self.acknowledged)
                if answer.status != 200:
                    self.problems.append(str(answer))
                    return
                self.acknowledged += 1


def test_a_killed_front_restarts_on_the_same_address(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=1) as server:
        roles = server.wait_roles(2)
        with Api(server.address) as api:
            ok(api.append("t", 1, idempotency_key="k"), 201)
        kill_one(roles["front 0"])
        server.wait_ready()
        with Api(server.address) as api:
            assert ok(api.append("t", 1, idempotency_key="k"))["deduped"] is True
            assert ok(api.append("t", 2))["seqs"] == [2]
        assert server.wait_roles(2)["shard 0"] == roles["shard 0"]


def test_a_crash_of_a_shard_ends_its_long_polls(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=1) as server:
        roles = server.wait_roles(2)
        with Api(server.address) as api:
            ok(api.put("t"), 201)
        with Wire(server.address) as wire:
            wire.send(request("POST", "/v0/topics/t/diff", b'{"wait_ms":30000}'))
            time.sleep(0.2)  # No external signal shows that the poll waits
            kill_one(roles["shard 0"])
            sent = time.monotonic()
            refused(wire.answer(), 503, "not_ready")
            assert time.monotonic() - sent < 15


def test_a_stop_under_load_loses_nothing_and_exits_with_0(tmp_path: Path) -> None:
    topics = [f"{durability}-{number}" for durability in CLASSES for number in range(2)]
    with Server(tmp_path / "data", shards=2) as server:
        writers = [Writer(number, lambda: server.address, topics, SEED) for number in range(6)]
        for writer in writers:
            writer.start()
        try:
            while sum(len(writer.ledger.acked) for writer in writers) < 300:
                time.sleep(0.01)
            server.stop()
        finally:
            ledgers = finish(writers, abandon=True)
        server.start()
        with Api(server.address) as api:
            assert verify(api, topics, ledgers) == []


def test_a_stop_does_not_wait_for_long_polls_after_the_drain(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=1, drain_ms=1000) as server:
        with Api(server.address) as api:
            ok(api.put("t"), 201)
        with Wire(server.address) as wire, Wire(server.address) as idle:
            wire.send(request("POST", "/v0/topics/t/diff", b'{"wait_ms":30000}'))
            idle.send(b"POST /v0/topics/t HTTP/1.1\r\nContent-Le")
            time.sleep(0.2)  # No external signal shows that the poll waits
            began = time.monotonic()
            server.stop()
            assert time.monotonic() - began < 15


def state_of(api: Api, topics: dict[str, str]) -> dict[str, Any]:
    """Return state and records of every topic, without the fields that a read may change."""
    seen = {}
    for topic in topics:
        state = api.state(topic)
        records = api.diff(topic, include_tags=True).body
        seen[topic] = (
            [
                state[name]
                for name in ("head_seq", "count", "bytes", "config", "epoch", "last_write_ts")
            ],
            records.partition(b'"performance"')[0],
        )
    return seen


SIZES: dict[str, list[Any]] = {
    "one": [1],
    "batch": [*range(1000)],
    "large-record": ["x" * 1_000_000],
    "large-body": ["x" * 1_000_000] * 6,
}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_restart_restores_the_same_topics(tmp_path: Path, end: str) -> None:
    topics = {durability: durability for durability in CLASSES}
    record = (
        b'{"records":[{"data":{ "b":1.10,"a":1E400 },"meta":{"k":"\\u0041"},"tag":"\xc3\xa9",'
        b'"node":"n"},{"data":null}]}'
    )
    with Server(tmp_path / "data", shards=2) as server:
        with Api(server.address) as api:
            for topic, durability in topics.items():
                ok(api.put(topic, {"durability": durability, "priority": 5, "ttl_ms": 10**12}), 201)
                for _ in range(20):
                    ok(api.call("POST", f"/v0/topics/{topic}", record))
                for size, data in SIZES.items():  # Topics that are created by their first write
                    config = {"durability": durability, "priority": 3}
                    first = f"{topic}.{size}"
                    ok(api.append(first, *data, config=config, idempotency_key="first"), 201)
            ok(api.put("gone"), 201)
            ok(api.delete("gone"))
            before = state_of(api, topics)
        with server.again(end) as api:
            assert state_of(api, topics) == before
            refused(api.get("gone"), 404, "topic_not_found")
            for topic in topics:
                assert ok(api.append(topic, 1))["seqs"] == [41]
                for size, data in SIZES.items():
                    first = f"{topic}.{size}"
                    assert [record["data"] for record in api.read(first)] == data
                    assert api.state(first)["config"]["priority"] == 3
                    again = ok(api.append(first, "other", idempotency_key="first"))
                    assert (again["deduped"], again["count"]) == (True, len(data))
                    assert ok(api.append(first, "next"))["first_seq"] == len(data) + 1


def test_a_second_server_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as first:
        second = Server(first.data_dir)
        second.spawn()
        try:
            assert second.wait_exit(15) not in (0, -9)
        finally:
            second.kill()
        assert str(first.data_dir) in second.logged
        assert "Traceback" not in second.logged
        with Api(first.address) as api:
            ok(api.append("t", 1), 201)
        first.kill()
        with second, Api(second.address) as api:
            assert len(api.read("t")) == 1


def test_the_stored_number_of_shards_takes_precedence_over_the_setting(tmp_path: Path) -> None:
    names = topics_of(0, 2, 3) + topics_of(1, 2, 3)
    with Server(tmp_path / "data", shards=2) as server:
        with Api(server.address) as api:
            for name in names:
                ok(api.append(name, name), 201)
        server.stop()
    with Server(tmp_path / "data", shards=1) as server:
        server.wait_roles(3)
        with Api(server.address) as api:
            for name in names:
                assert [record["data"] for record in api.read(name)] == [name]
