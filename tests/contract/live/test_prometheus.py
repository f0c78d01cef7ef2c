"""Prometheus scrapes a server with the configuration in `deploy/prometheus`. The tests query its
samples and alerts.
"""

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
from tests.support.proxies import DEPLOY, with_changes
from tests.support.queues import until
from tests.support.server import Server

pytestmark = pytest.mark.slow

KEY = "scraper-key"
START_S = 30.0
SHIPPED = DEPLOY / "prometheus"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2, api_keys=f"boss,{KEY}:read") as server:
        yield server


class Prometheus:
    """A client of the API of a running Prometheus server."""

    def __init__(self, port: int) -> None:
        self._port = port

    def query(self, expression: str) -> list[Any]:
        """Return the series of an instant vector, or none while Prometheus starts."""
        return list(self._get(f"query?query={quote(expression)}", "result"))

    def alerts(self) -> dict[str, str]:
        """Return the state of each pending or firing alert."""
        found = self._get("alerts", "alerts")
        return {alert["labels"]["alertname"]: alert["state"] for alert in found}

    def rules(self) -> dict[str, str]:
        """Return the health of each alerting rule."""
        rules = [rule for group in self._get("rules", "groups") for rule in group["rules"]]
        return {rule["name"]: rule["health"] for rule in rules}

    def _get(self, path: str, member: str) -> Any:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("GET", f"/api/v1/{path}")
            answer = connection.getresponse()
            body = answer.read()
        except OSError:
            return []
        finally:
            connection.close()
        return json.loads(body)["data"][member] if answer.status == 200 else []


@pytest.fixture
def prometheus(server: Server, tmp_path: Path) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("the Debian package prometheus is not installed")
    config, port = tmp_path / "prometheus.yml", free_port()
    changes = {"127.0.0.1:4000": f"{server.host}:{server.port}", "15s": "200ms"}
    config.write_text(with_changes((SHIPPED / config.name).read_text(), changes))
    alerts = (SHIPPED / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(with_changes(alerts, {"for: 1m": "for: 1s"}))
    (tmp_path / "topics.key").write_text(KEY)
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


def test_the_alerts_are_loaded_and_one_fires_when_the_server_stops(
    server: Server, prometheus: Prometheus
) -> None:
    def healths() -> set[str]:
        return {*prometheus.rules().values()}

    until(healths, lambda found: found == {"ok"}, bound_s=START_S)
    assert len(prometheus.rules()) == 11
    until(lambda: prometheus.query("up == 1") and prometheus.alerts() == {}, bound_s=START_S)
    server.stop()
    until(prometheus.alerts, lambda found: found.get("Down") == "firing", bound_s=START_S)
