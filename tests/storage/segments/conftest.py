"""Fixture: an empty segment store."""

from __future__ import annotations

from pathlib import Path

import pytest

from topics.storage.segments.segment_store import SegmentStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "segment" / "03"


@pytest.fixture
def store(folder: Path) -> SegmentStore:
    return SegmentStore.open(folder, 3, [])
