"""Tests of `RouterWorker`: the state of one router at its source, and how workers are grouped."""

from __future__ import annotations

from typing import Any

import pytest

from topics.actors.shard.routing.router_worker import RouterSource, RouterWorker, WorkerState
from topics.engine.topic import Topic
from topics.formats.api.diff_body import TagMatch
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.copies import Drops
from topics.formats.wire.calls import RouterRow

ROW = RouterRow(
    id=1,
    name="r",
    source="a",
    source_id=1,
    epoch=5,
    dest="b",
    dest_id=2,
    start_seq=10,
    preserve_node=True,
    preserve_tag=True,
    filter=None,
    exactly_once=False,
    is_cyclic=False,
)


def worker(shard: int = 0, **fields: Any) -> RouterWorker:
    return RouterWorker(ROW._replace(**fields), shard)


@pytest.fixture
def source() -> RouterSource:
    return RouterSource(Topic(1, "a", 5, TopicConfig()))


def test_a_worker_takes_its_filter_drops_and_stamp_from_the_row() -> None:
    plain = worker()
    assert (plain.match, plain.drops, plain.group_key.is_stamped) == (None, 0, False)
    other = worker(filter=["Glob", "x"], preserve_node=False, preserve_tag=False, exactly_once=True)
    assert other.match == TagMatch("Glob", "x")
    assert other.drops == Drops.NODE | Drops.TAG
    assert other.target == (1, "b", 2, 10, "r")


def test_skipped_records_are_logged_before_a_new_filter_applies() -> None:
    router = worker(filter=["Eq", "x"])
    router.set_position(10, 0)
    router.skip_to(15)
    router.configure(ROW, 0)
    assert router.must_log
    router.set_position(15, 0)
    assert not router.must_log


def test_workers_with_the_same_cursor_and_options_form_one_batch(source: RouterSource) -> None:
    alike = [worker(id=number) for number in range(1, 4)]
    others = [worker(id=4, preserve_tag=False), worker(shard=1, id=5)]
    for each in (*alike, *others):
        source.add(each)
    assert source.take_group(2, lambda _: True) == alike[:2]
    assert source.take_group(2, lambda _: True) == alike[2:]
    assert {
        tuple(source.take_group(9, lambda _: True)),
        tuple(source.take_group(9, lambda _: True)),
    } == {
        (others[0],),
        (others[1],),
    }
    assert not source.ready


def test_the_total_of_a_removed_router_is_reported_once() -> None:
    router, reported = worker(), list[int]()
    router.end_removal()
    router.on_removed = reported.append
    router.set_position(12, 2)
    router.end_removal()
    router.end_removal()
    assert (reported, router.state) == ([2], WorkerState.IDLE)


def test_hops_are_kept_until_every_router_has_handled_them(source: RouterSource) -> None:
    first, second = worker(), worker(id=2)
    for each in (first, second):
        source.add(each)
    source.hops.note(11, 20, 3)
    source.take_group(9, lambda _: True)
    first.skip_to(20)
    source.mark_idle(first)
    source.drop_hops()
    assert source.hops.at(11) == (3, 20)
    second.skip_to(20)
    source.mark_idle(second)
    source.drop_hops()
    assert source.hops.at(11)[0] == 0


def test_idle_workers_become_ready_when_records_arrive(source: RouterSource) -> None:
    router = worker()
    source.add(router)
    source.wake_idle_workers()
    source.take_group(1, lambda _: True)
    source.mark_idle(router)
    source.wake_idle_workers()
    assert not source.ready
    source.has_new_records = True
    source.wake_idle_workers()
    assert source.take_group(1, lambda _: True) == [router]


def test_a_removed_worker_is_in_no_collection(source: RouterSource) -> None:
    first, second = worker(), worker(id=2)
    for each in (first, second):
        source.add(each)
    source.remove(first)
    assert source.take_group(9, lambda _: True) == [second]
    source.mark_idle(second)
    source.remove(second)
    assert (source.workers, source.idle, source.ready) == ({}, {}, {})
