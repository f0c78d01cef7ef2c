"""Campaigns, each for a little while: kill -9, and cut networks. The programs in
``tests/campaigns`` go on for longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns import backups, churn, kills, routers, watchers, workers
from tests.crash.repeating import repeated_by

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEED = int(os.environ.get("TEST_SEED", "1"))
KILLS = int(os.environ.get("TEST_KILLS", "0"))
SECONDS = float(os.environ.get("TEST_SECONDS", "0"))


@pytest.mark.parametrize(
    ("program", "campaign", "options", "wanted"),
    [
        # Nothing acknowledged is lost or doubled.
        ("kills", kills.campaign, {"kills": KILLS or 12}, {"writes": 120}),
        # What was taken away stays away, and the rest is there.
        ("churn", churn.campaign, {"kills": KILLS or 5}, {"log files": 0, "checks": 5}),
        # Every copy comes over once, in order, and stays.
        (
            "routers",
            routers.campaign,
            {"seconds": SECONDS or 15},
            {"copies": 100, "source_trim told": 0, "cap told": 0, "read again": 0},
        ),
        # A restored backup has what was acknowledged, and nothing twice.
        (
            "backups",
            backups.campaign,
            {"seconds": SECONDS or 3, "kills": KILLS or 2},
            {"backups": 0, "copies": 0, "acked": 0, "dead": 0, "redriven": 0, "blobs": 0},
        ),
        # Every record is seen once, or its gap is told.
        (
            "watchers",
            watchers.campaign,
            {"seconds": SECONDS or 10, "watchers": 20},
            {"records": 100, "resumes": 0},
        ),
        # Every job is done by one worker at a time.
        (
            "workers",
            workers.campaign,
            {"seconds": SECONDS or 10, "crews": 4},
            {"jobs": 50}
            | dict.fromkeys(("deliveries again", "live", "dead-lettered"), 0)
            | dict.fromkeys(("stale: expired", "stale: released"), 0),
        ),
    ],
    ids=["kills", "churn", "routers", "backups", "watchers", "workers"],
)
def test_a_campaign_finds_no_broken_promise(
    tmp_path: Path,
    program: str,
    campaign: Callable[..., Any],
    options: dict[str, Any],
    wanted: dict[str, int],
) -> None:
    with repeated_by(program, seed=SEED, **options):
        summary = campaign(tmp_path / "data", seed=SEED, **options)
        assert not summary.problems, str(summary)
        assert all(summary.counts[what] > least for what, least in wanted.items()), str(summary)
