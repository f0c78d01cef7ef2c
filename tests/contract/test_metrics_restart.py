"""Metrics while processes crash, stall and restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import SLACK_S, Api, ok
from tests.support.metrics import Page, SampleKey, scrape
from tests.support.queues import Queue, names_on, until
from tests.support.server import Server

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2) as server:
        yield server


def grown(before: Page, after: Page) -> None:
    """Check that no counter decreased or disappeared."""
    lost: dict[SampleKey, float] = {
        key: value for key, value in before.counters.items() if after.counters.get(key, -1) < value
    }
    assert lost == {}


def counted(api: Api, syncs: float) -> Page:
    """Wait for a page that counts more syncs than an earlier one."""
    return until(lambda: scrape(api), lambda page: page.value("topics_wal_fsyncs_total") > syncs)


@pytest.mark.parametrize("role", ["front 0", "shard 1"])
def test_counters_continue_after_a_crash_and_the_restart_is_counted(
    server: Server, role: str
) -> None:
    with Api(server.address) as api:
        for name in names_on("a"):
            ok(api.append(name, 1, config={"durability": "fsync"}), 201)
        before = counted(api, 2)
        assert before.value("topics_process_restarts_total", process=role) == 0
        server.replace(role)
        for name in names_on("a"):
            ok(api.append(name, 2))
        after = counted(api, before.value("topics_wal_fsyncs_total"))
        grown(before, after)
        assert after.value("topics_process_restarts_total", process=role) == 1
        assert after.value("topics_topic_metrics_truncated") == 0
        assert after.labels("topics_topic_head_seq", "topic") == {*names_on("a")}


def test_a_stopped_shard_delays_the_page_by_a_second_and_only_its_rows_are_missing(
    server: Server,
) -> None:
    with Api(server.address) as api:
        for name in names_on("a"):
            ok(api.append(name, 1), 201)
        with server.stopped("shard 1"):
            began = time.monotonic()
            page = scrape(api)
            assert time.monotonic() - began < SLACK_S
            assert page.value("topics_topic_metrics_truncated") == 1
            assert len(page.labels("topics_topic_head_seq", "topic")) == 1
            unready = until(lambda: scrape(api), lambda page: page.value("topics_ready") == 0)
            assert unready.value("topics_shard_state", shard="0") == 3
        server.wait_ready()
        page = until(
            lambda: scrape(api), lambda page: not page.value("topics_topic_metrics_truncated")
        )
        assert page.labels("topics_topic_head_seq", "topic") == {*names_on("a")}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_count_of_dead_letters_survives_restarts(server: Server, end: str) -> None:
    def counted() -> float:
        return scrape(queue.api).value("topics_queue_dead_lettered_total", topic="jobs")

    with Api(server.address) as api:
        queue = Queue.create(api, "jobs", 1, 2, max_deliveries=1, dead_letter="dead")
        assert counted() == 0
        queue.spend(2, 1)
        queue.bury(2)
        assert counted() == 2
    with server.again(end) as api:
        queue = Queue(api, "jobs")
        assert counted() == 2
