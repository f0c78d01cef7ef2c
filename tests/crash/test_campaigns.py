"""Short runs of the campaigns: kill -9, backups, watchers and reconnects. The programs in
``tests/campaigns`` run longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns import backups, kills, storm, watchers
from tests.crash.repeating import print_repeat_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEED = int(os.environ.get("TEST_SEED", "5"))
KILLS = int(os.environ.get("TEST_KILLS", "0"))
SECONDS = float(os.environ.get("TEST_SECONDS", "0"))


@pytest.mark.parametrize(
    ("program", "campaign", "options", "wanted"),
    [
        # No client observes a violation of the contract.
        (
            "kills",
            kills.campaign,
            {"seconds": SECONDS or 6, "kills": KILLS or 4},
            {"appends": 20, "records read": 20, "jobs": 20} | dict.fromkeys(("acks", "routers"), 0),
        ),
        # A restored backup contains every acknowledged record exactly once.
        (
            "backups",
            backups.campaign,
            {"seconds": SECONDS or 3, "kills": KILLS or 2},
            {"backups": 0, "copies": 0, "acked": 0, "dead": 0, "redriven": 0, "blobs": 0},
        ),
        # Every record is delivered once, or its gap is reported.
        (
            "watchers",
            watchers.campaign,
            {"seconds": SECONDS or 10, "watchers": 20},
            {"records": 100, "resumes": 0},
        ),
        # The same holds when all clients reconnect at the same time.
        (
            "storm",
            storm.campaign,
            {"seconds": SECONDS or 0.5, "clients": 80, "restarts": 2, "late_s": 60.0},
            {"received records": 80},
        ),
    ],
    ids=["kills", "backups", "watchers", "storm"],
)
def test_a_campaign_finds_no_broken_promise(
    tmp_path: Path,
    program: str,
    campaign: Callable[..., Any],
    options: dict[str, Any],
    wanted: dict[str, int],
) -> None:
    with print_repeat_command(program, seed=SEED, **options):
        summary = campaign(tmp_path / "data", seed=SEED, **options)
        assert not summary.problems, str(summary)
        assert all(summary.counts[what] > least for what, least in wanted.items()), str(summary)
