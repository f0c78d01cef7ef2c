"""Fixtures of the link tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.actors.link.link_support import Pair


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    pair.connect()
    yield pair
    pair.close()
