"""Fixtures shared by the tests of the data plane's routes."""

from __future__ import annotations

import pytest
import trio

from tests.support.fake_shards import FakeShards


@pytest.fixture
def slow() -> FakeShards:
    """Shards in which calls of topic ``slow`` wait. A claim of it gets jobs 1 and 2."""
    return FakeShards(topics={"slow": []}, gate=trio.Event(), leased=[1, 2])
