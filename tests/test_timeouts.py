"""A hanging test is ended by its timeout and reported by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HANGS = """
import threading

def test_a_wait_behind_a_wait() -> None:
    never = threading.Event()
    try:
        never.wait()
    finally:
        try:
            never.wait()
        finally:
            never.wait()
"""


@pytest.mark.slow
def test_a_test_with_a_hanging_cleanup_fails_at_its_timeout(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--timeout", "1"]
    done = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Failed: Timeout (>1.0s)" in done.stdout
    assert "1 failed" in done.stdout
