"""What tests of live streams share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.live_desk import Desk, desk


@pytest.fixture
async def front() -> AsyncIterator[Desk]:
    async with desk() as made:
        yield made
