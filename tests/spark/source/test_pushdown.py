"""Pushdown: which filters become ranges, and why it is off unless it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tests.spark.source.live import Live
from topics.spark.source.data_source import TopicsDataSource
from topics.spark.source.plan import Range, Restriction
from topics.spark.source.pushdown import restrict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPARISONS: dict[Any, Any] = {
    EqualTo: lambda seq, value: seq == value,
    GreaterThan: lambda seq, value: seq > value,
    GreaterThanOrEqual: lambda seq, value: seq >= value,
    LessThan: lambda seq, value: seq < value,
    LessThanOrEqual: lambda seq, value: seq <= value,
}
ENABLED = "spark.sql.python.filterPushdown.enabled"


@given(st.lists(st.tuples(st.sampled_from(list(COMPARISONS)), st.integers(-3, 15)), max_size=4))
def test_a_range_has_exactly_the_offsets_that_the_filters_leave(
    wanted: list[tuple[Any, int]],
) -> None:
    filters = [kind(("offset",), value) for kind, value in wanted]
    restriction, rest = restrict(filters)
    assert rest == []
    part = restriction.apply(Range("s", "t", 0, 12, 7))
    left = [
        seq for seq in range(1, 13) if all(COMPARISONS[kind](seq, value) for kind, value in wanted)
    ]
    assert list(range(part.after + 1, part.last + 1)) == left


def test_topics_are_those_that_every_filter_names() -> None:
    filters: list[Filter] = [In(("topic",), ("a", "b")), EqualTo(("topic",), "b")]
    assert restrict(filters) == (Restriction(topics=frozenset("b")), [])
    assert restrict([EqualTo(("topic",), "x"), *filters])[0].topics == frozenset()


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("key",), "x"),
        Not(EqualTo(("topic",), "x")),
        StringStartsWith(("topic",), "x"),
        EqualTo(("offset",), None),
        EqualTo(("data", "offset"), 3),
        In(("topic",), ("a", None)),
        IsNotNull(("key",)),
    ],
)
def test_other_filters_stay_with_spark(one: Filter) -> None:
    assert restrict([one]) == (Restriction(), [one])


def test_columns_that_are_never_null_need_no_filter() -> None:
    assert restrict([IsNotNull(("offset",)), IsNotNull(("topic",))]) == (Restriction(), [])


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(ENABLED, "true")
    yield spark
    spark.conf.unset(ENABLED)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_pushed_range_is_all_that_is_read(pushing: SparkSession, live: Live) -> None:
    live.make("push.a", 100)
    live.make("push.b", 100)
    pushing.dataSource.register(TopicsDataSource)

    def load(pushdown: str) -> tuple[list[tuple[str, int]], int]:
        df = pushing.read.format("topics").options(
            servers=live.url, subscribe="push.a,push.b", pushdown=pushdown, minPartitions="20"
        )
        some = df.load().where("offset > 90 AND offset <= 95 AND topic = 'push.b' AND value <> ''")
        rows = sorted((row.topic, row.offset) for row in some.collect())
        return rows, some.rdd.getNumPartitions()

    wanted = [("push.b", seq) for seq in range(91, 96)]
    assert load("true") == (wanted, 5)
    assert load("false") == (wanted, 20)


class _Numbers(DataSourceReader):
    """0 to 9, or those above a filter."""

    above = -1

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        for one in filters:
            if isinstance(one, GreaterThan):
                self.above = one.value
            else:
                yield one

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.above)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(partition.value + 1, 10)])


class _NumbersSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers_of_test_pushdown"

    def schema(self) -> str:
        return "x INT"

    def reader(self, schema: object) -> DataSourceReader:
        return _Numbers()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_takes_the_ranges_of_one_query_for_another(pushing: SparkSession) -> None:
    """A defect of Spark 4.3, and the reason why pushdown is off. When this fails, turn it on."""
    pushing.dataSource.register(_NumbersSource)
    df = pushing.read.format("numbers_of_test_pushdown").load()
    assert df.count() == 10
    assert df.where("x > 7").count() == 2
    assert df.count() == 2, "Spark is repaired: it plans each query of a DataFrame by itself"
