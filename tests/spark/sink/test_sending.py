"""The requests of a task: chunks and keys are the same in every attempt."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.spark.client.stub_server import Fault, StubServer
from tests.spark.live import Live, located
from tests.support.api import Api
from topics.spark.client.http import TopicsClient
from topics.spark.client.servers import Servers
from topics.spark.job_errors import JobError

pytest.importorskip("pyarrow")

import pyarrow as pa

from topics.spark.sink.columns import Columns
from topics.spark.sink.encoding import string_block
from topics.spark.sink.opening import open_topic, plan
from topics.spark.sink.options import HOUR_MS, SinkOptions
from topics.spark.sink.sending import Sender, by_topic
from topics.spark.source.connection import Clients, Connection, ServerError

BY_COLUMN = Columns(value=0, topic=1)
TO_ONE = Columns(value=0)


def options(stub: StubServer, **more: str) -> SinkOptions:
    return SinkOptions.parse({"servers": stub.url, "numRetries": "2", **more})


def rows(count: int, topics: list[str]) -> Any:
    return pa.record_batch(
        {
            "value": pa.array([str(number) for number in range(count)]),
            "topic": pa.array([topics[number % len(topics)] for number in range(count)]),
        }
    )


def sliced(batch: Any, size: int) -> list[Any]:
    return [batch.slice(first, size) for first in range(0, batch.num_rows, size)]


def values(stub: StubServer, topic: str) -> list[int]:
    return [record["data"] for record in stub.topics[topic].records]


def test_each_topic_has_its_own_order_and_numbering(stub: StubServer) -> None:
    names = ["a", "b", "c"]
    figures = Sender(options(stub, batchRecords="7"), BY_COLUMN, "s", 0).send(
        sliced(rows(100, names), 10)
    )
    for index, name in enumerate(names):
        assert values(stub, name) == list(range(index, 100, 3))
        assert figures.topics[name].records == len(range(index, 100, 3))
        assert figures.topics[name].requests == 10
    assert figures.warnings == []


def test_a_request_has_the_node_and_does_not_create_a_topic(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.make("t", idempotency_window_ms=10**8)
    bodies, append = [], TopicsClient.append

    def recording_append(self: TopicsClient, topic: str, body: bytes, count: int, key: str) -> Any:
        bodies.append(body)
        return append(self, topic, body, count, key)

    monkeypatch.setattr(TopicsClient, "append", recording_append)
    Sender(options(stub, topic="t", node='w"1'), TO_ONE, "s", 0).send([rows(2, ["t"])])
    assert bodies == [b'{"create":false,"node":"w\\"1","records":[{"data":0},{"data":1}]}']


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_an_input_that_ends_between_two_batches_gives_the_same_chunks(
    stub: StubServer, names: list[str]
) -> None:
    batches = sliced(rows(100, names), 10)
    for count in (0, 1, 5, 10):
        Sender(options(stub, batchRecords="7"), BY_COLUMN, "s", 0).send(batches[:count])
    assert sorted(value for name in names for value in values(stub, name)) == list(range(100))


def test_the_next_batch_is_encoded_while_a_request_is_in_flight(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.make("t", idempotency_window_ms=10**8)
    taken, append = threading.Event(), TopicsClient.append

    def wait_for_the_next(*arguments: Any) -> Any:
        assert taken.wait(30), "the next batch was not requested"
        return append(*arguments)

    def batches() -> Iterator[Any]:
        yield rows(10, ["t"])
        taken.set()
        yield rows(10, ["t"])

    monkeypatch.setattr(TopicsClient, "append", wait_for_the_next)
    Sender(options(stub, topic="t"), TO_ONE, "s", 0).send(batches())
    assert values(stub, "t") == [*range(10), *range(10)]


def test_an_interrupt_does_not_wait_for_the_request_in_flight(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_continue = threading.Event(), threading.Event()

    def append(*_: object) -> None:
        begun.set()
        may_continue.wait()

    def batches() -> Iterator[Any]:
        yield rows(1, ["a"])
        begun.wait()
        raise KeyboardInterrupt

    stub.make("a")
    monkeypatch.setattr(TopicsClient, "append", append)
    with pytest.raises(KeyboardInterrupt):
        Sender(options(stub, topic="a"), TO_ONE, "s", 0).send(batches())
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "append")
    may_continue.set()


def test_records_are_sent_to_the_server_of_their_topic() -> None:
    with ExitStack() as stack:
        stubs = {name: stack.enter_context(StubServer()) for name in ("one", "two")}
        listed = ",".join(f"{name}={stub.url}" for name, stub in stubs.items())
        names = [f"t{number}" for number in range(8)]
        parsed = SinkOptions.parse({"servers": listed})
        Sender(parsed, BY_COLUMN, "s", 0).send([rows(80, names)])
        owners = {name: Servers.parse(listed).owner(name).name for name in names}
        assert set(owners.values()) == {"one", "two"}
        for name, stub in stubs.items():
            assert set(stub.topics) == {topic for topic in names if owners[topic] == name}


def test_a_second_attempt_appends_only_the_missing_records(stub: StubServer) -> None:
    stub.make("t", idempotency_window_ms=10**8)
    stub.faults.extend([None, None, Fault(status=500, code="internal")])
    wanted = options(stub, batchRecords="10", topic="t")
    with pytest.raises(ServerError, match="internal"):
        Sender(wanted, TO_ONE, "s", 3).send([rows(50, ["t"])])
    assert len(values(stub, "t")) == 20
    assert stub.statuses("POST") == [200, 200, 500], "nothing is sent after a failure"
    figures = Sender(wanted, TO_ONE, "s", 3).send([rows(50, ["t"])])
    assert values(stub, "t") == list(range(50))
    assert (figures.topics["t"].repeated, figures.topics["t"].requests) == (20, 5)


@pytest.mark.parametrize(("scope", "partition"), [("other", 0), ("s", 1)])
def test_keys_depend_on_the_write_and_the_partition(
    stub: StubServer, scope: str, partition: int
) -> None:
    Sender(options(stub), BY_COLUMN, "s", 0).send([rows(5, ["t"])])
    Sender(options(stub), BY_COLUMN, scope, partition).send([rows(5, ["t"])])
    assert len(values(stub, "t")) == 10


def test_an_invalid_row_is_reported_with_topic_partition_and_value(stub: StubServer) -> None:
    bad = pa.record_batch({"value": pa.array(["1", "{]"]), "topic": pa.array(["a", "b"])})
    with pytest.raises(ValueError) as refusal:
        Sender(options(stub), BY_COLUMN, "s", 7).send([bad])
    assert str(refusal.value).startswith('topic "b", partition 7 of the rows: value is not JSON: ')
    assert "'{]'" in str(refusal.value)
    assert stub.topics == {}


def test_a_topic_is_created_with_the_config_of_the_options(stub: StubServer) -> None:
    wanted = options(stub, durability="fsync", idempotencyWindowMs="5000")
    warnings: list[str] = []
    with Clients(wanted.connection) as clients:
        assert open_topic(clients, wanted, "t", warnings.append) == 0
    assert stub.topics["t"].config == {"idempotency_window_ms": 5000, "durability": "fsync"}
    assert len(warnings) == 1
    assert "for 5 s only" in warnings[0]


def test_absent_topics_queues_of_jobs_and_short_windows_are_reported(
    stub: StubServer,
) -> None:
    stub.make("short", idempotency_window_ms=5000)
    stub.make("queue", type="queue", idempotency_window_ms=HOUR_MS)
    wanted = options(stub, createTopic="false")
    warnings: list[str] = []
    with Clients(wanted.connection) as clients:
        open_topic(clients, wanted, "short", warnings.append)
        with pytest.raises(JobError, match='topic "absent": there is no such topic'):
            open_topic(clients, wanted, "absent", warnings.append)
        assert open_topic(clients, wanted, "queue", warnings.append) == 0
        with pytest.raises(JobError, match="is a queue"):
            open_topic(clients, wanted, "queue", warnings.append, is_job=True)
    assert len(warnings) == 1
    assert "absent" not in stub.topics


def test_a_topic_that_is_deleted_during_a_task_is_not_created_again(stub: StubServer) -> None:
    def two_blocks() -> Iterator[Any]:
        yield rows(10, ["t"])
        del stub.topics["t"]
        yield rows(10, ["t"])

    with pytest.raises(ServerError, match="topic_not_found"):
        Sender(options(stub, batchRecords="10"), BY_COLUMN, "s", 0).send(two_blocks())
    assert "t" not in stub.topics


def test_an_api_key_that_may_only_append_can_write_to_an_existing_topic(locked: Live) -> None:
    given = {"servers": locked.url, "apiKey": "writer"}
    by_option = SinkOptions.parse({**given, "topic": "spark.locked"})
    heads, places = plan(by_option, pytest.fail)
    assert (heads, [*places]) == ({}, ["spark.locked"])
    by_column = SinkOptions.parse(given)
    assert plan(by_column, pytest.fail) == ({}, {})
    sent = []
    for options, columns, batch in (
        (by_option, TO_ONE, pa.record_batch({"value": pa.array(["4"])})),
        (by_option, TO_ONE, pa.record_batch({"value": pa.array(["4"])})),  # repeated
        (by_column, BY_COLUMN, rows(1, ["spark.locked"])),
    ):
        figures = Sender(options, columns, "s", 0, places).send([batch])
        sent.append(figures.topics["spark.locked"])
    assert [(each.records, each.repeated) for each in sent] == [(1, 0), (1, 1), (1, 0)]
    with pytest.raises(ServerError, match="topic_not_found"):
        Sender(by_column, BY_COLUMN, "s", 0).send([rows(1, ["spark.absent"])])
    with pytest.raises(ServerError, match="forbidden"):
        plan(by_option, pytest.fail, is_job=True)
    with pytest.raises(ServerError, match="forbidden"):
        plan(SinkOptions.parse({**given, "topic": "spark.locked", "apiKey": "narrow"}), pytest.fail)
    other = locked.url.replace("127.0.0.1", "localhost")
    several = Connection.parse({"servers": f"a={locked.url},b={other}", "apiKey": "writer"})
    assert located(several, "spark.locked") == several.servers.owner("spark.locked")


def test_jobs_of_a_queue_may_be_delayed(live: Live) -> None:
    live.make("spark.jobs", type="queue", idempotency_window_ms=HOUR_MS)
    live.make("spark.log")
    columns = Columns(value=0, delay_ms=1, deliver_at=2)
    batch = pa.record_batch(
        {
            "value": pa.array(["1", "2", "3"]),
            "delay_ms": pa.array([None, 3_600_000, None], pa.int64()),
            "deliver_at": pa.array([None, None, 1_700_000_000_000_000], pa.timestamp("us", "UTC")),
        }
    )
    given = {"servers": live.url, "topic": "spark.jobs"}
    Sender(SinkOptions.parse(given), columns, "s", 0).send([batch])
    with Api(live.server.address) as api:
        claim = api.call("POST", "/v0/topics/spark.jobs/claim", {"node": "w", "max": 9})
    assert sorted(job["data"] for job in claim.json()["claimed"]) == [1, 3]
    with pytest.raises(ServerError, match="400"):
        Sender(SinkOptions.parse(given | {"topic": "spark.log"}), columns, "s", 0).send([batch])


def test_records_are_split_by_topic_in_their_order() -> None:
    topics = pa.array(["b", "a", "b", "c", "a"])
    records = pa.array(list("12345"))
    split = [(name, share.to_pylist()) for name, share in by_topic(topics, records)]
    assert split == [("b", ["1", "3"]), ("a", ["2", "5"]), ("c", ["4"])]


def test_an_arrow_string_column_and_its_slice_are_not_copied() -> None:
    offsets, data = string_block(pa.array(["aa", "", "é", "b"], pa.large_string()).slice(1, 3))
    texts = [bytes(data[offsets[i] : offsets[i + 1]]).decode() for i in range(len(offsets) - 1)]
    assert texts == ["", "é", "b"]
    assert len(string_block(pa.array([], pa.large_string()))[0]) == 1
