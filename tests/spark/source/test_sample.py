"""Sample: the columns of a read, and the type of its data."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType

from tests.spark.source.live import Live
from topics.spark.source.columns import TYPES
from topics.spark.source.connection import BadOption, ServerError
from topics.spark.source.options import ReadOptions
from topics.spark.source.sample import schema_of


def options(live: Live, **given: str) -> ReadOptions:
    return ReadOptions.parse({"servers": live.url, **given}, "either")


def test_all_columns_or_those_that_are_named_in_their_order(live: Live) -> None:
    assert schema_of(options(live, subscribe="nobody.asks")).names == list(TYPES)
    named = schema_of(options(live, subscribe="nobody.asks", columns="offset,value"))
    assert named.names == ["offset", "value"]
    with pytest.raises(BadOption, match="option columns names 'offsets'; there are: key, value"):
        schema_of(options(live, subscribe="nobody.asks", columns="offsets"))
    with pytest.raises(BadOption, match="option columns names 'key' twice"):
        schema_of(options(live, subscribe="nobody.asks", columns="key,offset,key"))


def test_data_takes_the_place_of_value_when_its_type_is_inferred(live: Live) -> None:
    live.make("sample.typed", 3)
    schema = schema_of(options(live, subscribe="sample.typed", inferSchema="true"))
    assert schema.names == ["data" if name == "value" else name for name in TYPES]
    assert schema["data"].dataType.simpleString() == "struct<id:bigint>"
    both = options(live, subscribe="sample.typed", inferSchema="true", columns="value,data")
    assert schema_of(both).names == ["value", "data"]


def test_records_are_not_looked_at_when_data_is_not_wanted(live: Live) -> None:
    given = options(live, subscribe="sample.absent", inferSchema="true", columns="offset")
    assert schema_of(given)["offset"].dataType == LongType()
    with pytest.raises(ServerError, match="topic_not_found"):
        schema_of(options(live, subscribe="sample.absent", inferSchema="true"))


def test_data_without_inference_needs_a_schema(live: Live) -> None:
    with pytest.raises(BadOption, match="inferSchema=true"):
        schema_of(options(live, subscribe="sample.absent", columns="data"))
