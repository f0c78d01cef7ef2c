"""Stream reader without Spark, against real servers. The tests call it like Spark."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from tests.spark.live import Live
from topics.spark.source.columns import Columns, schema_of
from topics.spark.source.connection import ServerError
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import DataLost
from topics.spark.source.reading import RangePartition
from topics.spark.source.stream import StreamReader

ALL = ReadAllAvailable()
Row = tuple[str, str, int]


class Query:
    """Calls a stream reader like Spark: batch after batch, with offsets that pass through JSON."""

    def __init__(self, reader: StreamReader, at: dict[str, Any] | None = None) -> None:
        self.reader = reader
        self.at = self.through_json(reader.initialOffset()) if at is None else at
        self.time = 0.0
        self.pauses: list[float] = []
        reader._clock = lambda: self.time
        reader._sleep = self.pauses.append
        reader._advanced_at = 0.0

    @staticmethod
    def through_json(offset: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(offset))
        return found

    def plan(self, limit: ReadLimit | None = None) -> dict[str, Any]:
        limit = self.reader.getDefaultReadLimit() if limit is None else limit
        return self.through_json(self.reader.latestOffset(self.at, limit))

    def rows(self, end: dict[str, Any]) -> list[Row]:
        """Return server, topic and offset of every record of a batch."""
        found: list[Row] = []
        executor = pickle.loads(pickle.dumps(self.reader))
        names = [server.name for server in self.reader.options.connection.servers.members]
        for part in self.reader.partitions(self.at, end):
            assert isinstance(part, RangePartition)
            for batch in executor.read(part):
                rows = zip(*(column.to_pylist() for column in batch), strict=True)
                found += [
                    (names[server_index], topic, offset) for server_index, topic, offset in rows
                ]
        return found

    def batch(self, limit: ReadLimit | None = None) -> list[Row]:
        """Run one batch and commit it."""
        end = self.plan(limit)
        rows = self.rows(end)
        self.reader.commit(end)
        self.at = end
        return rows

    def seqs(self, limit: ReadLimit | None = None) -> list[int]:
        return [seq for _, _, seq in self.batch(limit)]


@contextmanager
def query(live: Live, at: dict[str, Any] | None = None, /, **given: str) -> Iterator[Query]:
    given = {
        "servers": f"one={live.url}",
        "columns": "partition,topic,offset",
        "startingOffsets": "earliest",
    } | given
    options = ReadOptions.parse(given, "stream")
    reader = StreamReader(options, Columns(schema_of(options.columns)))
    try:
        yield Query(reader, at)
    finally:
        reader.stop()


def test_a_stream_reads_existing_and_then_new_records(live: Live) -> None:
    live.make("stream.plain", 5)
    with query(live, subscribe="stream.plain") as running:
        assert running.seqs() == [1, 2, 3, 4, 5]
        assert running.seqs() == []
        live.append("stream.plain", [6, 7])
        assert running.seqs() == [6, 7]
        assert (running.at["one"]["stream.plain"][0], running.pauses) == (7, [0.05])


@pytest.mark.parametrize(
    ("starting", "read"),
    [("earliest", [1, 2, 3]), ("latest", []), ('{"stream.start":{"0":3}}', [3])],
)
def test_a_stream_begins_at_its_starting_offsets(
    live: Live, starting: str, read: list[int]
) -> None:
    with live.client() as client:
        if client.state("stream.start") is None:
            live.make("stream.start", 3)
    with query(live, subscribe="stream.start", startingOffsets=starting) as running:
        assert running.seqs() == read


def test_a_small_batch_waits_for_more_records_or_the_delay(live: Live) -> None:
    live.make("stream.min", 3)
    given = {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "10s"}
    with query(live, subscribe="stream.min", **given) as running:
        running.time = 9.0
        assert running.plan() == running.at
        live.append("stream.min", [4, 5])
        assert running.seqs() == [1, 2, 3, 4, 5]
        live.append("stream.min", [6])
        running.time = 18.0
        assert running.plan() == running.at
        running.time = 19.0
        assert running.seqs() == [6]


def test_available_now_ends_with_the_heads_at_its_start(live: Live) -> None:
    live.make("stream.now", 10)
    given = {"maxOffsetsPerTrigger": "4", "minOffsetsPerTrigger": "4"}
    with query(live, subscribe="stream.now", **given) as running:
        running.reader.prepareForTriggerAvailableNow()
        live.append("stream.now", [11])
        assert [running.seqs() for _ in range(4)] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10], []]
        assert running.pauses == []


def test_a_query_continues_from_its_checkpoint_and_repeats_a_batch_exactly(live: Live) -> None:
    live.make("stream.again", 5)
    with query(live, subscribe="stream.again") as running:
        running.batch()
        live.append("stream.again", [6, 7])
        start, end = running.at, running.plan()
    live.append("stream.again", [8])
    with query(live, start, subscribe="stream.again") as restarted:
        assert [seq for _, _, seq in restarted.rows(end)] == [6, 7]
        restarted.at = end
        assert restarted.seqs() == [8]


def test_new_topics_of_a_pattern_are_read_from_their_earliest_record(live: Live) -> None:
    live.make("stream.p.a", 1)
    pattern = {"subscribePattern": r"stream\.p\..*", "startingOffsets": "latest"}
    with query(live, **pattern) as running:
        assert running.batch() == []
        live.make("stream.p.b", 6, cap_records=2)
        assert running.batch() == []  # the topic enters the offsets
        assert running.batch() == [("one", "stream.p.b", 5), ("one", "stream.p.b", 6)]
        assert running.at["one"]["stream.p.b"][2] == 0


def test_evicted_records_fail_the_query_or_are_counted(live: Live) -> None:
    live.make("stream.loss", 2, cap_records=4)
    with query(live, subscribe="stream.loss") as running:
        running.batch()
        live.append("stream.loss", range(3, 13))
        message = (
            r'topic "stream.loss" on server one: offsets 3 to 8 are lost, about 6 records: evict'
        )
        with pytest.raises(DataLost, match=message):
            running.plan()
        at = running.at
    with query(live, at, subscribe="stream.loss", failOnDataLoss="false") as lenient:
        limited = lenient.seqs(ReadMaxRows(3))
        assert limited == [9, 10, 11]
        assert lenient.at["one"]["stream.loss"][2] == 6
        assert lenient.seqs() == [12]
        assert lenient.at["one"]["stream.loss"][2] == 6


def test_a_recreated_topic_is_detected(live: Live, capfd: pytest.CaptureFixture[str]) -> None:
    live.make("stream.made", 5)
    with query(live, subscribe="stream.made", failOnDataLoss="false") as running:
        running.batch()
        live.append("stream.made", [6, 7])
        running.plan()  # reports 6 and 7 as known, and is not committed
        live.delete("stream.made")
        assert running.batch() == running.batch() == []
        assert capfd.readouterr().err.count("no longer subscribed") == 1
        live.make("stream.made", 2)
        with (
            query(live, running.at, subscribe="stream.made") as strict,
            pytest.raises(DataLost, match="deleted and created again; offsets from 6 are lost"),
        ):
            strict.plan()
        assert running.batch() == []
        assert running.seqs() == [1, 2]
        assert running.at["one"]["stream.made"][2] == 2
        epoch = running.at["one"]["stream.made"][1]
    with live.client() as client:
        state = client.state("stream.made")
        assert state is not None
        assert state.epoch == epoch


def test_a_deleted_topic_of_a_pattern_is_dropped_from_the_offsets_and_is_new_when_recreated(
    live: Live,
) -> None:
    pattern = {"subscribePattern": r"stream\.short\..*"}
    live.make("stream.short.a", 3)
    with query(live, **pattern) as running:
        assert running.seqs() == [1, 2, 3]
        live.delete("stream.short.a")
        assert running.seqs() == []
        assert running.at == {"one": {}}
        live.make("stream.short.a", 2)
        assert [running.seqs(), running.seqs()] == [[], [1, 2]]
        live.append("stream.short.a", [3])
        assert running.seqs(ReadMaxRows(1)) == [3]
        live.append("stream.short.a", [4, 5])
        assert running.seqs(ReadMaxRows(1)) == [4]
        at = running.at
    live.delete("stream.short.a")
    with (
        query(live, at, **pattern) as restarted,
        pytest.raises(DataLost, match=r"it was deleted.*offsets from 5 are lost"),
    ):
        restarted.plan()


def test_unread_records_of_a_deleted_topic_are_reported_once_and_its_position_is_dropped(
    live: Live, capfd: pytest.CaptureFixture[str]
) -> None:
    live.make("stream.short.b", 3)
    given = {"subscribePattern": r"stream\.short\.b", "failOnDataLoss": "false"}
    with query(live, **given) as running:
        assert running.seqs(ReadMaxRows(2)) == [1, 2]
        live.delete("stream.short.b")
        assert [running.seqs(), running.seqs()] == [[], []]
        assert running.at == {"one": {}}
    assert capfd.readouterr().err.count("offsets from 3 are lost") == 1


def test_a_topic_that_the_key_may_no_longer_read_keeps_its_position(locked: Live) -> None:
    given = {"subscribePattern": r"spark\.locked"}
    with query(locked, **given, apiKey="the-right-key") as running:
        assert running.seqs() == [1, 2, 3]
        at = running.at
    with (
        query(locked, at, **given, apiKey="narrow") as restarted,
        pytest.raises(ServerError, match=r'"spark\.locked": 403 forbidden'),
    ):
        restarted.plan()
    with query(locked, at, **given, apiKey="the-right-key") as running:
        assert running.seqs() == []


def test_the_ends_of_topics_are_reported_in_the_progress(live: Live) -> None:
    live.make("stream.report", 9)
    with query(live, subscribe="stream.report", maxOffsetsPerTrigger="4") as running:
        assert running.reader.reportLatestOffset() is None
        running.batch()
        report = running.reader.reportLatestOffset()
        assert report is not None
        assert report["one"]["stream.report"][0] == 9
        assert running.at["one"]["stream.report"][0] == 4


def test_a_renamed_server_is_detected(live: Live, capfd: pytest.CaptureFixture[str]) -> None:
    live.make("stream.name", 3)
    with query(live, subscribe="stream.name") as running:
        running.batch()
        at = running.at
    renamed = {"subscribe": "stream.name", "servers": f"two={live.url}"}
    with (
        query(live, at, **renamed) as running,
        pytest.raises(DataLost, match='offsets of server "one", and servers names only two;'),
    ):
        running.plan()
    with query(live, at, **renamed, failOnDataLoss="false") as running:
        assert running.batch() == []
        assert running.seqs() == [1, 2, 3]
    assert capfd.readouterr().err.count('offsets of server "one"') == 1


def test_a_stream_reads_from_one_server_while_the_other_is_down(
    live: Live, restartable: Live, capfd: pytest.CaptureFixture[str]
) -> None:
    servers = f"a={live.url},b={restartable.url}"
    for server in (live, restartable):
        server.make("stream.two", 2)
    with query(live, servers=servers, subscribePattern=r"stream\.two") as running:
        assert running.batch() == [
            ("a", "stream.two", 1),
            ("a", "stream.two", 2),
            ("b", "stream.two", 1),
            ("b", "stream.two", 2),
        ]
        restartable.append("stream.two", [3])
        restartable.server.kill()
        live.append("stream.two", [3, 4])
        assert running.batch() == [("a", "stream.two", 3), ("a", "stream.two", 4)]
        assert running.batch() == []
        assert capfd.readouterr().err.count("server b (http") == 1
        restartable.server.start()
        assert running.batch() == [("b", "stream.two", 3)]


def test_a_stream_waits_for_its_only_server(restartable: Live) -> None:
    restartable.make("stream.only", 2)
    with query(restartable, subscribe="stream.only") as running:
        running.batch()
        restartable.append("stream.only", [3])
        restartable.server.kill()
        again = threading.Timer(1.0, restartable.server.start)
        again.start()
        try:
            assert running.seqs() == [3]
        finally:
            again.join()
