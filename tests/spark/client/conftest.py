from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark.client.stub_server import StubServer


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with StubServer() as server:
        yield server


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The client's pauses, noted and not slept."""
    noted: list[float] = []
    monkeypatch.setattr("topics.client.sync.client.sleep", noted.append)
    return noted
