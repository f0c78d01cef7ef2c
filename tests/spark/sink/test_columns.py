"""The columns that are written, ignored and refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from topics.spark.sink.columns import BadColumns, Columns


def schema(**types: str) -> Any:
    return SimpleNamespace(
        fields=[
            SimpleNamespace(
                name=name, dataType=SimpleNamespace(simpleString=lambda kind=kind: kind)
            )
            for name, kind in types.items()
        ]
    )


def test_the_columns_of_a_read_can_be_written() -> None:
    read = schema(
        key="string",
        value="string",
        topic="string",
        partition="int",
        offset="bigint",
        timestamp="timestamp",
        node="string",
        headers="string",
    )
    found = Columns.of(read, topic=None)
    assert found == Columns(value=1, key=0, topic=2, headers=7, node=6)


def test_the_option_topic_replaces_a_column_of_any_type() -> None:
    found = Columns.of(schema(value="binary", topic="int"), topic="t")
    assert found == Columns(value=0)


def test_headers_may_be_a_map_and_delays_are_of_queues() -> None:
    jobs = schema(
        value="varchar(9)",
        headers="map<string,string>",
        delay_ms="bigint",
        deliver_at="timestamp",
    )
    assert Columns.of(jobs, topic="t") == Columns(value=0, headers=1, delay_ms=2, deliver_at=3)
    collated = schema(value="string collate UTF8_LCASE", delay_ms="int", deliver_at="bigint")
    assert Columns.of(collated, topic="t") == Columns(value=0, delay_ms=1, deliver_at=2)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"id": "bigint", "name": "string"}, "there is no column value; write df.select(to_json("),
        (
            {"value": "struct<a:int>"},
            "the column value is struct<a:int>, not string; make it JSON: to_json(value)",
        ),
        ({"value": "variant"}, "to_json(value)"),
        ({"value": "string", "key": "bigint"}, "the column key is bigint, not string; cast it"),
        ({"value": "string", "headers": "map<string,int>"}, "make it a JSON object: to_json(head"),
        ({"value": "string", "node": "binary"}, "the column node is binary"),
        ({"value": "string", "delay_ms": "double"}, "delay_ms is double, not bigint; cast it"),
        ({"value": "string", "deliver_at": "timestamp_ntz"}, "not timestamp; cast it to timestamp"),
    ],
)
def test_columns_of_other_types_are_refused_with_advice(
    types: dict[str, str], message: str
) -> None:
    with pytest.raises(BadColumns) as refusal:
        Columns.of(schema(**types), topic="t")
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("tag", "key"), ("$tag", "key"), ("Key", "key"), ("keys", "key"), ("meta", "headers")),
        *(
            ("header", "headers"),
            ("data", "value"),
            ("Value", "value"),
            ("deliverAt", "deliver_at"),
        ),
    ],
)
def test_a_name_that_probably_means_a_missing_column_is_refused(name: str, meant: str) -> None:
    columns = {"value": "string"} if meant != "value" else {}
    with pytest.raises(BadColumns) as refusal:
        Columns.of(schema(**columns, **{name: "string"}), topic="t")
    assert f"a write has no column {name}; is it {meant}?" in str(refusal.value)


def test_other_columns_are_ignored() -> None:
    others = schema(value="string", key="string", tag="string", id="int", date="date", topics="int")
    assert Columns.of(others, topic="t") == Columns(value=0, key=1)


def test_a_topic_must_be_named_by_the_option_or_a_column() -> None:
    with pytest.raises(BadColumns, match="set the option topic, or add a column topic"):
        Columns.of(schema(value="string"), topic=None)


def test_a_column_that_exists_twice_is_refused() -> None:
    twice = SimpleNamespace(fields=[*schema(value="string").fields, *schema(value="string").fields])
    with pytest.raises(BadColumns, match="there are 2 columns value"):
        Columns.of(twice, topic="t")  # type: ignore[arg-type]
