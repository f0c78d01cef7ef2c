"""JSON lines: both engines give the same bytes, or refuse with the same line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.spark.plain.both import by_python, by_spark
from topics.spark.plain.lines import tags_of
from topics.spark.plain.rows import NotPlain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
TAGS = st.none() | st.booleans() | st.integers(-(10**17), 10**17) | TEXTS
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)
SPACES = st.sampled_from([(", ", ": "), (",", ":"), (" ,\t", " : ")])
ROWS = st.tuples(OBJECTS, TAGS, st.booleans(), SPACES, st.booleans())


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.slow
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(ROWS, min_size=9, max_size=40),
    st.sampled_from(["\n", "\r\n", "\n\n \t\n", "\r"]),
)
def test_both_engines_make_the_same_records_of_any_lines(
    spark: SparkSession, tmp_path: Path, rows: list[Any], end: str
) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [
        json.dumps(
            data | ({"the_tag": tag} if tagged else {}), separators=spaces, ensure_ascii=in_ascii
        )
        for data, tag, tagged, spaces, in_ascii in rows
    ]
    path.write_bytes("".join(line + end for line in lines).encode())
    for tag_column in (None, "the_tag"):
        found = by_python(path, tag_column=tag_column)
        assert found == by_spark(spark, path, tag_column=tag_column)
        assert len(found) == len(rows)


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"a":1}\n{"a":2}',
        b'\n \n{"a":1}\n\x0b\n',
        b'{"a":1}\n{"a":\n',
        b'{"a":1}\n{"a":"\\ud800"}',
        b'{"a":1}\n\x00\n',
        b"",
    ],
)
def test_marks_and_broken_lines_are_treated_alike(
    spark: SparkSession, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(content)
    assert by_python(path) == by_spark(spark, path)


def test_a_tag_is_a_text_an_integer_or_a_truth_value() -> None:
    lines = [
        b'{"t":"x\\u00e9"}',
        b'{"t":-5}',
        b'{"t":true}',
        b'{"t":null}',
        b"{}",
        b'{"a":{"t":1}}',
    ]
    assert tags_of(lines, "t") == ["xé", "-5", "true", None, None, None]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b'{"t":1.5}', "t"),
        (b'{"t":1e5}', "t"),
        (b'{"t":-0}', "t"),
        (b'{"t":12345678901234567890}', "t"),
        (b'{"t":{}}', "t"),
        (b'{"t":[]}', "t"),
        (b'{"t":1,"t":2}', "t"),
        (b'{"t":' + b"[" * 100_000, "t"),
        (b'{"a b":1}', "a b"),
        (b'{"*":1}', "*"),
    ],
)
def test_tags_that_spark_writes_in_a_way_of_its_own_are_left_to_it(line: bytes, name: str) -> None:
    with pytest.raises(NotPlain):
        tags_of([line], name)
