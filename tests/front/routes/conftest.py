"""What tests of routes share."""

from __future__ import annotations

import pytest
import trio

from tests.support.fake_backend import FakeBackend


@pytest.fixture
def slow() -> FakeBackend:
    """Calls of topic ``slow`` wait; a claim that has waited names its leases by grant 7."""
    return FakeBackend(topics={"slow": []}, gate=trio.Event(), grant=7)
