"""Fixtures shared by the tests of live streams."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.live_desk import Desk, desk


@pytest.fixture
async def front() -> AsyncIterator[Desk]:
    async with desk() as made:
        yield made
