"""Windowed figures of a topic, back into a topic, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.spark.jobs.test_compact import write
from tests.spark.source.live import Live
from topics.errors import ExitCode
from topics.spark.errors import JobError
from topics.spark.jobs.aggregate import AggregateJob, aggregate, name_of
from topics.spark.jobs.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def job(live: Live, directory: Path, source: str, dest: str, **how: Any) -> AggregateJob:
    return AggregateJob(
        source=source,
        dest=dest,
        checkpoint=str(directory / "checkpoint"),
        window="1 hour",
        options={"servers": live.url},
        by=("data.carrier",),
        figures=(("sum", "data.delay"), ("max", "data.delay")),
        time="data.at",
        watermark="1 minute",
        **how,
    )


def flight(at: str | int | None, carrier: str | None, delay: Any) -> dict[str, Any]:
    return {"data": {"at": at, "carrier": carrier, "delay": delay}}


def held(live: Live, topic: str) -> list[tuple[str | None, dict[str, Any]]]:
    with live.client() as client:
        page = client.diff(topic, from_seq=0, limit=1000)
    return [(record.tag, msgspec.json.decode(record.data)) for record in page.records]


@pytest.fixture(autouse=True)
def _few_partitions(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_windows_are_appended_once_when_they_are_over(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("flights")
    write(
        live,
        "flights",
        flight("2013-01-01T10:05:00Z", "UA", 5),
        flight("2013-01-01T11:59:59+01:00", "UA", -1.5),
        flight("2013-01-01T10:30:00Z", None, 2),
        flight(1_357_038_000_000, "AA", 7),  # 11:00
        flight(None, "AA", 1),
        flight("no time", "AA", 1),
        flight("2013-01-01T12:30:00Z", "UA", 1),
    )
    hourly = job(live, tmp_path, "flights", "hourly")
    first = aggregate(spark, hourly)
    assert (first.appended.records, first.agrees) == (3, True), first.text()
    assert (first.left_out.no_time, first.left_out.late) == (2, 0)
    assert "\n2 records have no such time and are in no result" in first.text()
    ten = {"window_start": "2013-01-01T10:00:00Z", "window_end": "2013-01-01T11:00:00Z"}
    expected = {
        '["2013-01-01T10:00:00Z",null]': ten
        | {"carrier": None, "count": 1, "sum_delay": 2.0, "max_delay": 2.0},
        '["2013-01-01T10:00:00Z","UA"]': ten
        | {"carrier": "UA", "count": 2, "sum_delay": 3.5, "max_delay": 5.0},
        '["2013-01-01T11:00:00Z","AA"]': {
            "window_start": "2013-01-01T11:00:00Z",
            "window_end": "2013-01-01T12:00:00Z",
            "carrier": "AA",
            "count": 1,
            "sum_delay": 7.0,
            "max_delay": 7.0,
        },
    }
    found = held(live, "hourly")
    assert dict(found) == expected
    assert len(found) == 3
    # The commit of the last batch is lost: it comes again, and changes nothing.
    commits = tmp_path / "checkpoint" / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)
    again = aggregate(spark, hourly)
    assert (again.appended.records, again.appended.repeated) == (3, 3)
    assert held(live, "hourly") == found
    write(live, "flights", flight("2013-01-01T10:10:00Z", "UA", 5))
    late = aggregate(spark, hourly)
    assert (late.appended.records, late.left_out.late, late.left_out.no_time) == (0, 1, 0)
    assert "\n1 rows or more came later than the watermark" in late.text()


def test_figures_are_exact_and_values_that_are_none_are_told(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("exact")
    values: list[Any] = [0.1, 0.2, 9_007_199_254_740_993, "NaN", {"x": 1}, "1e30", None]
    rows = [flight("2013-01-01T10:05:00Z", "UA", value) for value in values]
    write(live, "exact", *rows, flight("2013-01-01T12:30:00Z", "UA", 1))
    found = aggregate(spark, job(live, tmp_path, "exact", "sums"))
    assert (found.left_out.no_number, found.left_out.no_time) == (3, 0)
    assert "\n3 values are no numbers of 20 digits and are in no figure" in found.text()
    with live.client() as client:
        (record,) = client.diff("sums", from_seq=0, limit=10).records
    assert b'"sum_delay":9007199254740993.3,"max_delay":9007199254740993}' in bytes(record.data)


def test_an_update_tells_a_window_again_and_the_last_record_of_a_tag_counts(
    unstopped: SparkSession, live: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live.make("clicks")
    given = ["aggregate", "--url", live.url, "clicks", "per-hour", str(tmp_path / "c")]
    given += ["--window", "1 hour", "--by", "data.page", "--time", "data.at", "--mode", "update"]
    for number in (1, 2):
        records = [{"data": {"at": 1000 * second, "page": "a"}} for second in range(number, 4)]
        write(live, "clicks", *records)
        assert main(given) == ExitCode.DONE
        assert capsys.readouterr().out.startswith('1 results of topic "clicks" into topic')
    (one, first), (other, last) = held(live, "per-hour")
    assert one == other == '["1970-01-01T00:00:00Z","a"]'
    assert (first["count"], last["count"]) == (3, 5)
    write(live, "clicks", {"data": {"at": 1, "page": "a"}})
    assert main([*given, "--window", "1 day"]) == ExitCode.FAILED
    assert "another job: its window is '1 hour', not '1 day'; give" in capsys.readouterr().err
    assert len(held(live, "per-hour")) == 2


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"by": ("carrier",)}, "'carrier' is no field; name data.MEMBER"),
        ({"by": ("data.",)}, "is no field"),
        ({"by": ("data.a'b",)}, "is no field"),
        ({"by": ("data.a", "data.b.a")}, "two members of the result would be called a"),
        ({"by": ("data.count",)}, "two members of the result would be called count"),
        ({"window": "an hour"}, "the window 'an hour' is no interval"),
        ({"watermark": "0 hours"}, "the watermark '0 hours' is no interval"),
        ({"dest": "source"}, "source and destination are the same topic"),
        ({"time": "when"}, "'when' is no field"),
    ],
)
def test_what_cannot_be_meant_is_told(wrong: dict[str, Any], told: str) -> None:
    good: dict[str, Any] = {"source": "source", "dest": "d", "checkpoint": "c", "window": "1 hour"}
    with pytest.raises(JobError, match=told):
        AggregateJob(**(good | wrong)).sink()


def test_a_field_has_the_name_of_its_last_member() -> None:
    assert [name_of(path) for path in ("data.a", "data.a.b", "key")] == ["a", "b", "key"]
