"""The judge of queues after a power loss is judged itself: what it must let pass and must see."""

from __future__ import annotations

from typing import Any

import pytest

from tests.campaigns.check_jobs import FoundJobs, JobsModel, badly_moved, jobs_differ
from topics.engine.queue.ledger import JobRow, JobState

UNTIL_MS = 1_000_000
TS = {1: 500, 2: 500}
HELD = JobRow(JobState.HELD, UNTIL_MS, 7, 1, "a")
FREE = JobRow(JobState.FREE, 0, 0, 1, "")
HIDDEN = JobRow(JobState.FREE, UNTIL_MS, 0, 1, "")
CLAIM = {"step": "claim", "node": "a", "jobs": [[1, 7, UNTIL_MS, 1]]}
MOVES = [{"seqs": [1, 2]}]


def nack(delay_ms: int) -> dict[str, Any]:
    sent_ms = UNTIL_MS - delay_ms
    return {"step": "nack", "seqs": [1], "delay_ms": delay_ms, "sent_ms": sent_ms, "took_ms": 5}


def model(*steps: dict[str, Any], firm: bool = True) -> JobsModel:
    made = JobsModel()
    for step in ({"step": "put", "config": {"leases_durable": firm}}, *steps):
        made.apply(step)
    return made


def found(
    *rows: JobRow,
    delays: dict[int, int] | None = None,
    dead: tuple[int, ...] = (),
    dead_lettered: int = 0,
) -> FoundJobs:
    return FoundJobs(dict(enumerate(rows, 1)), delays or {}, frozenset(dead), dead_lettered)


DELAYED = {"step": "append", "first_seq": 1, "records": [{"data": 1, "delay_ms": 100}]}
EXTEND = {"step": "extend", "seqs": [1], "deadlines": [[1, 2 * UNTIL_MS]]}
BURY = {"step": "bury", "seqs": [1]}
WRONG = [
    ("a lease is forgotten", model(CLAIM), found(), "job 1 is None"),
    ("a lease is remembered that must not be", model(CLAIM, firm=False), found(HELD), "was None"),
    ("a lease is made up", model(), found(HELD), "was None"),
    ("another node", model(CLAIM), found(HELD._replace(node="b")), "job 1 is"),
    ("another number", model(CLAIM), found(HELD._replace(number=8)), "job 1 is"),
    ("another count", model(CLAIM), found(HELD._replace(deliveries=2)), "job 1 is"),
    ("another deadline", model(CLAIM, EXTEND), found(HELD), "job 1 is"),
    ("held after a nack", model(CLAIM, nack(0)), found(HELD), "job 1 is"),
    ("a nack's delay is forgotten", model(CLAIM, nack(400_000)), found(FREE), "job 1 is"),
    ("a delay is made up", model(CLAIM, nack(0)), found(HIDDEN), "job 1 is"),
    ("a held job will not be delivered", model(CLAIM), found(FREE, dead=(1,)), "job 1 is"),
    ("a delivery time is forgotten", model(DELAYED), found(), "delays"),
    ("another delivery time", model(DELAYED), found(delays={1: 700}), "delays"),
    ("a delivery time is made up", model(), found(delays={1: 700}), "delays"),
    ("a dead letter is not counted", model(CLAIM, BURY), found(), "0 are counted"),
]


@pytest.mark.parametrize(
    ("made", "there", "said"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_a_broken_promise_is_seen(made: JobsModel, there: FoundJobs, said: str) -> None:
    assert said in (jobs_differ(there, made, TS) or "nothing wrong")


@pytest.mark.parametrize(
    ("live", "dead", "copied", "said"),
    [
        (set(), (), [1, 2], []),
        ({1}, (1,), [1, 2], []),
        ({1, 2}, (), [], []),
        ({2}, (), [], ["job 1 is neither in its queue nor in the dead-letter topic"]),
        (set(), (), [1, 1, 2], ["job 1 stands in the dead-letter topic twice"]),
        ({1}, (), [1, 2], ["job 1 stands in the dead-letter topic and would be delivered"]),
    ],
)
def test_a_moved_job_is_in_one_place(
    live: set[int], dead: tuple[int, ...], copied: list[int], said: list[str]
) -> None:
    assert [*badly_moved(MOVES, live, found(dead=dead), copied)] == said
