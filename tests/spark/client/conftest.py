from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import urllib3.util.retry

from tests.spark.client.stub_server import StubServer


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with StubServer() as server:
        yield server


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """urllib3's pauses, noted and not slept."""
    noted: list[float] = []
    monkeypatch.setattr(urllib3.util.retry, "time", SimpleNamespace(sleep=noted.append))
    return noted
