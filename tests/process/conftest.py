"""What several modules of process tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def really_started(started_servers: None) -> None:
    """What a process is from its start on is what these tests are about."""
