"""What an installation gets: the package ``topics`` alone, and a server that runs from any folder
beside any other package.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILD = (
    "from setuptools import setup; setup(script_args=['-q', 'build_py', '--build-lib', 'built'])"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a wheel would hold beside its metadata: setuptools' own build step, on a copy, without a
    network.
    """
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "README.md", "supervisor.py"):
        shutil.copy(ROOT / name, copy)
    for name in ("topics", "workers", "tests"):
        shutil.copytree(
            ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules")
        )
    command = [sys.executable, "-W", "ignore", "-c", BUILD]
    subprocess.run(command, cwd=copy, check=True, capture_output=True, timeout=60)
    return copy / "built"


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    assert [path.name for path in built.iterdir()] == ["topics"]
    kinds = ("*.py", "*.md", "py.typed")
    ours = {path.relative_to(ROOT) for kind in kinds for path in (ROOT / "topics").rglob(kind)}
    assert {path.relative_to(built) for path in built.rglob("*") if path.is_file()} == ours


@pytest.mark.slow
def test_an_installed_server_runs_in_any_folder_beside_a_foreign_package_supervisor(
    built: Path, tmp_path: Path
) -> None:
    for name in ("supervisor", "workers"):
        (tmp_path / "others" / name).mkdir(parents=True)
        (tmp_path / "others" / name / "__init__.py").write_text("raise ImportError('not ours')")
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    server = subprocess.Popen(
        [sys.executable, "-m", "topics", "serve", "--port", "0", "--data-dir", "data"],
        env=env | {"PYTHONPATH": f"{tmp_path / 'others'}:{built}", "TOPICS_SHARDS": "1"},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with server:
        assert server.stderr is not None
        try:
            events = (json.loads(line)["event"] for line in server.stderr)
            assert "ready" in events
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
