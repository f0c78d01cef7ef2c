"""Reading: ranges of a real topic as Arrow batches. Losses are errors or warnings."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from tests.spark.live import Live
from topics.spark.client.http import TopicsClient
from topics.spark.client.ranges import Range
from topics.spark.source import reading
from topics.spark.source.columns import Columns, schema_of
from topics.spark.source.connection import Connection
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import DataLost
from topics.spark.source.reading import RangePartition, read_partition


def options(live: Live, topic: str, **given: str) -> ReadOptions:
    return ReadOptions.parse({"servers": f"one={live.url}", "topic": topic, **given}, "batch")


def epoch(live: Live, topic: str) -> int:
    with live.client() as client:
        state = client.state(topic)
    assert state is not None
    return state.epoch


def read(read_options: ReadOptions, *ranges: Range) -> pa.Table:
    columns = Columns(schema_of(read_options.columns))
    partition, given, found = pickle.loads(
        pickle.dumps((RangePartition(ranges), read_options, columns))
    )
    batches = list(read_partition(partition, given, found))
    return pa.Table.from_batches(batches) if batches else None


def test_the_ranges_of_a_task_are_read_in_order_over_one_connection_into_few_batches(
    live: Live, monkeypatch: pytest.MonkeyPatch, requests: Counter[TopicsClient]
) -> None:
    clients: list[TopicsClient] = []

    def client(connection: Connection, *budget: Any) -> TopicsClient:
        clients.append(make(connection, *budget))
        return clients[-1]

    make = Connection.client
    monkeypatch.setattr(Connection, "client", client)
    topics = [live.make(f"reading.many.{number}", 4) for number in range(5)]
    given = options(live, topics[0], columns="topic,offset")
    ranges = tuple(Range("one", topic, 1, 4, epoch(live, topic)) for topic in topics)
    columns = Columns(schema_of(given.columns))
    planned = [(topic, seq) for topic in topics for seq in (2, 3, 4)]
    for records, size, counts in ((7, 10**6, [9, 6]), (10**6, 1, [3] * 5), (10**6, 10**6, [15])):
        monkeypatch.setattr(reading, "BATCH_RECORDS", records)
        monkeypatch.setattr(reading, "BATCH_BYTES", size)
        batches = list(read_partition(RangePartition(ranges), given, columns))
        assert [batch.num_rows for batch in batches] == counts
        rows = [row.values() for batch in batches for row in batch.to_pylist()]
        assert [tuple(row) for row in rows] == planned
    assert [(each.connections, requests[each]) for each in clients] == [(1, 5)] * 3


def test_records_of_the_excluded_node_are_not_read(live: Live) -> None:
    live.make("reading.node", 2)
    live.append("reading.node", [3], node="mine")
    live.append("reading.node", [4], node="other")
    given = options(live, "reading.node", node="mine", columns="offset")
    table = read(given, Range("one", "reading.node", 0, 4, epoch(live, "reading.node")))
    assert table["offset"].to_pylist() == [1, 2, 4]


def test_a_partition_without_ranges_contains_no_records(live: Live) -> None:
    given = options(live, "reading.absent")
    assert (
        list(read_partition(InputPartition(None), given, Columns(schema_of(given.columns)))) == []
    )


def test_a_loss_fails_the_task_with_one_complete_line(live: Live) -> None:
    live.make("reading.loss", 10, cap_records=4)
    planned = Range("one", "reading.loss", 2, 8, epoch(live, "reading.loss"))
    with pytest.raises(DataLost) as caught:
        read(options(live, "reading.loss"), planned)
    assert str(caught.value) == (
        'topic "reading.loss" on server one: offsets 3 to 6 are lost, about 4 records: evicted, to'
        " keep the topic within its caps (set failOnDataLoss=false to continue without them)"
    )


def test_a_loss_is_a_warning_if_the_query_continues(
    live: Live, capfd: pytest.CaptureFixture[str]
) -> None:
    live.make("reading.warn", 10, cap_records=4)
    planned = Range("one", "reading.warn", 2, 8, epoch(live, "reading.warn"))
    table = read(options(live, "reading.warn", failOnDataLoss="false", columns="offset"), planned)
    assert table["offset"].to_pylist() == [7, 8]
    warning = capfd.readouterr().err
    assert warning.startswith('topics: warning: topic "reading.warn" on server one: offsets 3 to 6')
    assert warning.count("\n") == 1


@pytest.mark.parametrize("lenient", [False, True])
def test_records_of_a_recreated_topic_are_not_read(live: Live, lenient: bool) -> None:
    topic = live.make("reading.again", 5)
    planned = Range("one", topic, 0, 5, epoch(live, topic))
    live.delete(topic)
    live.make(topic, 5)
    if lenient:
        assert read(options(live, topic, failOnDataLoss="false"), planned) is None
    else:
        with pytest.raises(DataLost, match="deleted and created again"):
            read(options(live, topic), planned)
    live.delete(topic)


@pytest.mark.parametrize("lenient", [False, True])
def test_a_topic_that_is_deleted_after_planning_is_lost(live: Live, lenient: bool) -> None:
    topic = live.make("reading.deleted", 5)
    planned = Range("one", topic, 0, 5, epoch(live, topic))
    live.delete(topic)
    if lenient:
        assert read(options(live, topic, failOnDataLoss="false"), planned) is None
    else:
        with pytest.raises(DataLost, match=r"was deleted.*offsets from 1 are lost.*failOnDataLoss"):
            read(options(live, topic), planned)
