"""Shards with routers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.support.shards import Shards


@pytest.fixture
def shards(tmp_path: Path, nursery: trio.Nursery) -> Iterator[Shards]:
    """Three shards: a, d, e live in the first one, c, g, l in the second, b, f, k in the third."""
    found = Shards(tmp_path, nursery)
    yield found
    found.close()
