from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark.source.live import Live
from tests.support.server import Server


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One server for the tests of a module."""
    with Server(tmp_path_factory.mktemp("server") / "data", shards=2) as server:
        yield Live(server)
