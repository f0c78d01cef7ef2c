"""Fixtures: one Spark session for all tests, and servers."""

from __future__ import annotations

import gc
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.client.stub_server import StubServer
from tests.spark.live import Live
from tests.support.server import Server
from topics.client.calls import Call
from topics.spark.client.http import TopicsClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TOPICS_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def jvm() -> Iterator[SparkSession]:
    """Return the session of all Spark tests of a process: one JVM, two cores, four attempts."""
    pytest.importorskip("pyspark")
    from topics.spark import register
    from topics.spark.session import session

    with warnings.catch_warnings():
        # An installed pandas may be too new for PySpark, and the garbage collector closes sockets.
        warnings.simplefilter("ignore")
        created = session(cores=2, partitions=4, name="tests")
        created.conf.set("spark.sql.shuffle.partitions", "2")
        register(created)
        yield created
        created.stop()
        gc.collect()


@pytest.fixture
def spark(jvm: SparkSession) -> SparkSession:
    """Return the shared session, active in this thread because a write uses its formats."""
    jvm.createDataFrame([(0,)], "a int")
    return jvm


@pytest.fixture
def unstopped(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Return the same session, which jobs cannot stop."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    return spark


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[TopicsClient]:
    """Return the number of requests of each client in this process."""
    counts: Counter[TopicsClient] = Counter()
    send = TopicsClient._send

    def counting_send(client: TopicsClient, topic: str, call: Call[Any]) -> Any:
        counts[client] += 1
        return send(client, topic, call)

    monkeypatch.setattr(TopicsClient, "_send", counting_send)
    return counts


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with StubServer() as server:
        yield server


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Return a server for all tests that leave it running and use topics of their own."""
    with Server(tmp_path_factory.mktemp("live"), shards=2) as server:
        yield Live(server)


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[Live]:
    """Return a server for one test, which may stop, kill and restart it at the same address."""
    with Server(tmp_path / "data", shards=1) as server:
        server.env["TOPICS_PORT"] = str(server.port)
        yield Live(server)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Live]:
    """Return a server with three API keys. ``narrow`` may only read other topics, ``writer`` may
    only append.
    """
    keys = "the-right-key,narrow:r:other.,writer:w"
    with Server(tmp_path / "locked", shards=1, api_keys=keys) as server:
        created = Live(server, api_key="the-right-key")
        created.make("spark.locked", 3)
        yield created
