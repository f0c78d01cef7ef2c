"""The grammar of log events: constant lower-case phrases from one logger, with fields."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER = ("engine", "storage", "actors", "front", "process", "cli")
METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
PHRASE = re.compile(r"[a-z][a-z-]*( [a-z]+)*")
DOCUMENTED = re.compile(r"^\| (`.+?`) \| [a-z, ]+ \|", re.MULTILINE)
# The bridge for libraries, the logger that Hypercorn requires, and the logger of the client, which
# the command disables.
STANDARD = {
    "topics/process/logs.py",
    "topics/front/admin/application.py",
    "topics/cli/work.py",
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield the name and the tree of each module of the server."""
    for folder in SERVER:
        for path in sorted((ROOT / "topics" / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield the location and the node of each call of the logger."""
    for name, tree in sources():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in METHODS
                and ast.unparse(node.func.value) in ("log", "structlog.get_logger()")
            ):
                yield f"{name}:{node.lineno}", node


def events_of(call: ast.Call) -> list[str]:
    """Return the possible events of a call."""
    (event,) = call.args
    options = [event.body, event.orelse] if isinstance(event, ast.IfExp) else [event]
    return [ast.literal_eval(option) for option in options]


def test_every_event_is_a_constant_lower_case_phrase() -> None:
    found = [(place, event) for place, call in log_calls() for event in events_of(call)]
    assert len(found) > 60
    assert [each for each in found if not PHRASE.fullmatch(each[1])] == []


def test_only_the_bridge_and_two_libraries_use_the_standard_logger() -> None:
    users = {
        name
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import) and any(each.name == "logging" for each in node.names)
    }
    assert users == STANDARD


@pytest.mark.parametrize("page", ["operate.md", "durability.md", "runbook.md"])
def test_documented_events_exist(page: str) -> None:
    text = (ROOT / "topics/docs" / page).read_text()
    named = set(re.findall(r"log line `([a-z ]+)`", text))
    if page == "operate.md":
        table = text.partition("\n| event |")[2].partition("\n\n")[0]
        rows = DOCUMENTED.findall(table)
        assert len(rows) > 10
        named |= {event for row in rows for event in re.findall(r"`([^`]+)`", row)}
    assert named <= {event for _, call in log_calls() for event in events_of(call)}
