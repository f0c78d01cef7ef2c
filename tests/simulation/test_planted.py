"""The simulation finds what it was made for: faults that are planted, each by one seed."""

from __future__ import annotations

import subprocess
import sys

import pytest

FOUND = [
    ("counts with deleted records", 1, 900, "shard"),
    ("tombstones off by one", 1, 900, "readers"),
    ("seqs given again", 1, 900, "seqs"),
    ("configs that are not logged", 2, 900, "config"),
    ("acks that are not logged", 2, 900, "queues"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "seed", "cut_s", "sentence"), FOUND)
def test_a_planted_fault_is_found(fault: str, seed: int, cut_s: int, sentence: str) -> None:
    options = [
        "--first",
        str(seed),
        "--seeds",
        "8",
        "--plant",
        fault,
        "--cut",
        str(cut_s),
        "--tell",
        "0",
    ]
    command = [sys.executable, "-W", "ignore", "-m", "tests.simulation", *options]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"BROKEN {sentence}" in found.stdout
