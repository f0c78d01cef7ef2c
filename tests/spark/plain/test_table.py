"""CSV files: both engines give the same bytes, or refuse with the same line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.spark.plain.both import by_python, by_spark
from topics.spark.plain.rows import NotPlain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pa = pytest.importorskip("pyarrow")
SOME = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# Columns: what is in one of them does not change how another one is read.
INTEGERS = st.integers(-(10**20), 10**20).map(str) | st.sampled_from(["0", "-0", "007", "+5", ""])


FRACTIONS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-(10**8), 10**8, places=4).map(str),
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,2})?\Z"),
    st.sampled_from(["1e400", "0.001", "0.0001", "1e7", "9999999", "NaN", "Infinity", "1d", ""]),
)
TRUTHS = st.sampled_from(["true", "false", "TRUE", ""])
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters='\r\n",'), max_size=6)
QUOTED = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=6).map(
    lambda text: '"' + text.replace('"', '""') + '"'
)
INNER = st.sampled_from(['a"b', 'a""', ' "x"', " x ", "\\", '\\"', "x\\", "\t", "NA", '"NA"', '""'])
ROWS = 6
COLUMNS = st.one_of(
    *(
        st.lists(cells, min_size=ROWS, max_size=ROWS)
        for cells in (INTEGERS, FRACTIONS, TRUTHS, TEXTS, QUOTED, INNER, TEXTS | QUOTED | INNER)
    ),
    st.lists(st.integers(-(10**14), 10**14).map(str), min_size=ROWS, max_size=ROWS),
    st.lists(st.floats(-1e14, 1e14).map(lambda x: f"{x:.3g}"), min_size=ROWS, max_size=ROWS),
)


def as_lines(columns: list[list[str]], end: str) -> bytes:
    head = ",".join(f"c{index}" for index in range(len(columns)))
    return end.join([head, *(",".join(row) for row in zip(*columns, strict=True)), ""]).encode()


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.slow
@SOME
@given(
    st.lists(COLUMNS, min_size=2, max_size=60),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([{}, {"nullValue": "NA"}, {"header": "false"}]),
)
def test_both_engines_make_the_same_records_of_any_columns(
    spark: SparkSession,
    tmp_path: Path,
    columns: list[list[str]],
    end: str,
    options: dict[str, str],
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(as_lines(columns, end))
    assert by_python(path, **options) == by_spark(spark, path, **options)


LINES = st.lists(st.text(st.sampled_from('ab,"\\ \t1\x01é'), max_size=7), min_size=1, max_size=4)


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.slow
@SOME
@given(LINES, st.sampled_from(["a,b", "a", "a,b,c"]))
def test_both_engines_read_or_refuse_any_lines_alike(
    spark: SparkSession, tmp_path: Path, lines: list[str], head: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("\n".join([head, *lines]).encode())
    python, java = by_python(path), by_spark(spark, path)
    # Of several broken lines, Spark tells one.
    assert python == java or (isinstance(python, str) and isinstance(java, str))


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("content", "options"),
    [
        (b"\xef\xbb\xbfa,b\n1,2\n", {}),
        (b"a,b\n\n1,2\n\n\n3,4", {}),
        (b'a\n""\n1\n', {}),
        (b'a;b\n1;"x;y"\n', {"sep": ";"}),
        (b'a,b\n"","NA"\n,NA\n', {"nullValue": "NA"}),
        (b'"a ""b""",\xc3\xa9\n1,2\n', {"tag_column": 'a "b"'}),
        (b"n,t\n1e10,1\n0.5,2\n,3\n", {"tag_column": "n"}),
        (b"n,t\n12345678901234567890,1\n,2\n", {"tag_column": "n"}),
        (b'n,t\n1,"a\tb ""c"" \\ \x1f\x7f"\n', {"tag_column": "t"}),
        (b"a,b\n", {}),
    ],
)
def test_marks_options_and_tags_are_read_alike(
    spark: SparkSession, tmp_path: Path, content: bytes, options: dict[str, str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    python = by_python(path, **options)
    assert python == by_spark(spark, path, **options)
    assert isinstance(python, list)


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "lines",
    [
        [b"a,b", b"1,2", b"3"],
        [b"a", b'"x', b'y"'],
        [b"a,b", b"1,caf\xe9"],
        [b"a", b"1", b"\x01"],
        [b"a\tb", b"1\t2", b"\t"],
        [b'a,"b', b"1,2"],
    ],
)
def test_a_broken_line_is_refused_with_the_same_words(
    spark: SparkSession, tmp_path: Path, lines: list[bytes]
) -> None:
    path = tmp_path / ("rows.tsv" if b"\t" in lines[0] else "rows.csv")
    path.write_bytes(b"\n".join(lines))
    python = by_python(path)
    assert isinstance(python, str)
    assert python == by_spark(spark, path)
    assert ", line " in python


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "without a line"),
        (b"a,a\n1,2\n", "a name twice"),
        (b"a,\n1,2\n", "an empty name"),
        (b"a" + b",b" * 20_000, "more than 20,000 columns"),
        (b"a\n1\n" + b"x" * (13 << 20) + b"\n1\n", "pyarrow cannot read it"),
    ],
)
def test_what_is_left_to_spark(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(NotPlain, match=reason):
        by_python(path)


def test_a_tag_column_that_is_absent_is_left_to_spark(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a\n1\n")
    with pytest.raises(NotPlain, match="'b'"):
        by_python(path, tag_column="b")
