"""Every module with something to test has a test module by its name."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent

# A module whose functions are all shorter holds types, constants or a protocol.
STATEMENTS_MIN = 4


def longest_function(path: Path) -> int:
    """Statements of the longest function, its docstring and what is nested in it included."""
    found = [
        sum(isinstance(each, ast.stmt) for each in ast.walk(node)) - 1
        for node in ast.walk(ast.parse(path.read_text(), path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return max(found, default=0)


MODULES = [
    path.relative_to(ROOT / "topics")
    for path in sorted((ROOT / "topics").rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py") and longest_function(path) >= STATEMENTS_MIN
]


def test_a_module_has_its_test_module_by_name() -> None:
    tests = ROOT / "tests"
    assert [str(m) for m in MODULES if not (tests / m.parent / f"test_{m.name}").exists()] == []
