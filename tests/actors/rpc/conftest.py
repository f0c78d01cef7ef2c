"""A router, or a pair of them, for every test of this folder."""

from __future__ import annotations

import pytest

from tests.support.wire import Bench, Pair


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def pair() -> Pair:
    return Pair()
