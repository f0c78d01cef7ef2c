from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.client.stub_server import StubServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One JVM for all Spark tests: two cores, four attempts."""
    pytest.importorskip("pyspark")
    from topics.spark.session import session

    with warnings.catch_warnings():
        # pandas, where installed, is newer than PySpark likes; sockets to the JVM are closed by the
        # garbage collector.
        warnings.simplefilter("ignore")
        made = session(cores=2, partitions=4, name="tests")
        yield made
        made.stop()
        gc.collect()


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with StubServer() as server:
        yield server


@pytest.fixture
def unstopped(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The session that the tests share: a job's command line must not stop it."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    return spark


@pytest.fixture
def fifty_rows(tmp_path: Path) -> Path:
    """A file of 50 JSON lines."""
    source = tmp_path / "rows.ndjson"
    source.write_text("".join(json.dumps({"id": number}) + "\n" for number in range(50)))
    return source
