"""A topic is made with a window that outlasts a repeated job, or kept as it is."""

from __future__ import annotations

import pytest

from tests.spark.client.stub_server import StubServer
from topics.spark.client.http import Target, TopicsClient
from topics.spark.errors import JobError
from topics.spark.opening import HOUR_MS, WINDOW_MS, make_topic, open_topic


def target(stub: StubServer) -> Target:
    return Target(url=stub.url, retries=4, backoff_s=0.01, backoff_max_s=0.05)


def test_a_topic_that_is_absent_is_made_and_one_that_exists_keeps_its_config(
    stub: StubServer,
) -> None:
    stub.make("kept", idempotency_window_ms=HOUR_MS, durability="memory")
    with TopicsClient(target(stub)) as client:
        made = open_topic(client, "made", None, pytest.fail)
        kept = open_topic(client, "kept", None, pytest.fail)
    assert made["config"]["idempotency_window_ms"] == WINDOW_MS
    assert kept["config"]["durability"] == "memory"
    assert stub.statuses("PUT") == [201]


def test_a_named_durability_changes_a_topic_that_has_another(stub: StubServer) -> None:
    stub.make("t", idempotency_window_ms=HOUR_MS, durability="memory")
    with TopicsClient(target(stub)) as client:
        for _ in range(2):
            state = open_topic(client, "t", "fsync", pytest.fail)
            assert state["config"]["durability"] == "fsync"
    assert stub.statuses("PUT") == [200], "the second time it is as named"


def test_a_queue_is_no_topic_for_rows(stub: StubServer) -> None:
    stub.make("q", type="queue")
    with TopicsClient(target(stub)) as client, pytest.raises(JobError, match="is a queue"):
        open_topic(client, "q", None, pytest.fail)


def test_a_topic_is_made_with_the_config_that_is_asked_for_and_never_changed(
    stub: StubServer,
) -> None:
    with TopicsClient(target(stub)) as client:
        for durability in ("fsync", "memory"):
            wanted = {"idempotency_window_ms": HOUR_MS, "durability": durability}
            state = make_topic(client, "t", wanted, pytest.fail)
            assert state["config"]["durability"] == "fsync"
    assert stub.statuses("PUT") == [201]


def test_a_short_window_is_warned_of(stub: StubServer) -> None:
    stub.make("t", idempotency_window_ms=HOUR_MS - 1)
    told: list[str] = []
    with TopicsClient(target(stub)) as client:
        make_topic(client, "t", {}, told.append)
    assert len(told) == 1
    assert 'topic "t" remembers idempotency keys for 3600 s only' in told[0]
