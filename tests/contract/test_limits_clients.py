"""Limits of keys and clients in the front (§11), and caps during crashes of processes."""

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

from tests.support.api import Answer, Api, Wire, listed, ok, reached, refused, request
from tests.support.caps import capped, clear, counts_agree, held
from tests.support.queues import Queue, Work, until
from tests.support.routers import put
from tests.support.server import Server, kill_one
from tests.support.sse import Stream, refused_stream, session
from tests.support.ws import KEY, Socket, alive, handshake, shake
from topics.formats.names import shard_of

IN_FLIGHT, STREAMS, STREAMS_PER_KEY, SESSIONS = 2, 4, 3, 5


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two keys. At the end all slots must be free."""
    caps = {
        "max_inflight_per_key": IN_FLIGHT,
        "max_sse_connections": STREAMS,
        "max_sse_connections_per_key": STREAMS_PER_KEY,
        "max_watch_sessions": SESSIONS,
    }
    path = tmp_path_factory.mktemp("limits") / "data"
    with Server(path, shards=1, api_keys="left,right", **caps) as server:
        with Api(server.address, token="left") as api:
            ok(api.put("t"), 201)
            ok(api.put("quiet"), 201)
            Queue.create(api, "q")
        yield server
        all_are_free(server)


@pytest.fixture
def api(limited: Server) -> Iterator[Api]:
    with Api(limited.address, token="left") as api:
        yield api


def poll(server: Server, after_seq: int) -> Wire:
    """Start a long poll, which is one request in flight."""
    wire, body = Wire(server.address), b'{"from_seq":%d,"wait_ms":20000}' % after_seq
    wire.send(request("POST", "/v0/topics/quiet/diff", body, "Authorization: Bearer left"))
    return wire


@contextmanager
def polls(server: Server, count: int, other_token: str = "right") -> Iterator[None]:
    """Keep ``count`` long polls in flight, and complete them at the end.

    ``other_token`` is a key that may still send other requests.
    """
    with ExitStack() as stack:
        other = stack.enter_context(Api(server.address, token=other_token))
        head = other.state("quiet")["head_seq"]
        wires = [stack.enter_context(poll(server, head)) for _ in range(count)]
        reached(other, "quiet")
        yield
        ok(other.append("quiet", "the end"))
        assert [wire.answer("POST").status for wire in wires] == [200] * count


def upgrade(server: Server, token: str = "left") -> Answer:
    return shake(server, handshake(KEY, f"Authorization: Bearer {token}"))


def opened(server: Server, token: str = "left") -> Socket:
    """Open a socket. Retry until a slot is free, because the server may not have noticed yet that
    the previous client has disconnected.
    """
    found: list[Socket] = []

    def attempt() -> bool:
        try:
            found.append(Socket(server.address, token=token))
        except AssertionError:
            return False
        return True

    until(attempt)
    return found[0]


def all_are_free(server: Server) -> None:
    """Check that all slots of streams are free."""
    with ExitStack() as stack:
        for token in ("left",) * STREAMS_PER_KEY + ("right",) * (STREAMS - STREAMS_PER_KEY):
            stack.enter_context(opened(server, token))
        capped(upgrade(server, "left"), "max_sse_connections", STREAMS)
        capped(upgrade(server, "right"), "max_sse_connections", STREAMS)


def test_requests_in_flight_of_one_key_are_capped(limited: Server, api: Api) -> None:
    with polls(limited, IN_FLIGHT):
        capped(api.get("t"), "max_inflight_per_key", IN_FLIGHT)
        capped(api.append("t", 1), "max_inflight_per_key", IN_FLIGHT)
        with Api(limited.address, token="right") as other:
            ok(other.get("t"))
        with Api(limited.address) as anonymous:
            assert anonymous.call("GET", "/v0/health").status == 200
            refused(anonymous.get("t"), 401, "unauthorized")
    ok(api.get("t"))


@pytest.mark.slow
def test_a_disconnect_ends_the_clients_request_in_flight(limited: Server, api: Api) -> None:
    with Api(limited.address, token="right") as other:
        head = other.state("quiet")["head_seq"]
        with poll(limited, head), poll(limited, head):
            reached(other, "quiet")
            capped(api.get("t"), "max_inflight_per_key", IN_FLIGHT)
    until(lambda: api.get("t").status, lambda status: status == 200)
    with polls(limited, 1):
        until(lambda: api.get("t").status, lambda status: status == 200)


def test_streams_and_sockets_do_not_count_as_requests_in_flight(limited: Server, api: Api) -> None:
    url = session(api, ["t"])["stream_url"]
    queue = Queue(api, "q")
    with (
        Stream(limited.address, url, token="left"),
        Work(queue, token="left"),
        opened(limited) as socket,
        polls(limited, 1),
    ):
        alive(socket)
        for _ in range(5):
            ok(api.get("t"))


def test_streams_of_all_kinds_share_their_caps(limited: Server, api: Api) -> None:
    urls = [session(api, ["t"])["stream_url"] for _ in range(2)]
    queue = Queue(api, "q")
    with (
        opened(limited),
        Work(queue, token="left"),
        Stream(limited.address, urls[0], token="left"),
    ):
        with Wire(limited.address) as wire:
            wire.send(request("GET", urls[1], None, "Authorization: Bearer left"))
            capped(wire.answer(), "max_sse_connections_per_key", STREAMS_PER_KEY)
        capped(upgrade(limited), "max_sse_connections_per_key", STREAMS_PER_KEY)
        with opened(limited, "right"):
            capped(upgrade(limited, "right"), "max_sse_connections", STREAMS)
    all_are_free(limited)


def test_a_closed_or_aborted_socket_frees_its_slot(limited: Server) -> None:
    for _ in range(3):
        sockets = [opened(limited) for _ in range(STREAMS_PER_KEY)]
        sockets[0].frame(8, b"\x03\xe8")
        assert sockets[0].closed() == 1000
        sockets[1].text("not JSON")
        for socket in sockets:
            socket.socket.close()
    all_are_free(limited)


@pytest.mark.slow
def test_a_cap_of_zero_disables_the_cap(tmp_path: Path) -> None:
    names = ("topics", "routers", "watch_sessions", "sse_connections", "total_bytes")
    per_key = ("sse_connections_per_key", "inflight_per_key")
    caps = {f"max_{name}": 0 for name in names + per_key}
    server = Server(tmp_path / "data", shards=2, api_keys="left", **caps)
    with server, Api(server.address, token="left") as api:
        for number in range(10):
            ok(api.append(f"t{number}", "x" * 1000), 201)
        ok(api.append("t", 1), 201)
        ok(api.put("quiet"), 201)
        with ExitStack() as stack:
            for _ in range(10):
                url = session(api, ["t"])["stream_url"]
                stack.enter_context(Stream(server.address, url, token="left"))
                stack.enter_context(Socket(server.address, token="left"))
            stack.enter_context(polls(server, 10, "left"))
            ok(api.get("t"))


MIB = 1 << 20
DIFF_BODY = b'{"from_seq":0,"max_batch_bytes":8388608}'


@pytest.mark.parametrize(
    ("keys", "most", "limit"),
    [
        ("left,right", 30_000_000, ("max_held_bytes_per_key", 15_000_000)),
        ("", 15_000_000, ("max_held_bytes", 15_000_000)),
    ],
)
def test_a_long_read_is_refused_while_clients_have_not_received_earlier_responses(
    tmp_path: Path, keys: str, most: int, limit: tuple[str, int]
) -> None:
    """The slow client occupies less than half of the bound, so it is not disconnected."""
    given = {"api_keys": keys, "max_held_bytes": most} if keys else {"max_held_bytes": most}
    token = "left" if keys else None
    field = [f"Authorization: Bearer {token}"] if token else []
    with ExitStack() as stack:
        server = stack.enter_context(Server(tmp_path / "data", shards=1, **given))
        api = stack.enter_context(Api(server.address, token=token))
        ok(api.append("long", *["x" * (MIB - 256)] * 9), 201)
        slow = stack.enter_context(Wire(server.address, receive_bytes=4096))
        diff_body = DIFF_BODY.replace(b"8388608", b"7340032")
        slow.send(request("POST", "/v0/topics/long/diff", diff_body, *field))
        assert slow.socket.recv(12) == b"HTTP/1.1 200"
        capped(api.call("POST", "/v0/topics/long/diff", DIFF_BODY), *limit)
        ok(api.diff("long", from_seq=8, max_batch_bytes=1))
        ok(api.append("long", 1))
        if keys:
            other = stack.enter_context(Api(server.address, token="right"))
            ok(other.call("POST", "/v0/topics/long/diff", DIFF_BODY))
        slow.socket.close()
        until(lambda: api.call("POST", "/v0/topics/long/diff", DIFF_BODY).status == 200)


MAX_TOPICS, MAX_BYTES = 15, 2_000_000
ROUNDS, ROUND_S = 6, 0.5
EXPECTED = {200, 201, 404, 409, 429, 503}
# Each config has its own topics, so that no topic needs the capacity of another one.
CONFIGS: tuple[dict[str, object], ...] = (
    {},
    {"cap_bytes": 30_000},
    {"durability": "ephemeral"},
    {"durability": "fsync", "cap_records": 20},
    {"ttl_ms": 150},
)


def send_random_request(api: Api, rng: random.Random) -> Answer:
    """Send a request that uses or frees capacity."""
    kind = rng.randrange(len(CONFIGS))
    topic = f"{kind}.{rng.randrange(5)}"
    size = rng.choice([10, 3000, 100_000])
    step = rng.choice(["append"] * 12 + ["put", "erase", "erase", "delete", "route", "long"])
    if step == "append":
        return api.append(topic, *["x" * size] * rng.choice([1, 1, 3]), config=CONFIGS[kind])
    if step == "put":
        return api.put(topic, CONFIGS[kind])
    if step == "erase":
        return api.call("POST", f"/v0/topics/{topic}/delete", {"before_seq": 1 + rng.randrange(99)})
    if step == "route":
        return put(api, f"r{topic}", topic, f"{kind}.dest", allow_cycle=True)
    if step == "long":
        return api.append(topic, *["x" * 900_000] * 5, config=CONFIGS[kind])
    return api.delete(topic)


class Load:
    """Clients that use and free capacity until they are stopped."""

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

    def _run(self, rng: random.Random) -> None:
        while not self._stop.is_set():
            try:
                with Api(self._server.address) as api:
                    while not self._stop.is_set():
                        answer = send_random_request(api, rng)
                        self.statuses.add(answer.status)
                        if answer.status == 503:
                            time.sleep(0.02)
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)  # the front is being restarted


def settled(server: Server) -> None:
    """Wait until every process runs and the server is ready."""
    server.wait_roles(3)
    server.wait_ready()


@pytest.mark.slow
def test_counts_stay_exact_when_any_process_dies(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with Server(
        tmp_path / "data", shards=2, max_topics=MAX_TOPICS, max_total_bytes=MAX_BYTES
    ) as server:
        victims = itertools.cycle(["shard 1", "shard 0", "front 0"])
        with Load(server, 4, seed) as load:
            for victim in itertools.islice(victims, ROUNDS):
                time.sleep(ROUND_S * rng.random())
                settled(server)
                kill_one(server.wait_roles(3)[victim])
            time.sleep(ROUND_S)
        assert {200, 201, 429} <= load.statuses <= EXPECTED
        settled(server)
        with Api(server.address) as api:
            topics, size = until(lambda: held(api), lambda found: found == held(api))
            assert topics <= MAX_TOPICS
            assert size <= MAX_BYTES
            for name in listed(api):  # topics with a byte cap keep the rest of it reserved
                if name[0] in "14":
                    ok(api.delete(name))
            counts_agree(api, MAX_TOPICS, MAX_BYTES)
            clear(api)
            counts_agree(api, MAX_TOPICS, MAX_BYTES)


def replaced(server: Server, role: str) -> None:
    """Kill a process and wait until its successor is ready."""
    server.wait_roles(3)
    server.replace(role)
    settled(server)


@contextmanager
def streams(server: Server, urls: list[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for url in urls:
            stack.enter_context(Stream(server.address, url))
        yield


@pytest.mark.slow
def test_a_front_crash_frees_the_slots_of_its_streams_and_sessions(tmp_path: Path) -> None:
    caps = {"max_sse_connections": 3, "max_watch_sessions": 4}
    with Server(tmp_path / "data", shards=2, **caps) as server:
        for _ in range(2):
            with Api(server.address) as api:
                api.append("t", 1)
                urls = [session(api, ["t"])["stream_url"] for _ in range(4)]
                another = api.call("POST", "/v0/watch", {"topics": {"t": {}}})
                capped(another, "max_watch_sessions", 4)
                with streams(server, urls[:3]):
                    capped(refused_stream(server.address, urls[3]), "max_sse_connections", 3)
                    replaced(server, "front 0")


@pytest.mark.slow
def test_topics_of_a_crashed_shard_still_count_against_the_caps(tmp_path: Path) -> None:
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
