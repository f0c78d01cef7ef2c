"""What tests of routes share."""

from __future__ import annotations

import pytest
import trio

from tests.support.fake_backend import FakeBackend


@pytest.fixture
def slow() -> FakeBackend:
    """Calls of topic ``slow`` wait; a claim of it gets jobs 1 and 2."""
    return FakeBackend(topics={"slow": []}, gate=trio.Event(), leased=[1, 2])
