"""Queues against a dict of their jobs: claims, leases, dead letters and moves, among caps, age,
deletes, clocks, sealing, checkpoints, failures and restarts in any order.

``QUEUE_MACHINE_EXAMPLES=20000 python -m pytest tests/engine/test_queue_machine.py`` looks longer,
`queue_walk` goes further.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.engine.queue_machine_restarts import Queues
from tests.engine.queue_walk import QueueWalk

EXAMPLES = int(os.environ.get("QUEUE_MACHINE_EXAMPLES", "60"))

TestQueues = pytest.mark.slow(Queues.TestCase)
TestQueues.settings = settings(max_examples=EXAMPLES, stateful_step_count=50)


@pytest.mark.parametrize("seed", range(10))
def test_a_queue_that_is_used_at_random_is_what_its_model_says(seed: int) -> None:
    QueueWalk.walk(seed)
