"""The shows on real data end well: deploy/story and deploy/three-servers, on fewer rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]


def shown(module: str, rows: int) -> str:
    """What the show prints; its exit code is 0."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
    done = subprocess.run(
        [sys.executable, "-m", module, "--rows", str(rows)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_counts_and_sums_of_the_flights_are_the_same_in_files_topics_and_archive() -> None:
    text = shown("workers.flights_story", 5000)
    assert "DIFFERS" not in text
    assert "rows of flights                            5,000         5,000" in text
    assert "Everything agrees" in text


def test_totals_over_three_servers_are_those_of_the_source_though_one_dies() -> None:
    text = shown("workers.three_servers", 12_000)
    assert "killed (SIGKILL)" in text
    assert "is back, with what it had" in text
    assert text.endswith("equal to the source\n")
