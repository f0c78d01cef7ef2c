"""The table of calls: its docstring and the code agree, and no other module spells out a
subject.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.wire import TABLE
from topics.formats.wire import calls
from topics.formats.wire.calls import AppendOutcome, band_in, outcome_byte, outcome_in
from topics.formats.wire.contract import Call
from topics.formats.wire.envelope import encode

TOPICS = Path(calls.__file__).parent.parent.parent
METHODS = {row.method for row in TABLE}
# The envelope owns the prefixes. HTTP routes have names like those of calls.
PREFIX_OWNER = "formats/wire/envelope.py"
ROUTE_NAMES = ("front/data/", "front/admin/rows.py", "formats/api/route_names.py")


def test_the_table_in_the_docstring_matches_the_code() -> None:
    lines = re.findall(r"^    ((?:rpc|event)/.*)$", calls.__doc__ or "", re.MULTILINE)
    rows = [re.split(r" {2,}", line.strip()) for line in lines]
    assert [(row[0], row[2], *row[4:5]) for row in rows] == [
        (row.subject, row.params.__name__, *([row.result.__name__] if type(row) is Call else []))
        for row in TABLE
    ]
    assert len({row.subject for row in TABLE}) == len(TABLE)


def test_params_and_results_are_documented_tuples_that_are_sent_as_arrays() -> None:
    for row in TABLE:
        for kind in [row.params, *([row.result] if isinstance(row, Call) else [])]:
            fields: tuple[str, ...] = kind._fields
            assert encode(kind(*fields)) == encode(list(fields))
            assert kind.__doc__, f"{kind.__name__} has no docstring"
            assert not [name for name in fields if hasattr(tuple, name)], "hides a method of tuple"


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that is not a docstring."""
    tree = ast.parse(path.read_text(), path)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            if isinstance(node.value, str):
                yield node.lineno, node.value
            elif isinstance(node.value, bytes):
                yield node.lineno, node.value.decode("latin-1")


@pytest.mark.slow
def test_no_other_module_spells_out_a_subject() -> None:
    modules = [path for path in sorted(TOPICS.rglob("*.py")) if path != Path(calls.__file__)]
    assert len(modules) > 100
    names = {path: str(path.relative_to(TOPICS)) for path in modules}
    spelled = [
        f"{name}:{line} {text!r}"
        for path, name in names.items()
        for line, text in literals(path)
        if (text.startswith(("rpc/", "event/")) and name != PREFIX_OWNER)
        or (text in METHODS and "." in text and not name.startswith(ROUTE_NAMES))
    ]
    assert spelled == []


def test_an_outcome_is_sent_with_the_band_of_its_topic() -> None:
    pairs = [(outcome, band) for outcome in AppendOutcome for band in range(5)]
    sent = [outcome_byte(outcome, band) for outcome, band in pairs]
    assert [(outcome_in(byte), band_in(byte)) for byte in bytes(sent)] == pairs
    assert len({*sent}) == len(pairs)
