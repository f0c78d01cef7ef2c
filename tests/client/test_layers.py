"""The client as a package: its layers, and its types as a type checker sees them in a user's
program.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "topics/client"
# A module may import only modules that are listed below it.
LAYERS = [
    "client",
    *("producer", "publisher", "sender", "worker", "watcher", "caller", "pool"),
    *("tasks", "threads", "jobs", "http", "watching", "chunks", "calls"),
    *("values", "settings", "errors"),
]


@pytest.mark.parametrize(
    "module",
    [path for path in CLIENT.rglob("*.py") if path.stem != "__init__"],
    ids=lambda path: str(path.relative_to(CLIENT)),
)
def test_a_module_imports_only_lower_layers(module: Path) -> None:
    assert module.stem in LAYERS
    lower = LAYERS[LAYERS.index(module.stem) + 1 :]
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("topics.client"):
            last = str(node.module).rpartition(".")[2]
            names = [alias.name for alias in node.names] if last == "client" else [last]
            assert {*names} <= {*lower}, f"{module.name} imports {names}"


WRONG = """
from topics.client import Topics

with Topics() as client:
    client.topic("t").append(1, delay_ms=5)
    client.topic("t").put(ttl="7d")
"""


@pytest.mark.slow
def test_a_type_checker_finds_the_types_of_the_installed_package_and_reports_errors(
    tmp_path: Path,
) -> None:
    readme = (ROOT / "README.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", readme, re.M | re.S)
    assert programs
    (tmp_path / "right.py").write_text("\n".join(programs))
    (tmp_path / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "right.py", "wrong.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    errors = [line for line in run.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 2, run.stdout
    assert 'wrong.py:5: error: Unexpected keyword argument "delay_ms"' in errors[0]
    assert 'wrong.py:6: error: Unexpected keyword argument "ttl"' in errors[1]
