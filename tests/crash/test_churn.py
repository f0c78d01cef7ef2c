"""Deletes, caps, TTL and recreation under kill -9 with small log files: what was acknowledged
holds.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.campaigns.churn import campaign
from tests.crash.repeating import repeated_by

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("TEST_KILLS", "5"))
SEED = int(os.environ.get("TEST_SEED", "1"))


@pytest.mark.timeout(600)
def test_what_was_taken_away_stays_away_and_the_rest_is_there(tmp_path: Path) -> None:
    with repeated_by("churn", kills=KILLS, seed=SEED):
        summary = campaign(tmp_path / "data", seed=SEED, kills=KILLS)
        assert not summary.problems, str(summary)
        assert summary.counts["log files"] > 0
        assert summary.counts["checks"] > KILLS
