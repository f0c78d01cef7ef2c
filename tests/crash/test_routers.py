"""Routers under kill -9: nothing is skipped, doubled, moved or changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.campaigns.routers import campaign
from tests.crash.repeating import repeated_by

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("TEST_ROUTER_SECONDS", "15"))
SEED = int(os.environ.get("TEST_SEED", "1"))


@pytest.mark.timeout(600)
def test_every_copy_comes_over_once_in_order_and_stays(tmp_path: Path) -> None:
    with repeated_by("routers", seconds=SECONDS, seed=SEED):
        summary = campaign(tmp_path / "data", seed=SEED, seconds=SECONDS)
        assert not summary.problems, str(summary)
        assert summary.counts["copies"] > 100, str(summary)
        for what in ("source_trim told", "cap told", "read again"):
            assert summary.counts[what], str(summary)
