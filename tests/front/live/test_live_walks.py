"""A few short walks through what may happen to streams; `tests.campaigns.live_walk` has more."""

from __future__ import annotations

import pytest

from tests.campaigns.live_walk import walk


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
async def test_every_client_is_shown_every_record_once_or_told_of_its_loss(seed: int) -> None:
    await walk(seed)
