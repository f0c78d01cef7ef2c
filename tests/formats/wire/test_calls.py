"""The calls table: its docstring and the code agree, and no other module spells a subject."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import cbor2
import pytest

from topics.formats.wire import calls
from topics.formats.wire.calls import (
    CALLS,
    EVENTS,
    AppendOutcome,
    band_in,
    outcome_byte,
    outcome_in,
)
from topics.formats.wire.contract import Call, Event

TOPICS = Path(calls.__file__).parent.parent.parent
Row: TypeAlias = Call[Any, Any] | Event[Any]
TABLE: list[Row] = [*CALLS, *EVENTS]
SUBJECTS = {row.subject for row in TABLE}
METHODS = {row.method for row in TABLE}
# The prefixes themselves belong to the envelope. Routes of HTTP have names like those of calls.
PREFIX_OWNER = "formats/wire/envelope.py"
ROUTE_NAMES = ("front/routes/", "formats/api/route_names.py")


def columns(row: Row) -> list[str]:
    found = [row.subject, row.direction.value, row.params.__name__, row.attachment]
    return [*found, row.result.__name__, row.answer] if isinstance(row, Call) else found


def test_the_table_in_the_docstring_is_the_code() -> None:
    lines = re.findall(r"^    ((?:rpc|event)/.*)$", calls.__doc__ or "", re.MULTILINE)
    assert [re.split(r" {2,}", line.strip()) for line in lines] == [columns(row) for row in TABLE]


def test_every_call_and_every_event_of_the_module_is_in_the_table() -> None:
    assert {id(row) for row in vars(calls).values() if isinstance(row, Call)} == set(map(id, CALLS))
    assert {id(row) for row in vars(calls).values() if isinstance(row, Event)} == set(
        map(id, EVENTS)
    )
    assert len(SUBJECTS) == len(TABLE)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.subject)
def test_params_and_results_travel_as_arrays(row: Row) -> None:
    kinds = [row.params, row.result] if isinstance(row, Call) else [row.params]
    for kind in kinds:
        values = list(range(len(kind._fields)))
        assert cbor2.loads(cbor2.dumps(kind(*values))) == values
        assert kind.__doc__, f"{kind.__name__} has no docstring"


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.subject)
def test_an_array_becomes_the_named_tuple_again(row: Row) -> None:
    values = list(range(len(row.params._fields)))
    params = row.params_of(values)
    assert (type(params), params) == (row.params, row.params(*values))
    if isinstance(row, Call):
        values = list(range(len(row.result._fields)))
        assert row.result_of(values) == row.result(*values)


def test_field_names_do_not_hide_methods_of_tuples() -> None:
    hidden = {
        field
        for row in TABLE
        for kind in ([row.params, row.result] if isinstance(row, Call) else [row.params])
        for field in kind._fields
        if hasattr(tuple, field)
    }
    assert hidden == set()


def modules() -> list[Path]:
    others = [path for path in sorted(TOPICS.rglob("*.py")) if path != Path(calls.__file__)]
    assert len(others) > 100
    return others


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string that is no docstring."""
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


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(TOPICS)))
def test_no_other_module_spells_a_subject(path: Path) -> None:
    name = str(path.relative_to(TOPICS))
    spelled = [
        f"{name}:{line} {text!r}"
        for line, text in literals(path)
        if (text.startswith(("rpc/", "event/")) and name != PREFIX_OWNER)
        or (text in METHODS and "." in text and not name.startswith(ROUTE_NAMES))
    ]
    assert spelled == []


def test_an_outcome_travels_with_the_band_of_its_topic() -> None:
    pairs = [(outcome, band) for outcome in AppendOutcome for band in range(5)]
    sent = [outcome_byte(outcome, band) for outcome, band in pairs]
    assert [(outcome_in(byte), band_in(byte)) for byte in bytes(sent)] == pairs
    assert len({*sent}) == len(pairs)
