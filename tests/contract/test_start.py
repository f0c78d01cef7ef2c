"""§8.2: a start, from its first moment on: who comes early waits or is told."""

from __future__ import annotations

import http.client
from pathlib import Path

from tests.support.server import START_S, Server


def status_of(server: Server, path: str) -> int:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=START_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.read().startswith(b"{")
        return answer.status
    finally:
        connection.close()


def test_a_request_of_the_cold_lane_is_answered_from_the_first_moment_on(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", shards=1)
    log = server.spawn()
    try:
        url = str(log.event("listening", START_S)["url"])
        server.host, server.port = "127.0.0.1", int(url.rpartition(":")[2])
        assert status_of(server, "/v0/topics") in (200, 503)  # 503: the shard recovers
        server.wait_ready()
        assert status_of(server, "/v0/topics") == 200
        server.stop()
    finally:
        server.kill()
