"""The command line of the jobs: exit codes and error messages."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.spark.live import Live
from topics.spark.client.http import RequestError
from topics.spark.job_errors import JobError, UsageError
from topics.spark.jobs import cli
from topics.spark.jobs.archive import ArchiveSummary
from topics.spark.jobs.archive_check import Checked
from topics.spark.source.connection import BadOption, ServerError

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Done:
    agrees: bool

    def text(self) -> str:
        return f"agrees: {self.agrees}"


def with_job(monkeypatch: pytest.MonkeyPatch, result: Done | BaseException) -> None:
    """Replace the jobs by one that returns or raises ``result``."""

    def add(commands: Any) -> None:
        commands.add_parser("backfill")

    def run(_options: argparse.Namespace) -> Done:
        if isinstance(result, Done):
            return result
        raise result

    monkeypatch.setattr(cli, "JOBS", ("backfill",))
    monkeypatch.setattr(cli, "job", lambda name: SimpleNamespace(add=add, run=run))


@pytest.mark.parametrize(
    ("result", "code", "out", "err"),
    [
        (Done(True), 0, "agrees: True\n", ""),
        (Done(False), 1, "agrees: False\n", ""),
        (JobError("a broken line"), 1, "", "error: a broken line\n"),
        (RequestError("t", 422, "topic_full", "x"), 1, "", 'error: topic "t": 422 topic_full: x'),
        (RequestError("t", 404, "topic_not_found", "x"), 4, "", 'error: topic "t": 404 topic_not'),
        (RequestError("", 401, "unauthorized", "x"), 5, "", "error: 401 unauthorized: x"),
        (JobError('server a: topic "t": 403 forbidden: x'), 5, "", "error: server a: topic"),
        (ServerError("server a: no answer unreachable: x"), 6, "", "error: server a: no answer"),
        (ServerError("server a: no response unreachable: x"), 6, "", "error: server a: no resp"),
        (JobError("server a: 503 not_ready: x. Run it again"), 6, "", "error: server a: 503"),
        (JobError('server a: topic "t": topic_not_found: none'), 4, "", "error: server a: topic"),
        (JobError("a.csv: broken record: 'forbidden: x'"), 1, "", "error: a.csv: broken record"),
        (UsageError("/nowhere: no such file"), 2, "", "error: /nowhere: no such file\n"),
        (BadOption("not so"), 2, "", "error: not so\n"),
        (ServerError("server a: no"), 1, "", "error: server a: no\n"),
        (
            ModuleNotFoundError("No module", name="pyarrow"),
            1,
            "",
            "error: pyarrow is not installed: pip install 'topics-engine[spark]'\n",
        ),
        (KeyboardInterrupt(), 130, "", "interrupted; run the job again"),
    ],
)
def test_a_job_ends_with_its_exit_code_and_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    result: Done | BaseException,
    code: int,
    out: str,
    err: str,
) -> None:
    with_job(monkeypatch, result)
    assert cli.main(["backfill"]) == code
    shown = capsys.readouterr()
    assert shown.out == out
    assert shown.err.startswith(err)
    assert shown.err.count("\n") == (0 if out else 1)


def test_a_missing_module_of_this_package_is_not_an_expected_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_job(monkeypatch, ModuleNotFoundError("No module", name="topics.nowhere"))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["backfill"])


def test_a_missing_package_is_reported_before_the_arguments_are_parsed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module", name="urllib3")

    monkeypatch.setattr(cli, "job", absent)
    assert cli.main(["backfill"]) == 1
    assert capsys.readouterr().err.startswith("error: urllib3 is not installed: pip install")


@pytest.mark.parametrize("line", [[], ["nowhere"], ["backfill", "s"], ["backfill", "s", "\udcff"]])
def test_invalid_arguments_are_a_usage_error(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(line)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: topics-spark")


@pytest.mark.slow
@pytest.mark.parametrize("job", ["backfill", "replay"])
def test_the_help_of_a_job_loads_neither_pyspark_nor_pyarrow(job: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "workers.spark", job, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: topics-spark {job} ")
    loaded = {entry.rpartition("|")[2].strip() for entry in done.stderr.splitlines()}
    assert not loaded & {"pyspark", "pyarrow", "py4j", "pandas", "numpy"}


def test_the_command_line_accepts_the_commands_of_the_page() -> None:
    lines = (ROOT / "topics/docs/spark.md").read_text().splitlines()
    commands = [line for line in lines if line.startswith("topics-spark ")]
    parsed = [cli.parser().parse_args(shlex.split(line, comments=True)[1:]) for line in commands]
    assert sorted(options.job for options in parsed) == sorted(cli.JOBS)


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        (["archive", "nothing", "DIR"], 4, 'topic "nothing": 404 topic_not_found'),
        (["archive", "--pattern", "(", "DIR"], 2, "subscribePattern is '('"),
        (["archive", "mine", "DIR/file"], 2, "not a folder"),
        (["archive", "mine", "DIR/*"], 2, "Spark reads * in a path as a pattern"),
        (["compact", "nothing", "dest"], 4, 'topic "nothing": 404 topic_not_found'),
        (["compact", "same", "same"], 2, "source and destination are the same topic"),
        (["compact", "a", ""], 2, "option topic is empty"),
    ],
)
def test_invalid_input_is_reported_in_one_line_without_a_jvm(
    live: Live,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.setattr("topics.spark.session.session", pytest.fail)
    live.make("mine", 1)
    (tmp_path / "file").write_text("")
    given = [each.replace("DIR", str(tmp_path)) for each in line]
    assert cli.main([*given, "--url", live.url]) == status
    error = capsys.readouterr().err
    assert message in error
    assert (error[:7], error.count("\n")) == ("error: ", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_summary_with_a_fault_does_not_agree() -> None:
    topic = Checked(server="a", topic="t", epoch=1, last=9, rows=8, fault="seq 4 is gone")
    summary = ArchiveSummary(directory="d", topics=[topic], batches=1, seconds=0.0, total=8)
    assert not summary.agrees
    assert summary.text().splitlines()[1:] == [
        "1 seqs without a record: 0 lost, the others deleted",
        'a: topic "t": seq 4 is gone',
        "The server does NOT agree.",
    ]
