"""Who may use a queue (§0.2): scopes, prefixes, keys of work streams, and how many there may be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Answer, Api, Wire, ok, refused, request
from tests.support.caps import capped
from tests.support.queues import HOUR_MS, Queue, Work, counters, data, until, work_path
from tests.support.server import Server

pytestmark = pytest.mark.slow

FULL = "full-key"
KEYS = ",".join(
    [
        FULL,
        "reader:read",
        "writer:write",
        "both:rw",
        "remover:delete",
        "admin:admin",
        "tenant::t42:|shared.",
        "tenant-writer:write:t42:",
        "o+d/d=%20key",
    ]
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("guarded-queues") / "data"
    with Server(path, api_keys=KEYS, shards=2) as server:
        with Api(server.address, token=FULL) as api:
            for name in ("t42:q", "t43:q", "shared.q", "other"):
                Queue.create(api, name)
        yield server


@pytest.fixture
def full(guarded: Server) -> Iterator[Api]:
    with Api(guarded.address, token=FULL) as api:
        yield api


POSTS: dict[str, dict[str, Any]] = {
    "claim": {"node": "w"},
    "ack": {"node": "w", "seqs": [999]},
    "nack": {"node": "w", "seqs": [999]},
    "extend": {"node": "w", "seqs": [999], "lease_ms": 1000},
    "redrive": {"limit": 1},
}
ALL = {*POSTS, "leases", "work"}
SETTLE = {"ack", "nack", "extend"}
RIGHTS: list[tuple[str, str, set[str]]] = [
    (FULL, "other", ALL),
    ("both", "other", ALL),
    ("reader", "other", {"leases"}),
    ("writer", "other", SETTLE),
    ("remover", "other", set()),
    ("admin", "other", set()),
    ("tenant", "t42:q", ALL),
    ("tenant", "shared.q", ALL),
    ("tenant", "t43:q", set()),
    ("tenant", "other", set()),
    ("tenant-writer", "t42:q", SETTLE),
    ("tenant-writer", "shared.q", set()),
]


def work(server: Server, name: str, token: str | None = None, query: str = "") -> Answer:
    """The answer to a work stream; one that opens is closed again."""
    key = [] if token is None else [f"Authorization: Bearer {token}"]
    path = f"{work_path(name, node='w')}&{query}"
    with Wire(server.address) as wire:
        wire.send(request("GET", path, None, "Accept: text/event-stream", *key))
        status, headers = wire.head()
        body = b"" if status == 200 else wire._take(int(headers["content-length"]))
        return Answer(status, headers, body)


def called(server: Server, name: str, action: str, token: str | None) -> Answer:
    if action == "work":
        return work(server, name, token)
    with Api(server.address, token=token) as api:
        path = f"/v0/topics/{name}/{action}"
        return api.call("GET" if action == "leases" else "POST", path, POSTS.get(action))


@pytest.mark.parametrize(
    ("token", "topic", "allowed"), RIGHTS, ids=[f"0.2 {row[0]} {row[1]}" for row in RIGHTS]
)
def test_scopes_and_prefixes(guarded: Server, token: str, topic: str, allowed: set[str]) -> None:
    for action in sorted(ALL):
        answer = called(guarded, topic, action, token)
        if action in allowed:
            assert answer.status == 200, f"{action}: {answer}"
        else:
            refused(answer, 403, "forbidden")


@pytest.mark.parametrize("token", [None, "nope", "full-ke"])
def test_without_a_known_key_everything_is_a_401(guarded: Server, token: str | None) -> None:
    for action in sorted(ALL):
        for name in ("other", "absent"):
            refused(called(guarded, name, action, token), 401, "unauthorized")


def test_checks_come_in_their_order(guarded: Server) -> None:
    with Api(guarded.address, token="reader") as api:
        path = "/v0/topics/other/claim"
        refused(api.call("PATCH", path, b"{}"), 405, "method_not_allowed")
        refused(api.call("POST", path, b"{", {"Content-Type": "text/plain"}), 403, "forbidden")
        refused(api.call("POST", "/v0/topics/absent/claim", b"{"), 403, "forbidden")


def test_a_lease_id_is_shown_only_to_a_key_that_may_write(guarded: Server, full: Api) -> None:
    queue = Queue.create(full, "leased", "a")
    (job,) = queue.claim("w", lease_ms=HOUR_MS)
    lease = {"$seq": 1, "node": "w", "deadline": job["deadline"], "deliveries": 1}
    for token, shown in ((FULL, True), ("both", True), ("reader", False)):
        with Api(guarded.address, token=token) as api:
            expected = lease | ({"lease_id": job["lease_id"]} if shown else {})
            assert Queue(api, "leased").leases() == [expected]


def test_a_redrive_stays_inside_the_prefixes_of_its_key(guarded: Server, full: Api) -> None:
    Queue.create(full, "t42:target")
    marks = [{"$dead_letter_from": name} for name in ("t43:q", "t42:target", "absent")]
    records = [{"data": number, "meta": meta} for number, meta in enumerate(marks)]
    ok(full.append("t42:dead", records=records), 201)
    with Api(guarded.address, token="tenant") as api:
        dead = Queue(api, "t42:dead")
        for to in ("t43:q", "other", "absent"):
            refused(dead.call("redrive", {"to": to}), 403, "forbidden")
        refused(Queue(api, "t43:q").call("redrive", {}), 403, "forbidden")
        body = dead.redrive()
        assert (body["moved"], body["remaining"], body["skipped"]) == (1, 0, 2)
        assert body["reason"] == "forbidden"
        assert data(Queue(api, "t42:target").claim("w", 5)) == [1]
    assert Queue(full, "t43:q").live() == []
    assert Queue(full, "t42:dead").live() == [1, 3]
    assert Queue(full, "t42:dead").redrive()["moved"] == 1


# --- the key of a work stream


@pytest.mark.parametrize(
    "query", ["token=full-key", "token=full%2Dkey", "token=both&token=nope", "x=1&token=full-key"]
)
def test_a_browser_may_give_the_key_in_the_query(guarded: Server, query: str) -> None:
    assert work(guarded, "other", None, query).status == 200


@pytest.mark.parametrize(
    "query", ["token=", "token", "token=nope&token=full-key", "Token=full-key"]
)
def test_a_wrong_key_in_the_query_is_a_401(guarded: Server, query: str) -> None:
    refused(work(guarded, "other", None, query), 401, "unauthorized")


def test_a_key_in_the_query_has_its_scopes_and_no_more(guarded: Server) -> None:
    refused(work(guarded, "other", None, "token=reader"), 403, "forbidden")
    refused(work(guarded, "other", None, "token=tenant"), 403, "forbidden")
    assert work(guarded, "t42:q", None, "token=tenant").status == 200


def test_no_other_route_takes_a_key_from_the_query(guarded: Server) -> None:
    with Api(guarded.address) as api:
        for action, body in POSTS.items():
            path = f"/v0/topics/other/{action}?token={FULL}"
            refused(api.call("POST", path, body), 401, "unauthorized")
        path = f"/v0/topics/other/leases?token={FULL}"
        refused(api.call("GET", path), 401, "unauthorized")


def test_keys_are_never_logged(guarded: Server) -> None:
    assert work(guarded, "other", None, f"token={FULL}").status == 200
    refused(work(guarded, "other", None, "token=writer"), 403, "forbidden")
    for secret in (FULL, "writer"):
        assert secret not in guarded.logged


# --- how many


@pytest.mark.slow
def test_the_number_of_streams_is_capped(tmp_path: Path) -> None:
    with Server(tmp_path / "data", max_sse_connections=1) as server, Api(server.address) as api:
        queue = Queue.create(api, "q", "a")
        with Work(queue) as stream:
            stream.jobs(1)
            capped(work(server, "q"), "max_sse_connections", 1)
        until(lambda: work(server, "q").status == 200)
        queue.becomes(ready=1)


@pytest.mark.slow
def test_the_number_of_streams_of_one_key_is_capped(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", max_sse_connections_per_key=1, api_keys="left,right")
    with server, Api(server.address, token="left") as api:
        queue = Queue.create(api, "q", "a", "b")
        with Work(queue, token="left"), Work(queue, token="right"):
            capped(work(server, "q", "left"), "max_sse_connections_per_key", 1)
            capped(work(server, "q", None, "token=right"), "max_sse_connections_per_key", 1)
        until(lambda: work(server, "q", "left").status == 200)


@pytest.mark.slow
def test_a_stream_is_no_request_in_flight(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", max_inflight_per_key=1, api_keys="key")
    with server, Api(server.address, token="key") as api:
        queue = Queue.create(api, "q", "a", "b", "c")
        with Work(queue, "w", 2, token="key") as stream:
            jobs = stream.jobs(2)
            time.sleep(0.2)
            assert queue.ack(jobs)["acked"] == 2
            assert data(stream.jobs(1)) == ["c"]
            assert queue.counters() == counters(in_flight=1)
