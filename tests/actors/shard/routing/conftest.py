"""Shards with routers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.support.routing import RoutedShards
from tests.support.shards import Shards


@pytest.fixture
async def shards(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Shards]:
    """Three shards: a, d, e are on the first one, c, g, l on the second, b, f, k on the third."""
    found = Shards(tmp_path, nursery)
    yield found
    await found.close()


@pytest.fixture
async def routed(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[RoutedShards]:
    """The same shards, with routers that forward records."""
    found = RoutedShards(tmp_path, nursery)
    yield found
    await found.close()
