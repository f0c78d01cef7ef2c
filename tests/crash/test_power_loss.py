"""A power loss at any moment leaves what each class promises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.mounts import needs_lossy
from tests.crash.power_loss import judge, record

pytestmark = [pytest.mark.slow, needs_lossy, pytest.mark.timeout(300)]

SEED = int(os.environ.get("TEST_SEED", "1"))
POINTS = int(os.environ.get("TEST_POINTS", "3"))


def test_a_power_loss_takes_nothing_that_was_promised(tmp_path: Path) -> None:
    happened = record(tmp_path, seed=SEED, steps=120)
    assert happened["segment made"] > 2, happened
    assert happened["checkpoint made"] > 2, happened
    verdict = judge(tmp_path, points=POINTS, policies="drop,prefix,subset,torn,zeros", models="ext4,strict")
    assert not verdict.violations, f"repeat with: python -m tests.crash.power_loss --steps 120 --seed {SEED}\n{verdict}"
    assert verdict.states >= POINTS
