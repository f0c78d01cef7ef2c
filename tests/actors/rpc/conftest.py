"""Fixtures: a router, or a pair of routers."""

from __future__ import annotations

import pytest

from tests.support.wire import Pair, RouterHarness


@pytest.fixture
def harness() -> RouterHarness:
    return RouterHarness()


@pytest.fixture
def pair() -> Pair:
    return Pair()
