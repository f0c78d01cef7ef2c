"""Columns: records become exactly the Arrow batch that Spark expects."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from topics.spark.client.http import Record
from topics.spark.source.columns import Columns, schema_of
from topics.spark.source.connection import BadOption

SCHEMA = (
    "key STRING, value STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " node STRING, headers STRING"
)
TYPES = {
    "STRING": t.StringType(),
    "INT": t.IntegerType(),
    "BIGINT": t.LongType(),
    "TIMESTAMP": t.TimestampType(),
    "STRUCT<>": t.StructType([]),
}
TS = 1_748_450_000_123
PLAIN = Record(seq=7, ts=TS, data=Raw(b'{"id": 1}'))
FULL = Record(seq=8, ts=TS, data=Raw(b"null"), node="n", tag="k\u00e4", meta=Raw(b'{"a":1}'))

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def struct_of(ddl: str) -> t.StructType:
    """The struct of ``key STRING NOT NULL, offset BIGINT``, without a JVM."""
    fields = [field.split(" ", 2) for field in ddl.split(", ")]
    return t.StructType([t.StructField(name, TYPES[kind], not no) for name, kind, *no in fields])


def rows(ddl: str, *records: Record) -> list[dict[str, Any]]:
    batch = Columns(struct_of(ddl)).batch(records, "orders", 3, 9)
    batch.validate(full=True)
    assert batch.schema == to_arrow_schema(struct_of(ddl), timezone="UTC")
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_the_epoch_is_a_column_if_it_is_named() -> None:
    assert rows("epoch BIGINT, offset BIGINT", PLAIN) == [{"epoch": 9, "offset": 7}]


def test_all_columns_of_a_record() -> None:
    plain, full = rows(SCHEMA, PLAIN, FULL)
    assert full.pop("timestamp") == plain.pop("timestamp")
    assert plain == {
        "key": None,
        "value": '{"id": 1}',
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "node": None,
        "headers": None,
    }
    assert full == {
        "key": "k\u00e4",
        "value": "null",
        "topic": "orders",
        "partition": 3,
        "offset": 8,
        "node": "n",
        "headers": '{"a":1}',
    }


def test_a_timestamp_is_utc_with_its_milliseconds() -> None:
    batch = Columns(struct_of("timestamp TIMESTAMP")).batch([PLAIN], "orders", 0, 1)
    assert batch.column(0).type == pa.timestamp("us", "UTC")
    assert batch.column(0)[0].value == TS * 1000


def test_columns_come_in_the_order_of_the_schema() -> None:
    assert [*rows("offset BIGINT, value STRING", PLAIN)[0].items()] == [
        ("offset", 7),
        ("value", '{"id": 1}'),
    ]


def test_a_page_of_no_records_is_a_batch_of_no_rows() -> None:
    assert rows(SCHEMA) == []


@pytest.mark.parametrize(
    ("ddl", "tags", "meta"),
    [
        (SCHEMA, True, True),
        ("offset BIGINT", False, False),
        ("key STRING", True, False),
        ("headers STRING", False, True),
    ],
)
def test_tags_and_meta_are_needed_for_their_columns_alone(ddl: str, tags: bool, meta: bool) -> None:
    columns = Columns(struct_of(ddl))
    assert (columns.needs_tags, columns.needs_meta) == (tags, meta)


def test_columns_travel_to_executors() -> None:
    columns = pickle.loads(pickle.dumps(Columns(struct_of("offset BIGINT"))))
    assert columns.batch([PLAIN], "orders", 0, 1).to_pylist() == [{"offset": 7}]


@given(st.lists(JSON, min_size=1), st.booleans())
def test_values_are_the_data_as_it_was_written(values: list[Any], ascii_only: bool) -> None:
    texts = [json.dumps(value, ensure_ascii=ascii_only, indent=1) for value in values]
    records = [
        Record(seq=seq, ts=seq, data=Raw(text.encode())) for seq, text in enumerate(texts, 1)
    ]
    assert [row["value"] for row in rows("value STRING", *records)] == texts


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("offst BIGINT", "there is no column offst; the columns are key, value"),
        ("offset INT", "the column offset is BIGINT, not INT"),
        ("value STRING, value STRING", "the column value is wanted twice"),
        ("key STRING NOT NULL", "the column key may be null"),
        ("data STRUCT<>", "there is no column data.* from_json makes others of value"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(ddl: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        Columns(struct_of(ddl))


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(BadOption, match="no column is wanted"):
        Columns(t.StructType([]))


def test_all_columns_or_those_that_are_named_in_their_order() -> None:
    assert schema_of(()) == struct_of(SCHEMA)
    assert schema_of(("epoch",)) == struct_of("epoch BIGINT")
    assert schema_of(("value", "offset")) == struct_of("value STRING, offset BIGINT")
    with pytest.raises(BadOption, match="option columns names 'offsets'; there are: key, value"):
        schema_of(("offsets",))
