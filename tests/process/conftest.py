"""Fixtures of the process tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def really_started(started_servers: None) -> None:
    """Start real processes, because these tests check the state of a process from its start."""
