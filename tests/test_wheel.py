"""The content of an installation: the package ``topics``, the modules that Spark finds by name, and
a server that runs from any folder together with any other package.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.program import Program

ROOT = Path(__file__).parent.parent
DISCOVERY = ROOT / "topics/spark/discovery"
BUILD = (
    "from setuptools import setup; setup(script_args=['-q', 'build_py', '--build-lib', 'built'])"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the content of a wheel except its metadata, by the build step of setuptools on a copy,
    without a network.
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
def test_the_wheel_contains_only_the_package_and_the_modules_that_spark_finds(built: Path) -> None:
    assert {path.name for path in built.iterdir()} == {"topics", "pyspark_topics"}
    kinds = ("*.py", "*.js", "*.d.ts", "package.json", "*.md", "py.typed", "docs/*.json")
    found = {path for kind in kinds for path in (ROOT / "topics").rglob(kind)}
    found |= {*(ROOT / "topics/front/console").iterdir()}
    ours = {
        path.relative_to(DISCOVERY if path.is_relative_to(DISCOVERY) else ROOT) for path in found
    }
    assert {path.relative_to(built) for path in built.rglob("*") if path.is_file()} == ours


def test_every_message_about_an_installation_names_this_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        found
        for path in (ROOT / "topics").rglob("*.py")
        for found in re.findall(r"'(topics[\w-]*)\[(\w+)\]'", path.read_text())
    }
    assert named == {("topics-engine", "spark")}
    assert project["name"] == "topics-engine"
    assert {extra for _, extra in named} <= {*project["optional-dependencies"]}


LOOKUP = """
import io
from pyspark.serializers import read_int
from pyspark.sql.worker.lookup_data_sources import _main
from topics import __file__ as where
out = io.BytesIO()
_main(io.BytesIO(), out)
out.seek(0)
print(where)
for _ in range(read_int(out)):
    print(out.read(read_int(out)).decode())
    out.read(read_int(out))  # the pickled class
"""


def lookup(path: Path, cwd: Path, program: str = LOOKUP) -> list[str]:
    """Return the output of Spark's search for sources in a process that imports from ``path``."""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
def test_spark_finds_the_sources_of_an_installation_by_itself(built: Path, tmp_path: Path) -> None:
    where, *names = lookup(built, tmp_path)
    assert Path(where).is_relative_to(built)
    assert names == ["topics"]


@pytest.mark.slow
def test_a_missing_dependency_does_not_hide_other_sources(built: Path, tmp_path: Path) -> None:
    block = "import sys; sys.modules['httpcore2'] = None; sys.stderr = sys.stdout\n"
    output = lookup(built, tmp_path, block + LOOKUP)
    assert 'no format("topics"): httpcore2 is not installed' in " ".join(output)
    assert output[-1] == f"{built}/topics/__init__.py"


@pytest.mark.slow
def test_an_archive_for_py_files_contains_the_sources(built: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "topics"), "zip", built)
    program = "from pyspark_topics import DefaultSource as s; print(s.name(), s.__module__)"
    assert lookup(Path(archive), tmp_path, program)[0] == "topics"


@pytest.mark.slow
def test_an_installed_server_runs_in_any_folder_with_a_foreign_package_named_supervisor(
    built: Path, tmp_path: Path
) -> None:
    for name in ("supervisor", "workers"):
        (tmp_path / "others" / name).mkdir(parents=True)
        (tmp_path / "others" / name / "__init__.py").write_text("raise ImportError('not ours')")
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    server = Program(
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
