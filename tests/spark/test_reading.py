"""Files arrive as Python's own readers read them, and a line that they would not read refuses the
job.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.spark.client.stub_server import StubServer
from topics.spark.client.http import Target
from topics.spark.errors import JobError
from topics.spark.producer import produce
from topics.spark.reading import check_csv, check_json, format_of, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Load = Callable[..., list[Any]]


@pytest.fixture
def load(spark: SparkSession, stub: StubServer, tmp_path: Path) -> Load:
    """Write a file, load it into a topic of its own, give the records."""

    def load(
        name: str, content: bytes, *, tag_column: str | None = None, **options: str
    ) -> list[Any]:
        topic = f"t{len(stub.topics)}"
        source = tmp_path / name
        source.write_bytes(content)
        target = Target(url=stub.url, retries=1, backoff_s=0.01)
        produce(
            read(spark, str(source), None, options), topic, target=target, tag_column=tag_column
        )
        return stub.topics[topic].records

    return load


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_local_file_is_read_as_files_elsewhere_are(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text('a,b_2,c,d\r\n1,x,"1,5",\r\n\r\n-2, y ,2.5,\r\n,"""",true,\r\n')
    here = read(spark, str(source), None, {})
    there = read(spark, f"{tmp_path}/*.csv", None, {})
    assert here.schema.json() == there.schema.json()
    assert here.collect() == there.collect()
    assert [field.dataType.simpleString() for field in here.schema] == [
        "bigint",
        "string",
        "string",
        "string",
    ]


# What a CSV value may be. Line breaks within quotes need multiLine and have a test of their own.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8)
CELLS = st.one_of(
    TEXTS,
    st.sampled_from(
        [
            '"',
            '""',
            'a"b',
            ",",
            "\\",
            '\\"',
            " x ",
            "007",
            "1d",
            "NaN",
            "2024-01-02T03:04:05.123456789+02:00",
        ]
    ),
)
NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.floats(-1e15, 1e15, allow_nan=False).map(repr),
    st.sampled_from(["1.10", "-0", "1e5", "0.12345678901234567890", "true", "false", ""]),
)


def same(text: str, value: object) -> bool:
    """Whether a record's value is what a CSV field says: a number only if it is that very number, a
    text only if it is that text.
    """
    if value is None or isinstance(value, bool):
        return text == {None: "", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return value == text
    if re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", text) is None:
        return False
    return Decimal(text) == Decimal(repr(value))


def as_csv(rows: list[list[str]]) -> bytes:
    out = io.StringIO()
    # Quotes everything.
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC).writerows(rows)
    return out.getvalue().encode()


FEW = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.slow
@FEW
@given(st.lists(st.tuples(CELLS, CELLS, NUMBERS), min_size=1, max_size=12))
def test_what_pythons_csv_module_reads_is_what_arrives(
    load: Load, rows: list[tuple[str, str, str]]
) -> None:
    content = as_csv([["a", "b c", "n"], *map(list, rows)])
    read_by_python = list(csv.reader(io.StringIO(content.decode(), newline="")))[1:]
    records = load("rows.csv", content, tag_column="b c")
    assert len(records) == len(read_by_python)
    for record, row in zip(records, read_by_python, strict=True):
        assert all(
            same(text, value) for text, value in zip(row, record["data"].values(), strict=True)
        ), (row, record)
        assert record.get("tag", "") == row[1]


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.slow
@FEW
@given(
    st.lists(st.dictionaries(TEXTS, JSON_VALUES, max_size=4), min_size=1, max_size=12),
    st.booleans(),
)
def test_what_pythons_json_module_reads_is_what_arrives(
    load: Load, rows: list[dict[str, Any]], ascii_only: bool
) -> None:
    content = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows).encode()
    assert [record["data"] for record in load("rows.json", content)] == [
        json.loads(line) for line in content.splitlines() if line
    ]


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("values", "read_as"),
    [
        (["1", "-2", ""], [1, -2, None]),
        (["123456789012345678", "1"], [123456789012345678, 1]),
        (["1", "12345678901234567890123"], [1, 12345678901234567890123]),
        (["1", "2.5", "1e-5"], [1.0, 2.5, 1e-5]),
        (["true", "false", ""], [True, False, None]),
        # No one type holds these: they stay what they are.
        (["1", "1.5", "12345678901234567890"], None),
        (["1.5", "1234567890123456"], None),
        (["0.123456789012345678"], None),
        (["900719925474099.37"], None),
        (["366379464625067e2"], None),
        (["1", "true"], None),
        (["1e400"], None),
        (["TRUE"], None),
        (["+5", "5"], None),
        ([" 5"], None),
    ],
)
def test_a_column_is_numbers_only_when_one_type_holds_each_of_them_exactly(
    load: Load, values: list[str], read_as: list[Any] | None
) -> None:
    content = as_csv([["n", "x"], *([value, "x"] for value in values)])
    assert [record["data"]["n"] for record in load("n.csv", content)] == (read_as or values)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_values_that_spark_would_repair_or_guess_arrive_as_written(load: Load) -> None:
    content = (
        b"zip,grade,time,say,price\n"
        b'007,1d,2024-01-02T03:04:05.123456+02:00,"say ""hi""",1.10\n'
        b'008,2F,,"c:\\dir\\",3\n'
    )
    first, second = load("rows.csv", content, tag_column="say")
    time = "2024-01-02T03:04:05.123456+02:00"
    assert first == {
        "data": {"zip": "007", "grade": "1d", "time": time, "say": 'say "hi"', "price": 1.1},
        "tag": 'say "hi"',
    }
    assert second == {
        "data": {"zip": "008", "grade": "2F", "time": None, "say": "c:\\dir\\", "price": 3.0},
        "tag": "c:\\dir\\",
    }


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_json_lines_are_sent_byte_by_byte_and_tagged_by_a_member(load: Load) -> None:
    lines = [
        '{"z":1.10,"a":{},"t":"x\\"y"}',
        '{"t":5, "t2":[1,"two"]}',
        "",
        '{"t":null,"a":1,"A":2}',
    ]
    records = load("rows.ndjson", "\r\n".join(lines).encode(), tag_column="t")
    assert [record["data"] for record in records] == [json.loads(line) for line in lines if line]
    assert [list(record["data"]) for record in records] == [
        ["z", "a", "t"],
        ["t", "t2"],
        ["t", "a", "A"],
    ]
    assert [record.get("tag") for record in records] == ['x"y', "5", None]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_times_of_a_frame_keep_their_microseconds_in_utc(
    spark: SparkSession, stub: StubServer
) -> None:
    df = spark.sql(
        "select timestamp'2024-01-02 03:04:05.123456+02:00' as t,"
        " timestamp_ntz'2024-01-02 03:04:05.123456' as n, date'2024-01-02' as d"
    )
    produce(df, "t", target=Target(url=stub.url))
    data = {
        "t": "2024-01-02T01:04:05.123456Z",
        "n": "2024-01-02T03:04:05.123456",
        "d": "2024-01-02",
    }
    assert stub.topics["t"].records == [{"data": data}]


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "lines", "broken", "reason"),
    [
        ("rows.json", [b'{"a":1}', b'{"a":', b'{"a":3}'], 2, "truncated"),
        ("rows.json", [b'{"a":1}', b"", b'{"a":1} {"a":2}'], 3, "trailing characters"),
        ("rows.json", [b'{"a":1}', b'{"a":"\\ud800"}'], 2, "surrogate"),
        ("rows.json", [b'{"a":"\xe9"}'], 1, "not UTF-8"),
        ("rows.json", [b'[{"a":1}]'], 1, "multiLine=true"),
        ("rows.csv", [b"a,b", b"1,2", b"3"], 3, "1 fields, the header has 2"),
        ("rows.csv", [b"a,b", b"1,2,3"], 2, "3 fields, the header has 2"),
        ("rows.csv", [b"a", b'"x', b'y"'], 2, "multiLine=true"),
        ("rows.csv", [b"a,b", b'1,"x"y'], 2, "expected after"),
        ("rows.csv", [b"a,b", b"1,caf\xe9"], 2, "not UTF-8"),
    ],
)
def test_a_broken_line_refuses_the_job_with_file_and_line_and_nothing_is_appended(
    load: Load,
    stub: StubServer,
    tmp_path: Path,
    name: str,
    lines: list[bytes],
    broken: int,
    reason: str,
) -> None:
    with pytest.raises(JobError) as refused:
        load(name, b"\n".join(lines) + b"\n")
    text = str(refused.value)
    assert text.startswith(f"{tmp_path / name}, line {broken}: ")
    assert reason in text
    assert repr(lines[broken - 1].decode(errors="replace")) in text
    assert "\n" not in text
    assert stub.topics == {}


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_fractions_of_a_document_keep_their_digits(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "a.json"
    source.write_text('[{"a":900719925474099.37},\n {"a":0.5}]')
    df = read(spark, str(source), None, {"multiLine": "true"})
    assert [str(row["a"]) for row in df.collect()] == ["900719925474099.37", "0.50"]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_options_of_the_user_win(load: Load) -> None:
    assert [r["data"] for r in load("a.csv", b"a;b\n1;NA\n", sep=";", nullValue="NA")] == [
        {"a": 1, "b": None}
    ]
    assert [r["data"] for r in load("b.csv", b"1,007\n", header="false", inferSchema="true")] == [
        {"_c0": 1, "_c1": 7}
    ]
    assert [
        r["data"] for r in load("c.csv", b"a,b\n1\n2,3\n", mode="DROPMALFORMED", MULTILINE="true")
    ] == [{"a": 2, "b": 3}]
    assert [r["data"] for r in load("d.csv", b'a,b\n"1\n","x\ny"\n', multiLine="true")] == [
        {"a": "1\n", "b": "x\ny"}
    ]
    assert [r["data"] for r in load("e.csv", b"a\ncaf\xe9\n", encoding="ISO-8859-1")] == [
        {"a": "caf\xe9"}
    ]
    assert [r["data"] for r in load("f.json", b'[{"a":1},\n {"a":2}]', multiLine="true")] == [
        {"a": 1},
        {"a": 2},
    ]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_what_the_check_does_not_see_spark_refuses_and_names_as_far_as_it_tells(
    load: Load, stub: StubServer
) -> None:
    with pytest.raises(JobError, match=r"broken\.csv holds a broken record: '3'$"):
        load("broken.csv", b"a,b\n1,2\n3\n", multiLine="true")
    with pytest.raises(JobError, match=r"holds a broken record$"):
        load("broken.json", b'{"a":1}\n{"a":\n', dateFormat="yyyy")
    assert all(not topic.records for topic in stub.topics.values())


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_other_headers_within_a_folder_are_refused_and_packed_files_are_read(
    load: Load, spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "many.csv"
    folder.mkdir()
    (folder / "1.csv").write_text("a,b\n1,2\n")
    (folder / "2.csv").write_text("b,a\n3,4\n")
    with pytest.raises(JobError, match="header"):
        read(spark, str(folder), None, {}).collect()
    assert [r["data"] for r in load("packed.json.gz", gzip.compress(b'{"a":1}\n'))] == [{"a": 1}]
    with pytest.raises(JobError, match=r"packed\.csv\.gz: it has 1 fields"):
        load("packed.csv.gz", gzip.compress(b"a,b\n1\n"))


def test_the_check_of_a_line_reads_as_python_does() -> None:
    check = check_csv(2, ",")
    assert [check(line) for line in (b"a,b", b'"a,""",', b"", b"x,\xc3\xa9")] == [None] * 4
    assert all(check(line) for line in (b"a", b"a,b,c", b'a,"b', b'a,"b"c', b"a,\xe9", b"  "))
    assert check_csv(1, ",")(b"  ")
    assert [check_json(line) for line in (b"{}", b" ", b'{"a":[1e400,{}]}'[:0], b'{"a":1} ')] == [
        None
    ] * 4
    assert all(
        check_json(line)
        for line in (
            b"5",
            b"[]",
            b"{",
            b"{'a':1}",
            b'{"a":NaN}',
            b"{}{}",
            b'{"a":"\xff"}',
            b"[" * 100_000,
        )
    )


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("a/b.csv.gz", "csv"),
        ("b.tsv", "csv"),
        ("x.ndjson", "json"),
        ("s3://b/x.JSONL", "json"),
        ("dir", "parquet"),
        ("v1.2", "parquet"),
    ],
)
def test_the_format_follows_the_suffix(source: str, form: str) -> None:
    assert format_of(source) == form
