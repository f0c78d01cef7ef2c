from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.server import Server
from topics.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def sink(spark: SparkSession) -> SparkSession:
    """The session that the tests share, with the sink. A write looks for the format in the session
    of its thread: let that be this one, whatever other tests did there.
    """
    register(spark)
    spark.createDataFrame([(0,)], "a int")
    return spark


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2) as server:
        server.env["TOPICS_PORT"] = str(server.port)  # the same address after a restart
        yield server


@pytest.fixture
def url(server: Server) -> str:
    return f"http://{server.host}:{server.port}"
