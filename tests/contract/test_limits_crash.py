"""Caps while shards and the front die under load: what is held comes back to what counting says."""

from __future__ import annotations

import http.client
import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.api import Answer, Api, listed, ok
from tests.support.caps import capped, clear, counts_agree, held
from tests.support.queues import until
from tests.support.routers import put
from tests.support.server import Server, kill_one
from tests.support.sse import Stream, session, turned_away
from topics.formats.names import shard_of

pytestmark = pytest.mark.slow

MAX_TOPICS, MAX_BYTES = 15, 2_000_000
ROUNDS, ROUND_S = 6, 0.5
EXPECTED = {200, 201, 404, 409, 429, 503}
# Each with topics of its own, so that none is full of what another one needs.
CONFIGS: tuple[dict[str, object], ...] = (
    {},
    {"cap_bytes": 30_000},
    {"durability": "ephemeral"},
    {"durability": "fsync", "cap_records": 20},
    {"ttl_ms": 150},
)


def disturb(api: Api, dice: random.Random) -> Answer:
    """Something that takes room or gives it back."""
    kind = dice.randrange(len(CONFIGS))
    topic = f"{kind}.{dice.randrange(5)}"
    size = dice.choice([10, 3000, 100_000])
    step = dice.choice(["append"] * 12 + ["put", "erase", "erase", "delete", "route", "long"])
    if step == "append":
        return api.append(topic, *["x" * size] * dice.choice([1, 1, 3]), config=CONFIGS[kind])
    if step == "put":
        return api.put(topic, CONFIGS[kind])
    if step == "erase":
        return api.call(
            "POST", f"/v0/topics/{topic}/delete", {"before_seq": 1 + dice.randrange(99)}
        )
    if step == "route":
        return put(api, f"r{topic}", topic, f"{kind}.dest", allow_cycle=True)
    if step == "long":
        return api.append(topic, *["x" * 900_000] * 5, config=CONFIGS[kind])
    return api.delete(topic)


class Load:
    """Clients that take and give back room until they are told to stop."""

    def __init__(self, server: Server, clients: int, seed: int) -> None:
        self._server, self._stop = server, threading.Event()
        self.statuses: set[int] = set()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed + n),), daemon=True)
            for n in range(clients)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client hangs"

    def _run(self, dice: random.Random) -> None:
        while not self._stop.is_set():
            try:
                with Api(self._server.address) as api:
                    while not self._stop.is_set():
                        answer = disturb(api, dice)
                        self.statuses.add(answer.status)
                        if answer.status == 503:
                            time.sleep(0.02)
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)  # the front is away


def settled(server: Server) -> None:
    """Every process is there, and the server ready."""
    server.wait_roles(3)
    server.wait_ready()


def test_counts_are_what_counting_says_whoever_dies(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with Server(
        tmp_path / "data", shards=2, max_topics=MAX_TOPICS, max_total_bytes=MAX_BYTES
    ) as server:
        victims = itertools.cycle(["shard 1", "shard 0", "front 0"])
        with Load(server, 4, seed) as load:
            for victim in itertools.islice(victims, ROUNDS):
                time.sleep(ROUND_S * dice.random())
                settled(server)
                kill_one(server.wait_roles(3)[victim])
            time.sleep(ROUND_S)
        assert {200, 201, 429} <= load.statuses <= EXPECTED
        settled(server)
        with Api(server.address) as api:
            topics, size = until(lambda: held(api), lambda found: found == held(api))
            assert topics <= MAX_TOPICS
            assert size <= MAX_BYTES
            for name in listed(api):  # those that trim themselves keep the rest of their cap
                if name[0] in "14":
                    ok(api.delete(name))
            counts_agree(api, MAX_TOPICS, MAX_BYTES)
            clear(api)
            counts_agree(api, MAX_TOPICS, MAX_BYTES)


def replaced(server: Server, role: str) -> None:
    """Kill this process; another one is there and ready."""
    server.wait_roles(3)
    server.replace(role)
    settled(server)


@contextmanager
def streams(server: Server, urls: list[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for url in urls:
            stack.enter_context(Stream(server.address, url))
        yield


def test_a_front_that_dies_leaves_no_stream_and_no_session_behind(tmp_path: Path) -> None:
    caps = {"max_sse_connections": 3, "max_watch_sessions": 4}
    with Server(tmp_path / "data", shards=2, **caps) as server:
        for _ in range(2):
            with Api(server.address) as api:
                api.append("t", 1)
                urls = [session(api, ["t"])["stream_url"] for _ in range(4)]
                another = api.call("POST", "/v0/watch", {"topics": {"t": {}}})
                capped(another, "max_watch_sessions", 4)
                with streams(server, urls[:3]):
                    capped(turned_away(server.address, urls[3]), "max_sse_connections", 3)
                    replaced(server, "front 0")


def test_a_shard_that_dies_keeps_the_places_of_its_topics(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=2, max_topics=2, max_total_bytes=3000) as server:
        here, there = "a", next(name for name in "bcdefgh" if shard_of(name, 2) != shard_of("a", 2))
        with Api(server.address) as api:
            ok(api.append(there, "x" * 2500), 201)
            ok(api.put(here), 201)
            role = f"shard {shard_of(there, 2)}"
            for _ in range(2):
                kill_one(server.wait_roles(3)[role])
                for answer in (api.put(f"{here}.{n}") for n in range(20)):
                    assert answer.status in (429, 503)
                capped(api.append(here, "x" * 2500), "max_total_bytes", 3000)
                settled(server)
            capped(api.append(here, "x" * 2500), "max_total_bytes", 3000)
            ok(api.delete(there))
            ok(api.append(here, "x" * 2500))
