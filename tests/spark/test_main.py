"""The command line of the producer."""

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
from topics.spark import main as command
from topics.spark.main import main, parser
from topics.spark.producer import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_sizes_and_options_are_checked() -> None:
    options = parser().parse_args(
        ["s", "t", "--batch-bytes", "2MiB", "--option", "sep=;", "--option", "quote=="]
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
            parser().parse_args(["s", "t", *wrong])


def ids(stub: StubServer, topic: str = "t") -> list[int]:
    return [record["data"]["id"] for record in stub.topics[topic].records]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_command_line_runs_a_job_and_tells_by_its_exit_status(
    unstopped: SparkSession,
    stub: StubServer,
    fifty_rows: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line: list[Any] = [str(fifty_rows), "t", "--url", stub.url, "--batch-bytes", "1KiB", "--quiet"]
    assert main(line) == 0
    assert "50 appended, 0 already there" in capsys.readouterr().out
    assert main(line) == 0
    assert "0 appended, 50 already there" in capsys.readouterr().out
    assert main([*line[:-1], "--job-id", "j", "--total", "50"]) == 0
    shown = capsys.readouterr()
    assert "50 appended, 0 already there from an earlier run of job j" in shown.out
    assert "50 of 50 records, 100 %" in shown.err
    assert main([str(tmp_path / "absent.csv"), *line[1:]]) == 2
    assert "absent.csv: no such file or directory" in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_interrupted_job_says_so_in_one_line_and_goes_on_when_run_again(
    unstopped: SparkSession,
    stub: StubServer,
    fifty_rows: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = [str(fifty_rows), "t", "--url", stub.url, "--quiet", "--batch-records", "10"]
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


def test_the_command_asks_for_file_server_and_java_before_it_loads_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*arguments: str, status: int = 1) -> str:
        assert command.main([*arguments]) == status
        return capsys.readouterr().err

    monkeypatch.setattr(command, "session", pytest.fail)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    (tmp_path / "rows.csv").write_text("a\n1\n")
    with StubServer() as stub:
        assert "absent.csv: no such file or directory" in told(
            str(tmp_path / "absent.csv"), "t", "--url", stub.url, status=2
        )
        assert stub.seen == []
        said = told(str(tmp_path / "rows.csv"), "t", "--url", stub.url)
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert ("Java" if find_spec("pyspark") else "pyspark") in said
        assert stub.topics == {}
