"""Files into a topic, by the command line."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.client.stub_server import Fault, StubServer
from topics.spark.client.http import Target
from topics.spark.jobs import backfill
from topics.spark.jobs.cli import main, parser
from topics.spark.producer import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ids(stub: StubServer, topic: str = "t") -> list[int]:
    return [record["data"]["id"] for record in stub.topics[topic].records]


def test_sizes_and_options_are_checked() -> None:
    given = ["backfill", "s", "t"]
    options = parser().parse_args(
        [*given, "--batch-bytes", "2MiB", "--option", "sep=;", "--option", "quote=="]
    )
    assert (options.batch_bytes, options.batch_records, options.option) == (
        2 * MIB,
        5000,
        [("sep", ";"), ("quote", "=")],
    )
    for wrong in (
        ["--batch-records", "0"],
        ["--batch-bytes", "5MB"],
        ["--batch-bytes", "xMiB"],
        ["--option", "sep"],
        ["--durability", "none"],
    ):
        with pytest.raises(SystemExit):
            parser().parse_args([*given, *wrong])


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_command_line_runs_a_job_and_tells_by_its_exit_status(
    unstopped: SparkSession,
    stub: StubServer,
    fifty_rows: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line: list[Any] = ["backfill", str(fifty_rows), "t", "--url", stub.url]
    line += ["--batch-bytes", "1KiB", "--quiet"]
    assert main(line) == 0
    assert "50 appended, 0 already there" in capsys.readouterr().out
    assert main(line) == 0
    assert "0 appended, 50 already there" in capsys.readouterr().out
    assert main([*line[:-1], "--job-id", "j", "--total", "50"]) == 0
    shown = capsys.readouterr()
    assert "50 appended, 0 already there from an earlier run of job j" in shown.out
    assert "50 of 50 records, 100 %" in shown.err


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_interrupted_job_says_so_in_one_line_and_goes_on_when_run_again(
    unstopped: SparkSession,
    stub: StubServer,
    fifty_rows: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = ["backfill", str(fifty_rows), "t", "--url", stub.url, "--quiet", "--batch-records", "10"]
    stub.faults.extend([None, None, *[Fault(status=429, code="throttled")] * 100])

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
        capsys.readouterr().err == "interrupted; run the job again, it goes on where it stopped\n"
    )
    assert main(line) == 0
    assert "50 records" in capsys.readouterr().out
    assert sorted(ids(stub)) == list(range(50))


def test_file_server_and_java_are_asked_for_before_pyspark_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(source: Path, url: str, status: int) -> str:
        assert main(["backfill", str(source), "t", "--url", url]) == status
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        return said

    monkeypatch.setattr(backfill, "load", pytest.fail)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    rows = tmp_path / "rows.csv"
    rows.write_text("a\n1\n")
    with StubServer() as stub:
        absent = tmp_path / "absent.csv"
        assert f"{absent}: no such file or directory\n" in told(absent, stub.url, 2)
        assert stub.seen == []
        said = told(rows, stub.url, 1)
        assert ("Java" if find_spec("pyspark") else "pyspark") in said
        assert stub.topics == {}


def test_a_topic_is_loaded_on_the_server_that_is_to_have_it(
    fifty_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loaded:
        agrees = True

        def text(self) -> str:
            return "loaded"

    found: set[str] = set()

    def load(options: Any, target: Target, source: str) -> Loaded:
        found.add(target.url)
        return Loaded()

    monkeypatch.setattr(backfill, "load", load)
    monkeypatch.setattr(backfill, "check_spark", lambda: None)
    with StubServer() as one, StubServer() as two:
        servers = f"one={one.url},two={two.url}"
        for number in range(8):
            assert main(["backfill", str(fifty_rows), f"t{number}", "--url", servers]) == 0
        assert found == {one.url, two.url}
