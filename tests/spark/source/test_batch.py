"""Batch read without Spark: what is planned, and that it stays so."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from tests.spark.live import Live
from topics.spark.source.batch import BatchReader
from topics.spark.source.columns import Columns, schema_of
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import DataLost, Range
from topics.spark.source.reading import RangePartition


def reader(live: Live, **given: str) -> BatchReader:
    options = ReadOptions.parse(
        {"servers": f"one={live.url}", "columns": "offset"} | given, "batch"
    )
    return BatchReader(options, Columns(schema_of(options.columns)))


def parts_of(made: BatchReader) -> list[Range]:
    parts = [part.ranges for part in made.partitions() if isinstance(part, RangePartition)]
    return [found for part in parts for found in part]


def ranges(made: BatchReader) -> list[tuple[str, int, int]]:
    return [(found.topic, found.after, found.last) for found in parts_of(made)]


def offsets(made: BatchReader, parts: list[Any]) -> list[int]:
    made = pickle.loads(pickle.dumps(made))
    return [seq for part in parts for batch in made.read(part) for seq in batch[0].to_pylist()]


def test_what_is_there_is_read_in_pieces(live: Live) -> None:
    live.make("batch.pieces", 100)
    made = reader(live, subscribe="batch.pieces", maxRecordsPerPartition="40")
    parts = made.partitions()
    assert len(parts) == 3
    assert offsets(made, parts) == list(range(1, 101))


def test_a_read_is_fixed_when_it_is_planned(live: Live) -> None:
    live.make("batch.fixed", 10)
    made = reader(live, subscribe="batch.fixed")
    parts = made.partitions()
    live.append("batch.fixed", range(11, 21))
    assert offsets(made, parts) == offsets(made, parts) == list(range(1, 11))


def test_the_earliest_record_is_no_loss_and_an_earlier_offset_is(live: Live) -> None:
    live.make("batch.evicted", 10, cap_records=4)
    made = reader(live, subscribe="batch.evicted")
    assert offsets(made, made.partitions()) == [7, 8, 9, 10]
    early = reader(live, subscribe="batch.evicted", startingOffsets='{"batch.evicted": 5}')
    with pytest.raises(DataLost, match="offsets 5 to 6 are lost"):
        offsets(early, early.partitions())


def test_what_is_evicted_after_the_planning_is_a_loss(live: Live) -> None:
    live.make("batch.race", 4, cap_records=4)
    made = reader(live, subscribe="batch.race")
    parts = made.partitions()
    live.append("batch.race", range(5, 8))
    with pytest.raises(DataLost, match=r'"batch.race" on server one: offsets 1 to 3 are lost'):
        offsets(made, parts)
    going_on = reader(live, subscribe="batch.race", failOnDataLoss="false")
    assert offsets(going_on, parts) == [4]


def test_an_offset_beyond_the_end_is_a_loss(live: Live) -> None:
    live.make("batch.beyond", 10)
    for option in ("startingOffsets", "endingOffsets"):
        given = {"subscribe": "batch.beyond", option: '{"batch.beyond": 12}'}
        with pytest.raises(DataLost, match=rf"{option} has offset 12 .* which ends at 11"):
            reader(live, **given).partitions()
        read = ranges(reader(live, **given, failOnDataLoss="false"))
        assert read == ([] if option == "startingOffsets" else [("batch.beyond", 0, 10)])


def test_times_choose_offsets(live: Live) -> None:
    live.make("batch.times", 3)
    time.sleep(0.005)
    now = int(time.time() * 1000)
    live.append("batch.times", [4, 5])
    assert ranges(reader(live, subscribe="batch.times", startingTimestamp=str(now))) == [
        ("batch.times", 3, 5)
    ]
    assert ranges(reader(live, subscribe="batch.times", endingTimestamp=str(now))) == [
        ("batch.times", 0, 3)
    ]
    live.make("batch.times.b", 2)
    both = reader(
        live,
        subscribe="batch.times,batch.times.b",
        startingOffsetsByTimestamp=f'{{"batch.times": {{"0": {now}}}}}',
        endingOffsetsByTimestamp=f'{{"batch.times.b": {now}}}',
    )
    assert ranges(both) == [("batch.times", 3, 5)]


def test_a_start_that_is_above_the_end_of_another_kind_reads_nothing_with_a_warning(
    live: Live, capfd: pytest.CaptureFixture[str]
) -> None:
    live.make("batch.crossed", 3)
    later = str(int(time.time() * 1000) + 60_000)
    given = {"subscribe": "batch.crossed", "endingOffsets": '{"batch.crossed": 2}'}
    assert ranges(reader(live, **given, startingTimestamp=later)) == []
    warning = capfd.readouterr().err
    assert "no records are read, because the read starts at offset 4 and ends at 2" in warning
    assert ranges(reader(live, **given)) == [("batch.crossed", 0, 1)]
    assert capfd.readouterr().err == ""


def test_a_pattern_reads_all_that_match(live: Live) -> None:
    live.make("batch.p.a", 3)
    live.make("batch.p.b", 2)
    made = reader(live, subscribePattern=r"batch\.p\..")
    assert ranges(made) == [("batch.p.a", 0, 3), ("batch.p.b", 0, 2)]
    assert ranges(reader(live, subscribePattern="batch.none.*")) == []


def test_the_same_topic_on_two_servers_is_read_on_both(live: Live, mortal: Live) -> None:
    live.make("batch.two", 3)
    mortal.make("batch.two", 2)
    made = reader(live, servers=f"a={live.url},b={mortal.url}", subscribePattern="batch.two")
    assert [(found.server, found.last) for found in parts_of(made)] == [("a", 3), ("b", 2)]
    assert offsets(made, made.partitions()) == [1, 2, 3, 1, 2]
