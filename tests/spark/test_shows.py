"""The shows on real data end well: deploy/story and deploy/three-servers, on fewer rows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}


def shown(module: str, rows: int) -> str:
    """What the show prints; its exit code is 0."""
    done = subprocess.run(
        [sys.executable, "-m", module, "--rows", str(rows)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_counts_and_sums_of_the_flights_are_the_same_in_files_topics_and_archive() -> None:
    text = shown("workers.flights_story", 5000)
    assert "DIFFERS" not in text
    assert "rows of flights                            5,000         5,000" in text
    assert "Everything agrees" in text


def test_totals_over_three_servers_are_those_of_the_source_though_one_dies() -> None:
    text = shown("workers.three_servers", 12_000)
    assert "killed (SIGKILL)" in text
    assert "is back, with what it had" in text
    assert text.endswith("equal to the source\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("module", "line"),
    [("workers.three_servers", "server cedar runs"), ("workers.flights_story", "\\$ topics-spark")],
)
def test_a_show_that_is_interrupted_leaves_no_server_and_no_folder(
    module: str, line: str, number: signal.Signals, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", module, "--rows", "5000"],
        cwd=ROOT,
        env=environment() | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert any(re.match(line, shown) for shown in running.stdout)
        servers = [int(lock.read_text()) for lock in tmp_path.glob("*/*/data/LOCK")]
        running.send_signal(number)
        said = running.communicate(timeout=60)[1]
    assert (running.returncode, "Traceback" in said) == (130, False), said
    assert servers
    for server in servers:
        with pytest.raises(ProcessLookupError):
            os.kill(server, 0)
    assert list(tmp_path.glob("tmp*")) == []
