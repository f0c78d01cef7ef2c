"""Fixtures of the engine tests."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()
