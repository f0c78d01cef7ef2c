"""Check that imports point downwards only, that the lower layers are pure, and that the top level
exports the documented names.
"""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the lowest layer up. A module may import modules of its own layer and of the lower layers,
# which are the lines above it.
LAYERS = [
    ["topics", "topics.errors", "topics.config", "topics.imports", "topics.formats"],
    ["topics.formats.api", "topics.formats.wire"],
    ["topics.formats.disk"],
    ["topics.client"],
    ["topics.cli", "topics.spark.client"],
    ["topics.engine"],
    ["topics.process.terminal", "topics.storage.folders"],
    ["topics.process.logs"],
    ["topics.storage", "topics.storage.segments", "topics.storage.wal"],
    ["topics.storage.recovery"],
    ["topics.storage.verify", "topics.storage.inspect"],
    ["topics.storage.backup_restore", "topics.storage.standby"],
    ["topics.storage.promote"],
    ["topics.spark"],
    ["topics.spark.source", "topics.spark.sink"],
    ["topics.spark.jobs", "topics.spark.discovery"],
    ["topics.actors.link"],
    ["topics.actors.rpc"],
    ["topics.actors.shard", "topics.actors.shard_client"],
    ["topics.front"],
    ["topics.front.http"],
    ["topics.front.live"],
    ["topics.front.data"],
    ["topics.front.admin"],
    ["topics.front.table", "topics.front.server"],
    ["topics.process"],
    ["topics.cli.server", "topics.cli.standby"],
    ["workers", "supervisor", "topics.__main__"],
]
# Packages on one layer that must not import each other.
INDEPENDENT = [
    {"topics.formats.disk", "topics.formats.wire"},
    {"topics.formats.api", "topics.formats.wire"},
    {"topics.storage.segments", "topics.storage.wal"},
    {"topics.actors.shard", "topics.actors.shard_client"},
    {"topics.cli", "topics.spark.client"},
]
PURE = ("topics.formats", "topics.engine")
TOP_LEVEL = {"README.md", "deploy", "pyproject.toml", "supervisor.py", "tests", "topics", "workers"}

# Modules that a pure module must not use. It takes a value as an argument instead.
IMPURE_NAMES = """
clocks, chance  datetime random sched secrets time uuid
files           fcntl fileinput glob mmap os pathlib pickle shutil sqlite3 tempfile
HTTP            ftplib http.client http.cookiejar http.server smtplib urllib
sockets         select selectors socket ssl
tasks           asyncio concurrent multiprocessing queue signal subprocess threading trio
the machine     ctypes importlib logging platform structlog
HTTP servers    h11 httptools hypercorn quart quart_trio
"""
IMPURE = {name for line in IMPURE_NAMES.splitlines() for name in line[16:].split()}
IMPURE_CALLS = {"open", "print", "input", "breakpoint", "exec", "eval"}


def modules() -> Iterator[tuple[str, Path]]:
    """Return every module of the project with its dotted name."""
    for path in sorted(
        [*ROOT.glob("topics/**/*.py"), *ROOT.glob("workers/**/*.py"), ROOT / "supervisor.py"]
    ):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def layer_of(module: str) -> int:
    """Return the layer of the longest name that covers the module. The bare package ``topics``
    covers only itself.
    """
    found = [
        (len(name), layer)
        for layer, names in enumerate(LAYERS)
        for name in names
        if module == name or (name != "topics" and module.startswith(f"{name}."))
    ]
    assert found, f"{module} has no layer; add it to LAYERS"
    return max(found)[1]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all syntax nodes of a file."""
    return [*ast.walk(ast.parse(path.read_text(), path))]


@cache
def imports_of(module: str, path: Path) -> list[tuple[int, str]]:
    """Return line and dotted name of each import anywhere in the file. For modules of the project
    the name is the module's, even if only one of its members is imported.
    """
    return [*_imports_of(module, path)]


def _imports_of(module: str, path: Path) -> Iterator[tuple[int, str]]:
    is_package = path.name == "__init__.py"
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = (
                module.split(".")[: len(module.split(".")) - node.level + is_package]
                if node.level
                else []
            )
            base = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield node.lineno, base if is_ours(base) and not is_module(name) else name


def is_ours(name: str) -> bool:
    return name.split(".")[0] in ("topics", "workers", "supervisor")


@cache
def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def upward_imports(module: str, path: Path) -> list[str]:
    return [
        f"{path.name}:{line} {module} imports {name}, {layer_of(name) - layer_of(module)} layers up"
        for line, name in imports_of(module, path)
        if is_ours(name) and layer_of(name) > layer_of(module)
    ]


def package_of(module: str, packages: set[str]) -> str | None:
    """Return the package of ``packages`` that contains a module."""
    return next((name for name in packages if module.startswith(f"{name}.")), None)


def imports_between_independent(module: str, path: Path) -> list[str]:
    return [
        f"{path.name}:{line} {module} imports {name}"
        for packages in INDEPENDENT
        for line, name in imports_of(module, path)
        if None not in (own := package_of(module, packages), other := package_of(name, packages))
        and own != other
    ]


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that import one another, directly or indirectly."""
    found: list[set[str]] = []
    while graph:
        # A module that imports no remaining module, or that no remaining module imports, is in no
        # cycle.
        imported = set().union(*graph.values())
        idle = {name for name, others in graph.items() if not others & graph.keys()}
        idle |= graph.keys() - imported
        if not idle:
            break
        graph = {name: others - idle for name, others in graph.items() if name not in idle}
    while graph:
        reached: set[str] = set()
        ahead = {next(iter(graph))}
        while ahead:
            reached |= ahead
            ahead = set().union(*(graph[name] for name in ahead)) - reached
        found.append(reached)
        graph = {name: others - reached for name, others in graph.items() if name not in reached}
    return found


def impurities(module: str, path: Path) -> list[str]:
    """Return violations of purity: impure imports, calls to the outside, and waiting."""
    found = [
        f"{path.name}:{line} {module} imports {name}"
        for line, name in imports_of(module, path)
        if IMPURE & set(accumulate(name.split("."), "{}.{}".format))
    ]
    for node in nodes_of(path):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            found.append(f"{path.name}:{node.lineno} {module} waits")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in IMPURE_CALLS
        ):
            found.append(f"{path.name}:{node.lineno} {module} calls {node.func.id}()")
    return found


def test_imports_point_downwards_only() -> None:
    assert [found for module, path in modules() for found in upward_imports(module, path)] == []


def test_independent_packages_do_not_import_each_other() -> None:
    assert [
        found for module, path in modules() for found in imports_between_independent(module, path)
    ] == []


def test_no_modules_form_an_import_cycle_even_for_types() -> None:
    known = dict(modules())
    graph = {
        module: {name for _, name in imports_of(module, path)} & known.keys() - {module}
        for module, path in known.items()
    }
    assert cycles(graph) == []


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [{"a", "b"}]),
        ({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}, [{"b", "c"}]),
    ],
)
def test_an_import_cycle_is_found(edges: dict[str, set[str]], found: list[set[str]]) -> None:
    assert cycles(edges) == found


def test_formats_and_engine_use_no_clock_file_or_task() -> None:
    pure = [(module, path) for module, path in modules() if module.startswith(PURE)]
    assert [found for module, path in pure for found in impurities(module, path)] == []


@pytest.mark.parametrize(
    ("source", "upward", "impure"),
    [
        ("from topics.storage import data_dir", 1, 0),
        ("from topics import process, errors", 1, 0),
        ("from ..actors.link.board import Board", 1, 0),
        ("from . import access", 0, 0),
        ("def f():\n    import supervisor", 1, 0),
        ("import topics.front.error_answers as e", 1, 0),
        ("if True:\n    import time, os.path", 0, 2),
        ("from random import choice", 0, 1),
        ("from http import HTTPStatus, client", 0, 1),
        ("async def f(): await g()", 0, 2),
        ("open('x')", 0, 1),
        ("import struct, topics.errors\nfrom topics.formats import message", 0, 0),
    ],
)
def test_the_checks_report_violations(
    tmp_path: Path, source: str, upward: int, impure: int
) -> None:
    path = tmp_path / "probe.py"
    path.write_text(source)
    assert len(upward_imports("topics.engine.probe", path)) == upward
    assert len(impurities("topics.engine.probe", path)) == impure


def test_the_top_level_exports_exactly_these_names() -> None:
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split()]
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    shown = {
        name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)
    }
    assert shown == TOP_LEVEL
