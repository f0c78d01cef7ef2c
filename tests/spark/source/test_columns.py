"""The conversion of records to the Arrow batch that Spark expects."""

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
    "BINARY": t.BinaryType(),
    "MAP": t.MapType(t.StringType(), t.StringType()),
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
    """Return the struct of ``key STRING NOT NULL, offset BIGINT``, without a JVM."""
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


def test_each_column_contains_a_field_of_the_record() -> None:
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


def test_columns_are_in_the_order_of_the_schema() -> None:
    assert [*rows("offset BIGINT, value STRING", PLAIN)[0].items()] == [
        ("offset", 7),
        ("value", '{"id": 1}'),
    ]


def test_a_page_without_records_is_a_batch_without_rows() -> None:
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
def test_tags_and_meta_are_requested_only_for_their_columns(
    ddl: str, tags: bool, meta: bool
) -> None:
    columns = Columns(struct_of(ddl))
    assert (columns.needs_tags, columns.needs_meta) == (tags, meta)


def test_columns_can_be_pickled() -> None:
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
    ("ddl", "message"),
    [
        ("offst BIGINT", "there is no column offst; the columns are key, value"),
        ("offset INT", "the column offset is BIGINT, not INT"),
        ("headers INT", "the column headers is STRING or MAP<STRING,STRING>, not INT"),
        ("value STRING, value STRING", "the schema has the column value twice"),
        ("key STRING NOT NULL", "the column key may be null"),
        ("data STRUCT<>", "there is no column data.* from_json makes others of value"),
    ],
)
def test_an_invalid_schema_is_refused(ddl: str, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        Columns(struct_of(ddl))


def test_headers_may_be_a_map() -> None:
    meta = b'{"a": "x\\ny", "b": [1, "2"], "c": null, "d": 1.50}'
    other = Record(seq=9, ts=TS, data=Raw(b"1"), meta=Raw(meta))
    empty = Record(seq=10, ts=TS, data=Raw(b"1"), meta=Raw(b"{}"))
    found = [row["headers"] for row in rows("headers MAP", PLAIN, other, empty)]
    members = [("a", "x\ny"), ("b", '[1, "2"]'), ("c", None), ("d", "1.50")]
    assert found == [None, members, []]
    assert rows("headers MAP", PLAIN) == [{"headers": None}]


def test_texts_are_the_contents_of_strings() -> None:
    data = [b'"say \\"a\\""', b"null", b'{"a": "b"}', b"1.0", b'"null"']
    records = [Record(seq=seq, ts=TS, data=Raw(text)) for seq, text in enumerate(data)]
    texts = ['say "a"', None, '{"a": "b"}', "1.0", "null"]
    columns = Columns(struct_of("value STRING"), text=True)
    assert columns.batch(records, "orders", 0, 1).column(0).to_pylist() == texts
    columns = Columns(struct_of("value BINARY"), text=True)
    found = columns.batch(records, "orders", 0, 1).column(0).to_pylist()
    assert found == [None if text is None else text.encode() for text in texts]
    with pytest.raises(BadOption, match="the column value may be null"):
        Columns(struct_of("value STRING NOT NULL"), text=True)


def test_keys_and_values_may_be_binary() -> None:
    assert rows("key BINARY, value BINARY", PLAIN, FULL) == [
        {"key": None, "value": b'{"id": 1}'},
        {"key": "k\u00e4".encode(), "value": b"null"},
    ]


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(BadOption, match="the schema has no column"):
        Columns(t.StructType([]))


def test_the_schema_has_all_columns_or_the_named_ones_in_order() -> None:
    assert schema_of(()) == struct_of(SCHEMA)
    assert schema_of(("epoch",)) == struct_of("epoch BIGINT")
    assert schema_of(("value", "offset")) == struct_of("value STRING, offset BIGINT")
    with pytest.raises(BadOption, match="option columns names 'offsets'; there are: key, value"):
        schema_of(("offsets",))
