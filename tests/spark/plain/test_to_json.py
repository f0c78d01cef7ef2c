"""JSON text of Arrow columns, in Spark's own forms; `test_columns` compares it with Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.plain.rows import NotPlain
from topics.spark.plain.to_json import json_text, quote, records

pa = pytest.importorskip("pyarrow")
WHEN = datetime(2024, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (pa.bool_(), [True, False], ["true", "false"]),
        (pa.uint64(), [2**64 - 1, 0], ["18446744073709551615", "0"]),
        (pa.float32(), [0.1, 1e10], ["0.1", "1.0E10"]),
        (pa.float64(), [0.0, -0.0, 1e7], ["0.0", "-0.0", "1.0E7"]),
        (pa.decimal128(9, 7), [Decimal("0.0000001"), Decimal(1)], ["1E-7", "1.0000000"]),
        (pa.date32(), [date(2024, 1, 2)], ['"2024-01-02"']),
        (pa.timestamp("us", "UTC"), [WHEN], ['"2024-01-02T03:04:05.123456Z"']),
        (pa.timestamp("us", "Europe/Berlin"), [WHEN], ['"2024-01-02T03:04:05.123456Z"']),
        (pa.timestamp("ms"), [datetime(2024, 1, 2)], ['"2024-01-02T00:00:00.000000"']),  # noqa: DTZ001
        (pa.string(), ['é"\\/\x1f\x7f\n', ""], ['"é\\"\\\\/\\u001F\x7f\\n"', '""']),
        (pa.binary(), [b"\x00\xff?"], ['"AP8/"']),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "a"], ['"a"', '"a"']),
        (pa.list_(pa.int64()), [[1, None], []], ["[1,null]", "[]"]),
        (pa.map_(pa.string(), pa.int8()), [[("b", 1), ("a", None)]], ['{"b":1,"a":null}']),
        (
            pa.struct([("x", pa.int8()), ('"', pa.list_(pa.string()))]),
            [{"x": 1, '"': ["a"]}, {"x": None, '"': None}],
            ['{"x":1,"\\"":["a"]}', '{"x":null,"\\"":null}'],
        ),
    ],
)
def test_a_column_is_written_as_spark_does(kind: Any, values: list[Any], texts: list[str]) -> None:
    assert json_text(pa.array([*values, None], kind)).to_pylist() == [*texts, "null"]
    # A slice of a column is a column.
    assert json_text(pa.array([None, *values], kind).slice(1)).to_pylist() == texts


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.time64("us"),
        pa.duration("s"),
        pa.decimal256(40, 0),
        pa.list_(pa.time32("s")),
        pa.struct([]),
        pa.map_(pa.int64(), pa.string()),
    ],
)
def test_other_types_are_left_to_spark(kind: Any) -> None:
    with pytest.raises(NotPlain):
        json_text(pa.array([], kind))


@given(st.text())
def test_a_string_is_what_json_reads(text: str) -> None:
    assert json.loads(quote(text)) == text


def test_a_record_has_its_data_its_tag_and_a_comma() -> None:
    columns = [pa.array(["1", "2"]), pa.array(["null", '"x"'])]
    tag = pa.array(["t\t", None])
    assert records(["a", 'b"'], columns, tag).to_pylist() == [
        '{"data":{"a":1,"b\\"":null},"tag":"t\\t"},',
        '{"data":{"a":2,"b\\"":"x"}},',
    ]
    assert records(["a"], columns[:1], None).to_pylist()[0] == '{"data":{"a":1}},'
