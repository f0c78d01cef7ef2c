"""Typed data: what comes out is what Python's json says, or a misfit."""

from __future__ import annotations

import datetime
import decimal
import json
from math import inf, isnan
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from pyspark.sql.pandas.types import to_arrow_type

from tests.spark.source.ddl import type_of
from topics.spark.source.connection import BadOption
from topics.spark.source.typed import TypedParser

UTC = datetime.UTC
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
DAY = datetime.date(2024, 12, 31)
# A DDL type and what Python makes of values that fit it.
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "BIGINT": INT64,
    "TINYINT": st.integers(-128, 127),
    "DOUBLE": st.floats(allow_nan=False, allow_infinity=False),
    "BOOLEAN": st.booleans(),
    "STRING": st.text(),
}
MIXED = st.none() | st.booleans() | st.integers() | SCALARS["DOUBLE"] | st.text()


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 2) -> tuple[str, st.SearchStrategy[Any]]:
    """A type, and the values that it has."""
    shape = draw(st.sampled_from(["scalar", "array", "map", "struct"] if depth else ["scalar"]))
    if shape == "scalar":
        name = draw(st.sampled_from(sorted(SCALARS)))
        return name, st.none() | SCALARS[name]
    if shape == "struct":
        members = draw(st.lists(typed_values(depth=depth - 1), min_size=1, max_size=3))
        ddl = ", ".join(f"`m {number}`: {kind}" for number, (kind, _) in enumerate(members))
        values = {f"m {number}": value for number, (_, value) in enumerate(members)}
        return f"STRUCT<{ddl}>", st.none() | st.fixed_dictionaries(values)
    inner, value = draw(typed_values(depth=depth - 1))
    if shape == "array":
        return f"ARRAY<{inner}>", st.none() | st.lists(value, max_size=4)
    return f"MAP<STRING, {inner}>", st.none() | st.dictionaries(st.text(), value, max_size=4)


def parse(ddl: str, *texts: str | bytes, misfits: list[tuple[int, str]] | None = None) -> list[Any]:
    kind = type_of(ddl)
    arrow = to_arrow_type(kind, timezone="UTC")
    found: list[tuple[int, str]] = []
    values = [Raw(text.encode() if isinstance(text, str) else text) for text in texts]
    array = TypedParser("data", kind, arrow).parse(values, lambda *misfit: found.append(misfit))
    assert isinstance(array, pa.Array)
    assert array.type == arrow
    array.validate(full=True)
    if misfits is None:
        assert found == []
    else:
        misfits += found
    rows: list[Any] = array.to_pylist(maps_as_pydicts="strict")
    return rows


@given(st.data(), typed_values())
def test_values_of_the_type_are_what_json_says(
    data: st.DataObject, case: tuple[str, st.SearchStrategy[Any]]
) -> None:
    ddl, values = case
    wanted = data.draw(st.lists(values, max_size=5))
    texts = [json.dumps(value, indent=data.draw(st.sampled_from([None, 1]))) for value in wanted]
    assert parse(ddl, *texts) == [json.loads(text) for text in texts]


@given(st.lists(st.fixed_dictionaries({"a": MIXED, "n": INT64})))
def test_a_string_is_the_json_of_what_is_no_string(values: list[dict[str, Any]]) -> None:
    found = parse("STRUCT<n: BIGINT, a: STRING>", *map(json.dumps, values))
    assert found == [
        {
            "n": value["n"],
            "a": value["a"]
            if value["a"] is None or isinstance(value["a"], str)
            else json.dumps(value["a"]),
        }
        for value in values
    ]


@given(st.lists(st.integers(0, 1).map(bool), max_size=40))
def test_every_misfit_is_told_once_in_order_and_is_null(fits: list[bool]) -> None:
    misfits: list[tuple[int, str]] = []
    texts = [f'{{"a":{number}}}' if fit else '{"a":[]}' for number, fit in enumerate(fits)]
    found = parse("STRUCT<a: BIGINT>", *texts, misfits=misfits)
    assert found == [{"a": number} if fit else None for number, fit in enumerate(fits)]
    assert [index for index, _ in misfits] == [n for n, fit in enumerate(fits) if not fit]


@pytest.mark.parametrize(
    ("ddl", "text", "value"),
    [
        ("STRUCT<a: INT, b: STRING>", '{"b":"x","z":[{}],"a":1,"a":2}', {"a": 2, "b": "x"}),
        ("STRUCT<a: INT>", "{}", {"a": None}),
        ("STRUCT<a: STRUCT<b: INT>>", '{"a":null}', {"a": None}),
        ("DOUBLE", "1", 1.0),
        ("FLOAT", "-3.4028234663852886e38", -3.4028234663852886e38),
        ("DECIMAL(20,2)", "123456789012345678.9", decimal.Decimal("123456789012345678.90")),
        ("DECIMAL(5,2)", '"1.1"', decimal.Decimal("1.10")),
        ("BINARY", '"aGk="', b"hi"),
        ("DATE", '"2024-12-31"', datetime.date(2024, 12, 31)),
        (
            "TIMESTAMP",
            '"2024-12-31T23:59:59.5+01:00"',
            datetime.datetime(2024, 12, 31, 22, 59, 59, 500_000, UTC),
        ),
        (
            "TIMESTAMP_NTZ",
            '"2024-12-31T23:59:59.000001"',
            datetime.datetime(2024, 12, 31, 23, 59, 59, 1),  # noqa: DTZ001
        ),
        ("STRING", '{"a" : [1,\n2]}', '{"a" : [1,\n2]}'),
        ("ARRAY<STRING>", '["\\u00e4\\n", 1.50, null]', ["\u00e4\n", "1.50", None]),
        ("MAP<STRING, ARRAY<INT>>", '{"a":[1],"b":null}', {"a": [1], "b": None}),
        ("MAP<INT, STRING>", '{"1":"a","-2":3}', {1: "a", -2: "3"}),
        ("ARRAY<DOUBLE>", '[1,"Infinity",null,"-Infinity"]', [1, inf, None, -inf]),
        ("STRUCT<a: FLOAT>", '{"a":"-Infinity"}', {"a": -inf}),
        ("STRUCT<d: DATE, s: STRING>", '{"d":"2024-12-31","s":1}', {"d": DAY, "s": "1"}),
    ],
)
def test_a_value_that_fits(ddl: str, text: str, value: object) -> None:
    assert parse(ddl, text, "null") == [value, None]


@pytest.mark.parametrize(
    ("ddl", "text", "reason"),
    [
        ("STRUCT<a: INT>", "[1]", "Expected `object | null`, got `array` - at `$`"),
        ("STRUCT<a: INT>", '{"a":1.0}', "Expected `int | null`, got `float` - at `$.a`"),
        ("STRUCT<a: INT>", '{"a":true}', "Expected `int | null`, got `bool` - at `$.a`"),
        ("STRUCT<a: INT NOT NULL>", "{}", "Object missing required field `a` - at `$`"),
        ("TINYINT", "300", "Value 300 too large to fit in C integer type"),
        ("BIGINT", "9223372036854775808", "too large"),
        ("DOUBLE", "1e400", "Number out of range - at `$`"),
        ("FLOAT", "1e39", "Number out of range of a FLOAT"),
        ("STRUCT<a: ARRAY<FLOAT>>", '{"a":[1,null,-1e39]}', "Number out of range of a FLOAT"),
        ("DECIMAL(5,2)", "1.005", "Rescaling Decimal value would cause data loss"),
        ("TIMESTAMP", '"2024-12-31T23:59:59"', "Expected `datetime` with a timezone component"),
        ("DATE", '"31.12.2024"', "Invalid RFC3339 encoded date - at `data`"),
        ("TIMESTAMP", '"+99999999-01-01T00:00:00Z"', "Invalid RFC3339 encoded datetime"),
        ("DOUBLE", '"nan"', "Invalid enum value"),
        ("ARRAY<FLOAT>", '[1e39,"Infinity"]', "Number out of range of a FLOAT"),
        ("MAP<TINYINT, INT>", '{"300":1}', "Value 300 too large to fit in C integer type"),
        ("MAP<INT, INT>", '{"x":1}', "Expected `int`, got `str`"),
        ("STRING", '"\\ud800"', "truncated"),
        ("STRING", b'"\xff"', "can't decode byte 0xff"),
        ("ARRAY<INT>", "[1,[" * 2000 + "]]" * 2000, "array"),
    ],
)
def test_a_misfit_has_its_reason(ddl: str, text: str | bytes, reason: str) -> None:
    misfits: list[tuple[int, str]] = []
    assert parse(ddl, "null", text, misfits=misfits) == [None, None]
    assert [index for index, _ in misfits] == [1]
    assert reason in misfits[0][1]


def test_what_to_json_writes_for_no_number_comes_back() -> None:
    (row,) = parse("STRUCT<a: DOUBLE, b: FLOAT, c: INT>", '{"a":"NaN","b":"NaN","c":1}')
    assert (isnan(row["a"]), isnan(row["b"]), row["c"]) == (True, True, 1)


@given(st.datetimes(timezones=st.just(UTC)), st.sampled_from([-400, 0, 400, 8000, 280_000]))
def test_moments_of_any_year_come_back(moment: datetime.datetime, years: int) -> None:
    year = moment.year + years
    shown = f"{year:04d}" if 0 < year < 10_000 else f"{year:+05d}"
    rest = moment.isoformat()[4:]
    days = years // 400 * 146_097
    values = [Raw(f'{{"t":"{shown}{rest}","d":"{shown}{rest[:6]}"}}'.encode())]
    arrow = to_arrow_type(kind := type_of("STRUCT<t: TIMESTAMP, d: DATE>"), timezone="UTC")
    found = TypedParser("data", kind, arrow).parse(values, lambda *misfit: pytest.fail(str(misfit)))
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=UTC)
    micros = since // datetime.timedelta(microseconds=1) + days * 86_400_000_000
    assert found.field("t").cast(pa.int64()).to_pylist() == [micros]
    assert found.field("d").cast(pa.int32()).to_pylist() == [since.days + days]


def test_members_that_may_not_be_null_stay_so() -> None:
    ddl = "STRUCT<a: INT NOT NULL, b: STRUCT<c: STRING NOT NULL>>"
    assert parse(ddl, '{"a":1,"b":null}', '{"a":2,"b":{"c":"x"}}', "null") == [
        {"a": 1, "b": None},
        {"a": 2, "b": {"c": "x"}},
        None,
    ]
    misfits: list[tuple[int, str]] = []
    assert parse(ddl, '{"a":null}', '{"a":1,"b":{"c":null}}', misfits=misfits) == [None, None]
    assert len(misfits) == 2


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("STRUCT<>", "data is a STRUCT without fields"),
        ("STRUCT<a: INT, b: STRUCT<c: INT, c: INT>>", "data.b has the field c twice"),
        ("ARRAY<INTERVAL DAY>", r"data\[\] is INTERVAL DAY, which no JSON value is read as"),
        ("MAP<DOUBLE, INT>", "data is MAP<DOUBLE,INT>, which no JSON value is read as"),
    ],
)
def test_a_type_that_json_has_not_is_refused(ddl: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        parse(ddl)
