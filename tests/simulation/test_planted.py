"""The simulation finds planted faults, each with one seed."""

from __future__ import annotations

import subprocess
import sys

import pytest

FOUND = [
    ("moves without their source", 54, 3600, "queues"),
    ("removals before a refusal", 20, 3600, "a refused start"),
    ("counts with deleted records", 1, 1200, "counters"),
    ("acks that are not logged", 1, 1200, "queues"),
    ("cursors that are not replayed", 13, 1800, "once"),
    ("lost delays", 2, 1200, "queues"),
    ("writes by path", 2, 1200, "a server has changed"),
    ("counts that a stop loses", 14, 3600, "queues"),
    ("redrives that end before their copies", 16, 900, "redrives"),
    ("backups during redrives", 160, 900, "backups"),
]


SEEDS = 6  # the first seed finds the fault, until a change of the server requires another one


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "seed", "cut_s", "sentence"), FOUND)
def test_the_simulation_finds_a_planted_fault(
    fault: str, seed: int, cut_s: int, sentence: str
) -> None:
    options = [
        "--first",
        str(seed),
        "--seeds",
        str(SEEDS),
        "--plant",
        fault,
        "--cut",
        str(cut_s),
        "--reduce",
        "0",
    ]
    command = [sys.executable, "-W", "ignore", "-m", "tests.simulation", *options]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"BROKEN {sentence}" in found.stdout
