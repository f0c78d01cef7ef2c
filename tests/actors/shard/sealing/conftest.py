"""Fixtures: a shard that seals step by step, without a loop and without syncs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.actors.shard.sealing.sealing_support import Sealer, by_hand, ended, no_syncs


@pytest.fixture(autouse=True)
def stepping(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the logged events."""
    by_hand(monkeypatch)
    no_syncs(monkeypatch)
    with structlog.testing.capture_logs() as events:
        yield events


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Sealer]:
    with ended(Sealer(tmp_path / "data")) as client:
        yield client
