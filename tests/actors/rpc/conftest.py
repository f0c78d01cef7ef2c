"""Fixtures: a router, or a pair of routers."""

from __future__ import annotations

import pytest

from tests.support.wire import Bench, Pair


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def pair() -> Pair:
    return Pair()
