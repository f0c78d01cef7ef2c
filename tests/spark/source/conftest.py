from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.source.live import Live
from tests.support.server import Server


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TOPICS_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server for tests that leave it running; each has topics of its own."""
    with Server(tmp_path_factory.mktemp("live"), shards=2) as server:
        yield Live(server)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Live]:
    """A server of one test, which may stop it, kill it and start it again at the same address."""
    with Server(tmp_path / "data", shards=1) as server:
        server.env["TOPICS_PORT"] = str(server.port)
        yield Live(server)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Live]:
    """A server that wants a key: the-right-key, or narrow for other topics."""
    with Server(tmp_path / "locked", shards=1, api_keys="the-right-key,narrow:r:other.") as server:
        made = Live(server, api_key="the-right-key")
        made.make("spark.locked", 3)
        yield made
