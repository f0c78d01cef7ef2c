"""Files into a topic, by the command line and by two engines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.client.stub_server import StubServer
from tests.spark.reading import read_back
from tests.support.server import Server
from topics.spark.jobs import backfill
from topics.spark.jobs.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def line(stub: StubServer, source: Path, *more: str) -> list[str]:
    return ["backfill", str(source), "t", "--url", stub.url, "--quiet", *more]


def ids(stub: StubServer) -> list[Any]:
    return [record["data"]["id"] for record in stub.topics["t"].records]


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes the sources that Spark would have loaded."""
    left: list[str] = []

    class Loaded:
        agrees = True

        def text(self) -> str:
            return "by Spark"

    def load(options: Any, target: Any) -> Loaded:
        left.append(options.source)
        return Loaded()

    monkeypatch.setattr(backfill, "load", load)
    return left


def test_a_source_that_is_absent_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "absent.csv"
    assert main(["backfill", str(source), "t"]) == 2
    assert capsys.readouterr().err == f"error: {source}: no such file or directory\n"


def test_a_small_file_is_loaded_without_spark_in_its_order_and_once(
    stub: StubServer, fifty_rows: Path, no_spark: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for appended in (50, 0):
        assert main(line(stub, fifty_rows, "--batch-records", "7")) == 0
        assert f"{appended} appended, {50 - appended} already there" in capsys.readouterr().out
    assert ids(stub) == [*range(50)]
    assert no_spark == []


def test_progress_is_shown_unless_it_is_to_be_quiet(
    stub: StubServer, fifty_rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*line(stub, fifty_rows)[:-1]]) == 0
    assert "50 of 50 records, 100 %" in capsys.readouterr().err
    assert main(line(stub, fifty_rows)) == 0
    assert capsys.readouterr().err == ""


def test_a_broken_line_refuses_the_job_before_the_topic_is_made(
    stub: StubServer, tmp_path: Path, no_spark: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "rows.json"
    source.write_text('{"id":1}\n{"id":\n')
    assert main(line(stub, source)) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: {source}, line 2: ")
    assert told.endswith("Nothing of this source was appended\n")
    assert told.count("\n") == 1
    assert (stub.topics, no_spark) == ({}, [])


@pytest.mark.parametrize("what", ["packed", "large", "folder", "option", "wanted"])
def test_spark_loads_what_the_plain_engine_does_not(
    stub: StubServer,
    fifty_rows: Path,
    tmp_path: Path,
    no_spark: list[str],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    source, more = fifty_rows, []
    if what == "packed":
        source = tmp_path / "rows.json.gz"
        source.write_bytes(gzip.compress(fifty_rows.read_bytes()))
    elif what == "large":
        monkeypatch.setattr(backfill, "PLAIN_MAX_BYTES", 100)
    elif what == "folder":
        source = tmp_path
    elif what == "option":
        more = ["--option", "multiLine=true"]
    else:
        more = ["--engine", "spark"]
    assert main(line(stub, source, *more)) == 0
    assert no_spark == [str(source)]
    assert stub.topics == {}


def test_the_plain_engine_alone_says_what_it_cannot_do(
    stub: StubServer, fifty_rows: Path, no_spark: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--engine", "python", "--option", "multiLine=true"]
    assert main(line(stub, fifty_rows, *more)) == 1
    told = f"error: {fifty_rows}: the engine python cannot load it: options for Spark's reader\n"
    assert capsys.readouterr().err == told
    assert no_spark == []


def test_a_topic_is_loaded_on_the_server_that_has_it(
    fifty_rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StubServer() as one, StubServer() as two:
        servers = f"one={one.url},two={two.url}"
        for number in range(8):
            topic = f"t{number}"
            assert main(["backfill", str(fifty_rows), topic, "--url", servers, "--quiet"]) == 0
        assert len(one.topics) + len(two.topics) == 8
        assert one.topics
        assert two.topics


@pytest.mark.slow
def test_a_real_server_gets_the_bytes_of_the_file(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    rows = [
        {"id": number, "text": "é" * (number % 7), "kind": f"k{number % 3}"}
        for number in range(900)
    ]
    source.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    with Server(tmp_path / "data", shards=1) as server:
        url = f"http://{server.host}:{server.port}"
        given = ["backfill", str(source), "t", "--url", url, "--quiet", "--tag-column", "kind"]
        for _ in range(2):
            assert main([*given, "--batch-bytes", "4KiB"]) == 0
        records = read_back(url, "t")
    assert [record["data"] for record in records] == rows
    assert [record["$tag"] for record in records] == [row["kind"] for row in rows]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_both_engines_append_the_same_records(
    unstopped: SparkSession, stub: StubServer, tmp_path: Path
) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("id,text\n" + "".join(f"{number},x{number}\n" for number in range(30)))
    given = ["--url", stub.url, "--quiet", "--tag-column", "text", "--batch-records", "10"]
    for engine in ("python", "spark"):
        assert main(["backfill", str(source), engine, *given, "--engine", engine]) == 0
    assert stub.topics["python"].records == stub.topics["spark"].records
    assert len(stub.topics["python"].records) == 30
