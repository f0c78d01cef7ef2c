"""Watchers under kill -9 and cut networks: every record once, every gap told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.campaigns.watchers import campaign
from tests.crash.repeating import repeated_by

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("TEST_WATCH_SECONDS", "10"))
SEED = int(os.environ.get("TEST_SEED", "1"))
WATCHERS = 20


@pytest.mark.timeout(600)
def test_watchers_see_every_record_once_or_are_told_of_the_gap(tmp_path: Path) -> None:
    with repeated_by("watchers", seconds=SECONDS, watchers=WATCHERS, seed=SEED):
        summary = campaign(tmp_path / "data", seed=SEED, seconds=SECONDS, watchers=WATCHERS)
        assert not summary.problems, str(summary)
        assert summary.counts["records"] > 100, str(summary)
        assert summary.counts["resumes"] > 0, str(summary)
