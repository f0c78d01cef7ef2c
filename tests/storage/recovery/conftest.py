"""Fixture: the log of a killed shard."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.log import (
    Client,
    log_files,
)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Return the directory of a killed shard whose log has several files."""
    client = Client(tmp_path / "data", file_bytes=8192)
    for _ in range(40):
        client.append("a", "x" * 500)
    client.kill()
    assert len(log_files(tmp_path / "data")) > 4
    return tmp_path / "data"
