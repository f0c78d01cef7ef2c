"""A power loss at any moment leaves what each class promises."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.campaigns.mounts import needs_lossy
from tests.campaigns.power_load import Mix
from tests.campaigns.power_loss import judge, record

pytestmark = [pytest.mark.slow, needs_lossy, pytest.mark.timeout(300)]

SEED = int(os.environ.get("TEST_SEED", "1"))
POINTS = int(os.environ.get("TEST_POINTS", "3"))


def test_a_power_loss_takes_nothing_that_was_promised(tmp_path: Path) -> None:
    happened = record(tmp_path, seed=SEED, steps=180)
    assert happened["segment made"] > 2, happened
    assert happened["checkpoint made"] > 2, happened
    verdict = judge(
        tmp_path, points=POINTS, policies="drop,prefix,subset,torn,zeros", models="ext4,strict"
    )
    assert not verdict.violations, (
        f"repeat with: python -m tests.campaigns.power_loss --steps 180 --seed {SEED}\n{verdict}"
    )
    assert verdict.states >= POINTS


def test_a_delete_that_is_lost_has_deleted_nothing(tmp_path: Path) -> None:
    """What is deleted is seldom synced here, and a segment's pages may go to the disk before the
    log's.
    """
    mix = Mix(("disk",), delete_share=0.3, sync_ms=2000)
    happened = record(tmp_path, seed=SEED, steps=360, mix=mix)
    assert happened["segment marked"], happened
    verdict = judge(
        tmp_path, points=4 * POINTS, policies="drop,prefix,subset", models="ext4,strict"
    )
    again = (
        f"python -m tests.campaigns.power_loss --steps 360 --seed {SEED} {' '.join(mix.options)}"
    )
    assert not verdict.violations, f"repeat with: {again}\n{verdict}"
    assert verdict.states >= POINTS


def test_copies_of_routers_are_what_was_read(tmp_path: Path) -> None:
    mix = Mix(queue_share=0.0, router_share=0.7)
    happened = record(tmp_path, seed=SEED, steps=180, mix=mix)
    assert happened["copies of routers"] > 5, happened
    verdict = judge(
        tmp_path, points=POINTS, policies="drop,prefix,subset,torn,zeros", models="ext4,strict"
    )
    again = (
        f"python -m tests.campaigns.power_loss --steps 180 --seed {SEED} {' '.join(mix.options)}"
    )
    assert not verdict.violations, f"repeat with: {again}\n{verdict}"
    assert verdict.states >= POINTS
