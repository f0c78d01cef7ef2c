"""Fixtures: a log for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.wal import Log, start
from topics.storage.wal.spares import SpareFiles


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[Log]:
    wal = start(tmp_path / "wal")
    yield wal
    wal.stop()


@pytest.fixture
def no_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the next file only when it is needed, not in advance."""
    monkeypatch.setattr(SpareFiles, "is_next_due", lambda *_: False)
