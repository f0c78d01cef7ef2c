"""Columns that make records, and those that make none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from topics.spark.sink.columns import BadColumns, Columns


def schema(**types: str) -> Any:
    return SimpleNamespace(
        fields=[
            SimpleNamespace(name=name, dataType=SimpleNamespace(typeName=lambda kind=kind: kind))
            for name, kind in types.items()
        ]
    )


def test_what_was_read_from_topics_can_be_written() -> None:
    read = schema(
        key="string",
        value="string",
        topic="string",
        partition="integer",
        offset="long",
        timestamp="timestamp",
        node="string",
        headers="string",
    )
    found = Columns.of(read, topic=None)
    assert found == Columns(value=1, key=0, topic=2, headers=7, node=6)


def test_the_option_topic_is_stronger_than_the_column_whatever_its_type() -> None:
    found = Columns.of(schema(value="binary", topic="integer"), topic="t")
    assert found == Columns(value=0, key=None, topic=None, headers=None, node=None)


@pytest.mark.parametrize(
    ("types", "told"),
    [
        ({"id": "long", "name": "string"}, "there is no column value; write df.select(to_json("),
        (
            {"value": "struct"},
            "the column value is struct, not string; make it JSON: to_json(value)",
        ),
        ({"value": "variant"}, "to_json(value)"),
        ({"value": "string", "key": "long"}, "the column key is long, not string; cast it"),
        ({"value": "string", "headers": "map"}, "make it a JSON object: to_json(headers)"),
        ({"value": "string", "node": "binary"}, "the column node is binary"),
    ],
)
def test_columns_that_make_no_record_are_refused_with_advice(
    types: dict[str, str], told: str
) -> None:
    with pytest.raises(BadColumns) as refusal:
        Columns.of(schema(**types), topic="t")
    assert told in str(refusal.value)


def test_a_topic_must_be_named_by_the_option_or_a_column() -> None:
    with pytest.raises(BadColumns, match="set the option topic, or add a column topic"):
        Columns.of(schema(value="string"), topic=None)


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = SimpleNamespace(fields=[*schema(value="string").fields, *schema(value="string").fields])
    with pytest.raises(BadColumns, match="there are 2 columns value"):
        Columns.of(twice, topic="t")  # type: ignore[arg-type]
