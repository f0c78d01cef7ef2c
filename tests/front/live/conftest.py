"""Fixtures shared by the tests of live streams."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.live_harness import LiveHarness, live_harness


@pytest.fixture
async def front() -> AsyncIterator[LiveHarness]:
    async with live_harness() as made:
        yield made
