"""The command line appends files to a topic."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.client.stub_server import Fault, StubServer
from topics.spark.jobs import backfill
from topics.spark.jobs.backfill import format_of
from topics.spark.jobs.cli import main, parser

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Load = Callable[..., list[Any]]


def ids(stub: StubServer, topic: str = "t") -> list[int]:
    return [record["data"]["id"] for record in stub.topics[topic].records]


def test_sizes_and_options_of_the_command_line_are_parsed_or_refused() -> None:
    given = ["backfill", "s", "t"]
    options = parser().parse_args(
        [*given, "--batch-bytes", "2MiB", "--option", "sep=;", "--option", "quote=="]
    )
    found = options.batch_bytes, options.batch_records, options.option
    assert found == (2 * 1024 * 1024, 5000, [("sep", ";"), ("quote", "=")])
    for wrong in (
        ["--batch-records", "0"],
        ["--batch-bytes", "5MB"],
        ["--batch-bytes", "xMiB"],
        ["--option", "sep"],
        ["--durability", "none"],
    ):
        with pytest.raises(SystemExit):
            parser().parse_args([*given, *wrong])


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("a.csv", "csv"),
        ("a.TSV.gz", "csv"),
        ("s3://b/x.jsonl", "json"),
        ("a.ndjson", "json"),
        ("folder", "parquet"),
    ],
)
def test_the_suffix_determines_the_format(source: str, form: str) -> None:
    assert format_of(source) == form


def test_file_java_and_server_are_checked_before_a_jvm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def error_of(source: Path, topic: str, url: str, status: int) -> str:
        given = ["backfill", str(source), topic, "--url", url, "--retries", "1"]
        assert main(given) == status
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        return error

    monkeypatch.setattr(backfill, "local_session", pytest.fail)
    rows = tmp_path / "rows.csv"
    rows.write_text("a\n1\n")
    with StubServer() as stub:
        stub.make("jobs", type="queue")
        absent = tmp_path / "absent.csv"
        assert f"{absent}: no such file or directory\n" in error_of(absent, "t", stub.url, 2)
        packed = tmp_path / "rows.csv.ZIP"
        packed.write_bytes(b"PK")
        assert "unpack it first" in error_of(packed, "t", stub.url, 2)
        assert stub.seen == []
        assert 'topic "jobs" is a queue' in error_of(rows, "jobs", stub.url, 1)
        stub.faults.append(Fault(status=403, code="forbidden"))
        assert "the key needs the scope read" in error_of(rows, "t", stub.url, 5)
        assert "unreachable" in error_of(rows, "t", "http://127.0.0.1:9", 6)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
        assert "Spark needs Java" in error_of(rows, "other", stub.url, 1)
        assert "other" not in stub.topics


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_interrupted_job_writes_one_line_and_continues_when_it_is_run_again(
    unstopped: SparkSession,
    stub: StubServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tmp_path / "rows.ndjson"
    source.write_text("".join(json.dumps({"id": number}) + "\n" for number in range(50)))
    line = ["backfill", str(source), "t", "--url", stub.url, "--quiet", "--batch-records", "10"]
    busy = Fault(status=429, code="throttled")
    # The first request checks the permission to append.
    stub.faults.extend([None, None, None, *[busy] * 100])

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while 429 not in stub.statuses("POST") and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        assert main(line) == 130
    stub.faults.clear()
    assert (
        capsys.readouterr().err == "interrupted; run the job again, it continues where it stopped\n"
    )
    assert main(line) == 0
    assert sorted(ids(stub)) == list(range(50))


@pytest.fixture
def load(unstopped: SparkSession, stub: StubServer, tmp_path: Path) -> Load:
    """Return a function that loads a file into a new topic and returns the records."""

    def load(name: str, content: bytes, *more: str, status: int = 0) -> list[Any]:
        topic = f"t{len(stub.topics)}"
        source = tmp_path / name
        source.write_bytes(content)
        assert main(["backfill", str(source), topic, "--url", stub.url, *more]) == status
        return stub.topics[topic].records

    return load


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_csv_columns_are_text_unless_types_are_given(load: Load) -> None:
    content = b'id,"the name",n\r\n007,"say ""a"", b",1\r\n1.10,\\,\r\n'
    texts = [
        {"data": {"id": "007", "the name": 'say "a", b', "n": "1"}, "tag": "007"},
        {"data": {"id": "1.10", "the name": "\\", "n": None}, "tag": "1.10"},
    ]
    assert load("a.csv", content, "--tag-column", "id") == texts
    tabs = content.replace(b",1\r", b"\t1\r").replace(b"id,", b"id\t").replace(b'e",', b'e"\t')
    tabs = tabs.replace(b"007,", b"007\t").replace(b"1.10,", b"1.10\t").replace(b"\\,", b"\\\t")
    assert load("a.tsv", tabs, "--tag-column", "id") == texts
    typed = "id DECIMAL(5,2), `the name` STRING, n INT"
    numbers = [record["data"] for record in load("b.csv", content, "--schema", typed)]
    assert [(row["id"], row["n"]) for row in numbers] == [(7.0, 1), (1.1, None)]
    found = load("c.csv", b"a;b\n1;x\n2;y\n", "--option", "sep=;", "--option", "inferSchema=true")
    assert [record["data"] for record in found] == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_json_lines_are_sent_unchanged(load: Load, stub: StubServer) -> None:
    lines = ['{"b": "1.10", "a": {"x": "é"}, "id": 40404040404040404040404040404040404040}', "[1]"]
    found = load("a.jsonl", "\n\n".join(lines).encode(), "--tag-column", "b", "--node", "n")
    assert [record["data"] for record in found] == [json.loads(line) for line in lines]
    assert [record.get("tag") for record in found] == ["1.10", None]
    document = b'[{"id": 1},\n {"id": 2}]'
    found = load("b.json", document, "--option", "multiLine=true")
    assert [record["data"] for record in found] == [{"id": 1}, {"id": 2}]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_parquet_is_sent_with_times_in_utc(
    unstopped: SparkSession, load: Load, stub: StubServer, tmp_path: Path
) -> None:
    df = unstopped.sql("select timestamp'2013-01-01 10:00:00.123456Z' as at, 1.5d as x, 7L as n")
    df.write.parquet(str(tmp_path / "p"))
    assert main(["backfill", str(tmp_path / "p"), "p", "--url", stub.url]) == 0
    (record,) = stub.topics["p"].records
    assert record["data"] == {"at": "2013-01-01T10:00:00.123456Z", "x": 1.5, "n": 7}


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "a.csv: broken record: '1,2,3'"),
        ("a.jsonl", b'{"id": 1}\n{"id": 2\n', "value is not JSON: '{\"id\": 2'"),
    ],
)
def test_a_broken_line_ends_the_job_and_is_reported(
    load: Load, capsys: pytest.CaptureFixture[str], name: str, content: bytes, message: str
) -> None:
    assert load(name, content, status=1) == []
    assert message in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_quoted_field_with_line_breaks_is_one_record(load: Load) -> None:
    text = 'a,b\n1,"two\nlines, \n\nand ""more"""\n2,x\n'
    expected = [{"data": row} for row in csv.DictReader(io.StringIO(text, newline=""))]
    assert load("a.csv", text.encode()) == expected


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_text_in_another_encoding_is_refused_unless_the_encoding_is_named(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "a,b\n1,Zürich\n".encode("latin-1")
    assert load("a.csv", content, status=1) == []
    assert "a.csv: it is not UTF-8; name its encoding, for example" in capsys.readouterr().err
    (record,) = load("a.csv", content, "--option", "encoding=ISO-8859-1")
    assert record["data"] == {"a": "1", "b": "Zürich"}
    (record,) = load("b.csv", "a\n\ufffdü\n".encode())
    assert record["data"] == {"a": "\ufffdü"}


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "content", "more", "message"),
    [
        (
            "_events.jsonl",
            b"1\n",
            (),
            "_events.jsonl: Spark reads no file of it",
        ),
        ("empty.jsonl", b" \n", (), "empty.jsonl: it has no records"),
        ("head.csv", b"a,b\n", (), "head.csv: it has no records"),
        ("a.jsonl", b'{"k":1}\n', ("--tag-column", "K"), 'a.jsonl has a member "K"'),
        ("a.csv", b"k,v\n1,2\n", ("--tag-column", "K"), 'there is no column "K": k, v'),
    ],
)
def test_a_job_without_records_or_tags_is_an_error(
    load: Load,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    more: tuple[str, ...],
    message: str,
) -> None:
    assert load(name, content, *more, status=2) == []
    assert message in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_subfolders_are_read_and_are_columns_only_on_request(
    unstopped: SparkSession, stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, value in (("", 0), ("key=K1/", 1), ("node=7/deep/", 2), ("_hidden/", 3)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "rows.jsonl").write_text(json.dumps({"id": value}) + "\n")
    line = ["--format", "json", "--url", stub.url]
    assert main(["backfill", str(tmp_path), "a", *line]) == 0
    assert sorted(ids(stub, "a")) == [0, 1, 2]
    assert {*chain(*stub.topics["a"].records)} == {"data"}
    assert f"Spark does not read {tmp_path}/_hidden/rows.jsonl\n" in capsys.readouterr().err
    keyed = tmp_path / "b"
    (keyed / "day=5").mkdir(parents=True)
    (keyed / "day=5" / "rows.jsonl").write_text('{"id": 9}\n')
    assert main(["backfill", str(keyed), "b", "--partition-columns", *line]) == 0
    assert [record["data"] for record in stub.topics["b"].records] == [{"id": 9, "day": 5}]
