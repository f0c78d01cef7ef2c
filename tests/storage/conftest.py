"""Fixture: a data directory with each kind of file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.segments.segments_support import add
from tests.support.data_directory import MIXED
from tests.support.log import Client
from topics.storage.data_dir import DataDirectory
from topics.storage.segments.segment_store import SegmentStore


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data directory with each kind of file and several log files."""
    path = tmp_path / "data"
    DataDirectory(path, shards=1).close()
    client = Client(path)
    client.put("a", durability="fsync")
    for _ in range(60):
        client.append("a", "x" * 2000)
    client.stop()
    add(SegmentStore.open(path / "segment" / "00", 0, []), 1, MIXED)
    return path
