"""Fixtures of the engine tests."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import EngineHarness


@pytest.fixture
def harness() -> EngineHarness:
    return EngineHarness()
