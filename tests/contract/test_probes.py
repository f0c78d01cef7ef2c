"""Liveness and readiness (§8.1, §8.2), from the start of the server on."""

from __future__ import annotations

import http.client
import time
from pathlib import Path

import pytest

from tests.support.api import Api, listed, ok
from tests.support.queues import BOUND_S
from tests.support.server import START_S, Server


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"], ids=lambda path: f"8.1 {path}")
def test_the_health_probe_reports_a_running_server(api: Api, path: str) -> None:
    answers = [api.call("GET", path) for _ in range(2)]
    first, second = [answer.json() for answer in answers]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].headers["content-type"].split(";")[0] == "application/json"
    assert first["status"] == "ok"
    assert isinstance(first["version"], str)
    assert isinstance(first["uptime_ms"], int)
    assert 0 <= first["uptime_ms"] <= second["uptime_ms"]


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"], ids=lambda path: f"8.2 {path}")
def test_the_ready_probe_reports_a_ready_server(api: Api, path: str) -> None:
    answer = api.call("GET", path)
    assert answer.status == 200
    body = answer.json()
    assert (body["status"], body["wal_replay_complete"]) == ("ready", True)
    assert isinstance(body["topics"], int)


def test_ready_reports_the_number_of_topics(server: Server, api: Api, topic: str) -> None:
    """The number may lag slightly after writes."""
    ok(api.put(topic), 201)
    names = listed(api, page_size=1000)
    assert topic in names
    deadline = time.monotonic() + BOUND_S
    while (count := api.call("GET", "/v0/ready").json()["topics"]) != len(names):
        assert time.monotonic() < deadline, f"{count} topics instead of {len(names)}"
        time.sleep(0.02)


def status_of(server: Server, path: str) -> int:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=START_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.read().startswith(b"{")
        return answer.status
    finally:
        connection.close()


def test_the_admin_plane_answers_requests_from_the_start_on(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", shards=1)
    log = server.spawn()
    try:
        url = str(log.event("listening", START_S)["url"])
        server.host, server.port = "127.0.0.1", int(url.rpartition(":")[2])
        leases = "/v0/topics/missing/leases"
        assert status_of(server, leases) in (404, 503)  # 503: the shard recovers
        server.wait_ready()
        assert status_of(server, leases) == 404
        server.stop()
    finally:
        server.kill()
