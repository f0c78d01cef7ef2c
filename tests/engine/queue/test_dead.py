"""Dead jobs: which are moved next, within a bound of bytes, and what cannot be read."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk
from topics.engine.locators import Locator
from topics.engine.queue.claims import UNREADABLE_MS, Ask, jobs_of
from topics.engine.store import Unreadable
from topics.engine.topic import Topic
from topics.formats.disk.records import RecordsView

PLENTY = 1 << 20


def exhausted(desk: Desk, *datas: str) -> Topic:
    """A queue of jobs that were delivered once too often, each a write of its own."""
    desk.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
    for data in datas:
        desk.append("q", data)
    desk.commit()
    topic = desk.engine.topic("q")
    holder = desk.engine.poller(topic, "worker")
    (claim,) = desk.engine.claim(topic, [Ask(holder, 99, 1000)], desk.now, evenly=False)
    desk.engine.nack(topic, "worker", claim.seqs, None, 0, desk.now)
    (claim,) = desk.engine.claim(topic, [Ask(holder, 99, 1000)], desk.now, evenly=False)
    assert not claim.seqs
    return topic


@pytest.mark.parametrize(
    ("max_jobs", "max_bytes", "seqs"), [(2, PLENTY, [1, 2]), (9, 1, [1]), (9, 150, [1, 2])]
)
def test_no_more_are_taken_than_the_bounds_allow_but_one_in_any_case(
    desk: Desk, max_jobs: int, max_bytes: int, seqs: list[int]
) -> None:
    topic = exhausted(desk, "x" * 80, "y" * 80, "z" * 80)
    found = desk.engine.dead(topic, max_jobs, max_bytes, desk.now)
    assert [seq for seq, _ in found] == seqs
    assert list(jobs_of(topic).dead) == [1, 2, 3], "nothing is taken yet"


def test_a_job_whose_record_cannot_be_read_is_hidden_and_stops_no_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = exhausted(desk, "x", "y")
    damaged, real = topic.index.entry(0)[2], desk.records

    def records(locator: Locator) -> RecordsView:
        if locator == damaged:
            raise Unreadable
        return real(locator)

    monkeypatch.setattr(desk, "records", records)
    assert [seq for seq, _ in desk.engine.dead(topic, 9, PLENTY, desk.now)] == [2]
    jobs = jobs_of(topic)
    assert (list(jobs.dead), jobs.counters(topic.count).ready) == ([2], 0)
    desk.later(UNREADABLE_MS)
    jobs.advance(desk.now.ms)
    assert jobs.counters(topic.count).ready == 1, "tried again by a later pass"


def test_the_rest_of_a_batch_that_is_dying_comes_first(desk: Desk) -> None:
    topic = exhausted(desk, "x", "y", "z")
    desk.engine.dying(topic, 2, desk.now)
    desk.engine.keep_dead(topic, [1])
    assert [seq for seq, _ in desk.engine.dead(topic, 9, PLENTY, desk.now)] == [2]
    desk.engine.keep_dead(topic, [2])
    assert [seq for seq, _ in desk.engine.dead(topic, 9, PLENTY, desk.now)] == [3, 1, 2]
