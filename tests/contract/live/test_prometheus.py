"""A Prometheus server scrapes this one, and is then asked what it has seen."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.api import Api, ok
from tests.support.queues import until
from tests.support.server import Server

pytestmark = pytest.mark.slow

KEY = "scraper-key"
START_S = 30.0
CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: topics
    metrics_path: /v0/metrics
    authorization: {{credentials: {key}}}
    static_configs: [{{targets: ["{host}:{port}"]}}]
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2, api_keys=f"boss,{KEY}:read") as server:
        yield server


class Prometheus:
    """Asks the API of a running server."""

    def __init__(self, port: int) -> None:
        self._port = port

    def query(self, expression: str) -> list[Any]:
        """The series of an instant vector; none while the server starts."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("GET", f"/api/v1/query?query={quote(expression)}")
            answer = connection.getresponse()
            body = answer.read()
        except OSError:
            return []
        finally:
            connection.close()
        return list(json.loads(body)["data"]["result"]) if answer.status == 200 else []


@pytest.fixture
def prometheus(server: Server, tmp_path: Path) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("the Debian package prometheus is not installed")
    config, port = tmp_path / "prometheus.yml", free_port()
    config.write_text(CONFIG.format(key=KEY, host=server.host, port=server.port))
    process = subprocess.Popen(
        [
            *(program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"),
            *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"),
        ],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait()


def test_prometheus_scrapes_with_a_key_and_answers_queries(
    server: Server, prometheus: Prometheus
) -> None:
    with Api(server.address, token="boss") as api:
        ok(api.append("jobs", 1, 2, 3, config={"durability": "fsync"}), 201)

    def values(expression: str) -> list[float]:
        return [float(series["value"][1]) for series in prometheus.query(expression)]

    assert until(lambda: values('topics_topic_head_seq{topic="jobs"}'), bound_s=START_S) == [3]
    assert values("up") == [1]
    until(lambda: values("topics_topics"), lambda found: found == [1])
    until(lambda: values("topics_wal_fsync_latency_us_count"), lambda found: found > [0])
    quantile = "histogram_quantile(0.99, topics_wal_fsync_latency_us_bucket)"
    until(lambda: values(quantile), lambda found: bool(found) and found[0] > 0)
    kinds = {series["metric"]["class"] for series in prometheus.query("topics_topics_by_class")}
    assert "fsync" in kinds
