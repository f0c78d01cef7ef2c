"""Rows of any columns become rows of the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from topics.spark.rows import quoted, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("name", "literal"), [("id", "`id`"), ("a.b", "`a.b`"), ("a`b", "`a``b`"), ("", "``")]
)
def test_a_name_of_a_column_is_quoted_with_its_dots_and_backticks(name: str, literal: str) -> None:
    assert quoted(name) == literal


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_rows_of_any_columns_become_values_keys_and_topics(spark: SparkSession) -> None:
    df = spark.createDataFrame(
        [(7, None, "a"), (8, "x", None)], "`a.b` long, text string, t string"
    )
    found = records(df, key="a.b", topic="t")
    assert found.columns == ["value", "key", "topic"]
    assert [tuple(row) for row in found.collect()] == [
        ('{"a.b":7,"text":null,"t":"a"}', "7", "a"),
        ('{"a.b":8,"text":"x","t":null}', "8", None),
    ]
    assert records(df).columns == ["value"]
