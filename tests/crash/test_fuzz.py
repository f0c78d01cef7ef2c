"""Malformed and mutated bytes for a few seconds. The program ``tests.campaigns.fuzz`` runs longer
and measures.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.campaigns.fuzz import fuzz
from tests.campaigns.fuzz_inputs import PLANES, case
from tests.campaigns.hostile import MIB
from tests.support.server import Server

TOLERANCE_MS = 500  # The program measures; here the machine may be busy


@pytest.mark.slow
def test_malformed_bytes_store_nothing_and_do_not_delay_other_clients(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=1) as server:
        findings, probe, memory = fuzz(server, seed=5, seconds=4, rate=120)
    assert findings.problems == []
    assert findings.sent > 100
    for plane in PLANES:
        outcomes = [outcome for outcome in findings.outcomes if outcome.startswith(plane)]
        assert any("broken" in outcome for outcome in outcomes)
        assert any("mutated" in outcome for outcome in outcomes)
    assert all(records for topic, records in findings.steady.items() if "admin" not in topic)
    assert max(memory.growth.values()) < 64 * MIB, str(memory)
    assert probe.percentile(50) < TOLERANCE_MS, str(probe)


def test_a_seed_reproduces_the_bytes_that_a_worker_sends() -> None:
    for worker, plane in enumerate(PLANES):
        first, second = random.Random(3), random.Random(3)
        assert [case(first, plane, worker) for _ in range(50)] == [
            case(second, plane, worker) for _ in range(50)
        ]
