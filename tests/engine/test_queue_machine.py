"""Compare queues with a dict of their jobs. The rules (claims, leases, dead letters, moves, caps,
age, deletes, clock steps, sealing, checkpoints, failures and restarts) run in any order.

``QUEUE_MACHINE_EXAMPLES=20000 python -m pytest tests/engine/test_queue_machine.py`` searches
longer.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engine.queue_machine_restarts import Queues
from tests.engine.shard_machine import LONG

EXAMPLES = int(os.environ.get("QUEUE_MACHINE_EXAMPLES", "60"))

TestQueues = pytest.mark.slow(Queues.TestCase)
TestQueues.settings = settings(max_examples=EXAMPLES, stateful_step_count=50)


@pytest.mark.slow
@pytest.mark.timeout(600)  # 10 s of one core
def test_a_queue_equals_its_model_after_every_step_of_a_long_run() -> None:
    run_state_machine_as_test(Queues, settings=settings(LONG, max_examples=60))


def test_an_extension_logs_a_lease_that_was_granted_before_leases_were_durable() -> None:
    queues = Queues()
    queues.begin({"leases_durable": False})
    queues.append("q", [{"data": 1}], False)
    queues.commit_all()
    queues.claim("q", [("n", 1, 300)], False)
    queues.put("q", {"leases_durable": True})
    queues.commit_all()
    queues.extend("q", "n", [0], "none", 300)
    queues.commit_all()
    queues.restart(False, 0, True, False)
    queues.the_engine_equals_the_model()
    assert [job.seq for job in queues.models[queues.names["q"]].held("n")] == [1]
