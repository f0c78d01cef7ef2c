"""Random walks: nothing is lost and nothing is copied twice, whatever happens to the shards."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.actors.shard.routing.routing_walk import walk


@pytest.mark.parametrize("seed", range(2))
async def test_a_short_walk(tmp_path: Path, nursery: trio.Nursery, seed: int) -> None:
    await walk(tmp_path, nursery, seed, 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 108))
async def test_a_long_walk(tmp_path: Path, nursery: trio.Nursery, seed: int) -> None:
    await walk(tmp_path, nursery, seed, 250)
