"""Batch reader without Spark: the planned ranges, and reads of them."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from tests.spark.live import Live
from topics.spark.client.ranges import Range
from topics.spark.source.columns import Columns, schema_of
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import DataLost
from topics.spark.source.reading import BatchReader, RangePartition


def reader_of(live: Live, **given: str) -> BatchReader:
    options = ReadOptions.parse(
        {"servers": f"one={live.url}", "columns": "offset"} | given, "batch"
    )
    return BatchReader(options, Columns(schema_of(options.columns)))


def parts_of(reader: BatchReader) -> list[Range]:
    parts = [part.ranges for part in reader.partitions() if isinstance(part, RangePartition)]
    return [found for part in parts for found in part]


def ranges(reader: BatchReader) -> list[tuple[str, int, int]]:
    return [(found.topic, found.after, found.last) for found in parts_of(reader)]


def offsets(reader: BatchReader, parts: list[Any]) -> list[int]:
    reader = pickle.loads(pickle.dumps(reader))
    return [seq for part in parts for batch in reader.read(part) for seq in batch[0].to_pylist()]


def test_existing_records_are_read_in_several_partitions(live: Live) -> None:
    live.make("batch.parts", 100)
    reader = reader_of(live, subscribe="batch.parts", maxRecordsPerPartition="40")
    parts = reader.partitions()
    assert len(parts) == 3
    assert offsets(reader, parts) == list(range(1, 101))


def test_a_read_does_not_include_records_appended_after_planning(live: Live) -> None:
    live.make("batch.fixed", 10)
    reader = reader_of(live, subscribe="batch.fixed")
    parts = reader.partitions()
    live.append("batch.fixed", range(11, 21))
    assert offsets(reader, parts) == offsets(reader, parts) == list(range(1, 11))


def test_only_an_explicit_start_below_the_earliest_record_is_a_loss(live: Live) -> None:
    live.make("batch.evicted", 10, cap_records=4)
    reader = reader_of(live, subscribe="batch.evicted")
    assert offsets(reader, reader.partitions()) == [7, 8, 9, 10]
    early = reader_of(live, subscribe="batch.evicted", startingOffsets='{"batch.evicted": 5}')
    with pytest.raises(DataLost, match="offsets 5 to 6 are lost"):
        offsets(early, early.partitions())


def test_records_evicted_after_planning_are_a_loss(live: Live) -> None:
    live.make("batch.race", 4, cap_records=4)
    reader = reader_of(live, subscribe="batch.race")
    parts = reader.partitions()
    live.append("batch.race", range(5, 8))
    with pytest.raises(DataLost, match=r'"batch.race" on server one: offsets 1 to 3 are lost'):
        offsets(reader, parts)
    lenient = reader_of(live, subscribe="batch.race", failOnDataLoss="false")
    assert offsets(lenient, parts) == [4]


def test_an_offset_above_the_end_is_a_loss(live: Live) -> None:
    live.make("batch.beyond", 10)
    for option in ("startingOffsets", "endingOffsets"):
        given = {"subscribe": "batch.beyond", option: '{"batch.beyond": 12}'}
        with pytest.raises(DataLost, match=rf"{option} has offset 12 .* which ends at 11"):
            reader_of(live, **given).partitions()
        read = ranges(reader_of(live, **given, failOnDataLoss="false"))
        assert read == ([] if option == "startingOffsets" else [("batch.beyond", 0, 10)])


def test_timestamps_select_offsets(live: Live) -> None:
    live.make("batch.times", 3)
    time.sleep(0.005)
    now = int(time.time() * 1000)
    live.append("batch.times", [4, 5])
    assert ranges(reader_of(live, subscribe="batch.times", startingTimestamp=str(now))) == [
        ("batch.times", 3, 5)
    ]
    assert ranges(reader_of(live, subscribe="batch.times", endingTimestamp=str(now))) == [
        ("batch.times", 0, 3)
    ]
    live.make("batch.times.b", 2)
    both = reader_of(
        live,
        subscribe="batch.times,batch.times.b",
        startingOffsetsByTimestamp=f'{{"batch.times": {{"0": {now}}}}}',
        endingOffsetsByTimestamp=f'{{"batch.times.b": {now}}}',
    )
    assert ranges(both) == [("batch.times", 3, 5)]


def test_a_start_time_above_an_end_offset_reads_no_record_and_warns(
    live: Live, capfd: pytest.CaptureFixture[str]
) -> None:
    live.make("batch.crossed", 3)
    later = str(int(time.time() * 1000) + 60_000)
    given = {"subscribe": "batch.crossed", "endingOffsets": '{"batch.crossed": 2}'}
    assert ranges(reader_of(live, **given, startingTimestamp=later)) == []
    warning = capfd.readouterr().err
    assert "no records are read, because the read starts at offset 4 and ends at 2" in warning
    assert ranges(reader_of(live, **given)) == [("batch.crossed", 0, 1)]
    assert capfd.readouterr().err == ""


def test_a_pattern_reads_all_matching_topics(live: Live) -> None:
    live.make("batch.p.a", 3)
    live.make("batch.p.b", 2)
    reader = reader_of(live, subscribePattern=r"batch\.p\..")
    assert ranges(reader) == [("batch.p.a", 0, 3), ("batch.p.b", 0, 2)]
    assert ranges(reader_of(live, subscribePattern="batch.none.*")) == []


def test_the_same_topic_on_two_servers_is_read_on_both(live: Live, restartable: Live) -> None:
    live.make("batch.two", 3)
    restartable.make("batch.two", 2)
    reader = reader_of(
        live, servers=f"a={live.url},b={restartable.url}", subscribePattern="batch.two"
    )
    assert [(found.server, found.last) for found in parts_of(reader)] == [("a", 3), ("b", 2)]
    assert offsets(reader, reader.partitions()) == [1, 2, 3, 1, 2]
