"""Parquet files: both engines give the same bytes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.spark.plain.both import by_python, by_spark
from topics.spark.plain.fractions import check_fractions
from topics.spark.plain.rows import NotPlain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

DAYS = st.dates(date(1582, 10, 15), date(9999, 12, 31))
NAIVE = st.datetimes(datetime(1900, 1, 1), datetime(9999, 12, 30))  # noqa: DTZ001
MOMENTS = NAIVE.map(lambda when: when.replace(tzinfo=UTC))
FLOATS = st.floats(width=32) | st.floats(-1000, 1000, width=32)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
DOUBLES = st.floats() | st.floats(-1e9, 1e9).map(lambda number: round(number, 3))
KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.decimal128(38, 10), st.decimals(-(10**20), 10**20, places=10)),
    (pa.decimal128(9, 0), st.integers(-(10**9) + 1, 10**9 - 1).map(Decimal)),
    (pa.decimal128(12, 9), st.decimals(-1, 1, places=9)),
    (pa.date32(), DAYS),
    (pa.timestamp("us", "UTC"), MOMENTS),
    (pa.timestamp("ms", "Asia/Tokyo"), MOMENTS.map(lambda w: w.replace(microsecond=0))),
    (pa.timestamp("us"), NAIVE),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    (pa.binary(), st.binary(max_size=70)),
    (pa.list_(pa.string()), st.lists(st.none() | TEXTS, max_size=3)),
    (
        pa.map_(pa.string(), pa.timestamp("us", "UTC")),
        st.lists(st.tuples(TEXTS, st.none() | MOMENTS), max_size=3),
    ),
    (
        pa.struct([("a b", pa.int64()), ("é", pa.list_(pa.struct([("x", pa.bool_())])))]),
        st.fixed_dictionaries(
            {
                "a b": st.none() | st.integers(-5, 5),
                "é": st.none()
                | st.lists(
                    st.none() | st.fixed_dictionaries({"x": st.none() | st.booleans()}), max_size=2
                ),
            }
        ),
    ),
]
ROWS = st.lists(st.tuples(*(st.none() | values for _, values in KINDS)), min_size=20, max_size=60)


def write(path: Path, rows: list[tuple[Any, ...]]) -> None:
    arrays = [pa.array([row[index] for row in rows], kind) for index, (kind, _) in enumerate(KINDS)]
    table = pa.table(arrays, names=[f"c {index}" for index in range(len(KINDS))])
    parquet.write_table(table, path, row_group_size=16)


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[*HealthCheck])
@given(ROWS)
def test_both_engines_make_the_same_records_of_any_columns(
    spark: SparkSession, tmp_path: Path, rows: list[tuple[Any, ...]]
) -> None:
    path = tmp_path / "rows.parquet"
    write(path, rows)
    assert by_python(path) == by_spark(spark, path)


def alike(number: float, kind: Any) -> bool:
    """Whether all versions of Java write it in one way."""
    try:
        check_fractions(pa.array([number], kind))
    except NotPlain:
        return False
    return True


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.slow
@settings(max_examples=3, deadline=None, suppress_health_check=[*HealthCheck])
@given(st.lists(st.tuples(DOUBLES, FLOATS), min_size=100, max_size=300))
def test_fractions_are_the_same_numbers_in_the_same_form(
    spark: SparkSession, tmp_path: Path, values: list[tuple[float, float]]
) -> None:
    path = tmp_path / "rows.parquet"
    columns = (
        pa.array([row[0] for row in values if alike(row[0], pa.float64())], pa.float64()),
        pa.array([row[1] for row in values if alike(row[1], pa.float32())], pa.float32()),
    )
    count = min(map(len, columns))
    table = pa.table([column[:count] for column in columns], ["d", "f"])
    parquet.write_table(table, path)
    assert by_python(path) == by_spark(spark, path)


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tag_column", ["s", "d", "day"])
def test_tags_are_the_same_texts(spark: SparkSession, tmp_path: Path, tag_column: str) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table(
        {
            "s": ['a"\t', "", None],
            "i": [1, None, -5],
            "d": [1e10, None, 0.5],
            "b": [True, False, None],
            "day": [date(2024, 1, 2), None, date(1999, 12, 31)],
        }
    )
    parquet.write_table(table, path)
    assert by_python(path, tag_column=tag_column) == by_spark(spark, path, tag_column=tag_column)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array([datetime(2024, 1, 2)], pa.timestamp("ns")), "INT64 Timestamp"),  # noqa: DTZ001
        (pa.array([timedelta(1)], pa.duration("us")), "duration"),
        (pa.array([b"1234"], pa.binary(4)), "FIXED_LEN_BYTE_ARRAY"),
        (pa.array([None], pa.null()), "INT32 Null"),
        (pa.array([date(1582, 10, 14)]), "before 1582-10-15"),
        (pa.array([datetime(1899, 12, 31)], pa.timestamp("us")), "before 1900-01-01"),  # noqa: DTZ001
        (pa.array([[{"x": date(1, 1, 1)}]]), "before 1582-10-15"),
        (pa.array([1e23]), "versions of Java"),
        (pa.array([b"\xff"]).view(pa.string()), "UTF8"),
    ],
)
def test_what_the_two_read_differently_is_left_to_spark(
    tmp_path: Path, column: Any, reason: str
) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table([column], ["c"]), path)
    with pytest.raises(NotPlain, match=reason):
        by_python(path)


def test_what_is_no_parquet_file_and_int96_are_left_to_spark(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"not Parquet at all")
    with pytest.raises(NotPlain, match="pyarrow cannot read it"):
        by_python(path)
    table = pa.table([pa.array([datetime(2024, 1, 2)], pa.timestamp("us"))], ["c"])  # noqa: DTZ001
    parquet.write_table(table, path, use_deprecated_int96_timestamps=True)
    with pytest.raises(NotPlain, match="INT96"):
        by_python(path)


@pytest.mark.parametrize(("tag_column", "reason"), [("x", "not there"), ("l", "type list")])
def test_tags_that_spark_would_refuse_or_show_otherwise_are_left_to_it(
    tmp_path: Path, tag_column: str, reason: str
) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"l": [[1]]}), path)
    with pytest.raises(NotPlain, match=reason):
        by_python(path, tag_column=tag_column)
