"""Workers of queues under kill -9: no job is lost, held twice or finished by a stale lease."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.campaigns.workers import campaign
from tests.crash.repeating import repeated_by

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("TEST_WORK_SECONDS", "10"))
SEED = int(os.environ.get("TEST_SEED", "1"))
CREWS = 4


@pytest.mark.timeout(600)
def test_every_job_is_done_by_one_worker_at_a_time(tmp_path: Path) -> None:
    with repeated_by("workers", seconds=SECONDS, crews=CREWS, seed=SEED):
        summary = campaign(tmp_path / "data", seed=SEED, seconds=SECONDS, crews=CREWS)
        assert not summary.problems, str(summary)
        assert summary.counts["jobs"] > 50, str(summary)
        for what in (
            *("deliveries again", "live", "stale: expired", "stale: released", "dead-lettered"),
        ):
            assert summary.counts[what], str(summary)
