"""Rows become records as they are, and a job id from what they hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.client.stub_server import StubServer
from topics.spark.client.http import Target
from topics.spark.producer import produce
from topics.spark.rows import LINE_MARK, are_lines, quoted, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def target(stub: StubServer) -> Target:
    return Target(url=stub.url, retries=4, backoff_s=0.01, backoff_max_s=0.05)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_every_row_becomes_one_record_verbatim(spark: SparkSession, stub: StubServer) -> None:
    rows = [(1, 'quote " and \\ and é\n', 1.5, None), (2, None, -0.25, "tag 2"), (3, "", 1e300, "")]
    df = spark.createDataFrame(rows, "id long, `a.b` string, x double, tag string")
    summary = produce(
        df.coalesce(1), "t", target=target(stub), tag_column="tag", node="n1", job_id="j"
    )
    assert stub.topics["t"].records == [
        {"data": {"id": 1, "a.b": 'quote " and \\ and é\n', "x": 1.5, "tag": None}},
        {"data": {"id": 2, "a.b": None, "x": -0.25, "tag": "tag 2"}, "tag": "tag 2"},
        {"data": {"id": 3, "a.b": "", "x": 1e300, "tag": ""}, "tag": ""},
    ]
    assert (
        summary.records,
        summary.appended,
        summary.first_seq,
        summary.last_seq,
        summary.agrees,
    ) == (3, 3, 1, 3, True)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_other_rows_are_another_job(spark: SparkSession, stub: StubServer) -> None:
    produce(spark.range(0, 100, 1, 1), "t", target=target(stub))
    summary = produce(spark.range(1, 101, 1, 1), "t", target=target(stub))
    assert (summary.appended, summary.deduped) == (100, 0)


@pytest.mark.parametrize(
    ("name", "literal"), [("id", "`id`"), ("a.b", "`a.b`"), ("a`b", "`a``b`"), ("", "``")]
)
def test_a_name_of_a_column_is_quoted_with_its_dots_and_backticks(name: str, literal: str) -> None:
    assert quoted(name) == literal


@pytest.mark.parametrize(
    ("columns", "metadata", "is_one"),
    [
        (["value"], {LINE_MARK: True}, True),
        (["value"], {}, False),
        (["value", "other"], {LINE_MARK: True}, False),
    ],
)
def test_rows_are_json_lines_when_their_only_column_is_marked(
    columns: list[str], metadata: dict[str, bool], is_one: bool
) -> None:
    schema = [SimpleNamespace(metadata=metadata) for _ in columns]
    frame: Any = SimpleNamespace(columns=columns, schema=schema)
    assert are_lines(frame) is is_one


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
