"""SIGTERM at every point of a child's run, from the fork to the end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AT_ONCE, IN_ORDER = -signal.SIGTERM, 0

pytestmark = pytest.mark.slow


CASES = {
    "shard before fork": AT_ONCE,
    "shard before reset of signals": AT_ONCE,
    "shard after reset of signals": AT_ONCE,
    "shard before recovery": AT_ONCE,
    "shard after recovery": AT_ONCE,
    "shard after start of the loop": AT_ONCE,
    "shard after shard receives": IN_ORDER,
    "shard before shard serves": IN_ORDER,
    "shard at work": IN_ORDER,
    "shard before last checkpoint": IN_ORDER,
    "front before fork": AT_ONCE,
    "front after start of the loop": AT_ONCE,
    "front after front receives": IN_ORDER,
    "front before front serves": IN_ORDER,
    "front at work": IN_ORDER,
}


@pytest.mark.timeout(300)
def test_a_sigterm_ends_a_child_at_any_point_of_its_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.process.sigterm", str(tmp_path), *CASES]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    ends = map(int, ended.stdout.split())
    assert dict(zip(CASES, ends, strict=True)) == CASES
    logs = [*tmp_path.glob("*.log")]
    assert len(logs) == len(CASES)
    for log in logs:
        for line in log.read_text().splitlines():
            assert "exception" not in json.loads(line), line
