"""Typed data in Spark: what its own from_json would say, one line for a misfit, and Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.source.live import Live
from topics.spark import records, register
from topics.spark.errors import JobError, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DDL = (
    "STRUCT<id: BIGINT, small: SMALLINT, ok: BOOLEAN, name: STRING, price: DECIMAL(12,2),"
    " ratio: DOUBLE, at: TIMESTAMP, day: DATE, tags: ARRAY<STRING>, counts: MAP<STRING, INT>,"
    " place: STRUCT<`the city`: STRING, at: ARRAY<STRUCT<x: INT>>>>"
)
VALUES: list[dict[str, Any] | None] = [
    {
        "id": 1 << 60,
        "small": -5,
        "ok": True,
        "name": 'ä"\n',
        "price": 12.5,
        "ratio": 1,
        "at": "2024-12-31T23:59:59.123456+01:00",
        "day": "2024-12-31",
        "tags": ["a", None, "b"],
        "counts": {"x": 1, "y": None},
        "place": {"the city": "Bärn", "at": [{"x": 1}, None, {}]},
        "unknown": [{}],
    },
    None,
    {},
    {"place": None, "tags": [], "counts": {}, "name": None},
    {"place": {"at": None}, "name": {"first": "A"}, "tags": [1, [2]]},
]


def read(spark: SparkSession, live: Live, topic: str, **options: str) -> DataFrame:
    register(spark)
    given = {"servers": live.url, "subscribe": topic, **options}
    if "inferSchema" in options:
        return spark.read.format("topics").options(**given).load()
    schema = f"offset BIGINT, value STRING, data {DDL}"
    return spark.read.format("topics").schema(schema).options(**given).load()


def fill(live: Live, topic: str, values: list[Any]) -> str:
    live.make(topic)
    records = [{"data": value} for value in values]
    body = json.dumps({"records": records}, separators=(",", ":")).encode()
    with live.client() as client:
        client.append(topic, body, len(values), topic)
    return topic


def test_data_is_what_from_json_makes_of_the_value(spark: SparkSession, live: Live) -> None:
    from pyspark.sql import functions as f

    frame = read(spark, live, fill(live, "typed.good", VALUES))
    rows = frame.withColumn("other", f.from_json("value", DDL)).orderBy("offset").collect()
    # from_json makes an object of null members from null; null stays null here.
    assert rows.pop(1)["data"] is None
    assert [row["data"] for row in rows] == [row["other"] for row in rows]
    assert rows[0]["data"]["place"]["at"][0]["x"] == 1


def test_a_misfit_fails_with_one_line_or_is_null(spark: SparkSession, live: Live) -> None:
    topic = fill(live, "typed.bad", [{"id": 1}, {"id": "x"}, {"id": 3}])
    with pytest.raises(JobError) as failed, spark_errors():
        read(spark, live, topic).collect()
    assert str(failed.value) == (
        'topic "typed.bad" offset 2: data is not of the declared type: Expected `int | null`, got'
        " `str` - at `$.id` (declare it STRING, read the column value, or set mode to PERMISSIVE"
        " to get null)"
    )
    rows = read(spark, live, topic, mode="PERMISSIVE").orderBy("offset").collect()
    assert [row["data"] and row["data"]["id"] for row in rows] == [1, None, 3]


def test_inferred_data_goes_to_parquet_and_back(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    values = [{"id": 1, "a": [], "b": {}}, {"id": 2.5, "a": [{"x": None}], "c": {"d": True}}]
    frame = read(spark, live, fill(live, "typed.inferred", values), inferSchema="true")
    assert frame.select("data").schema.simpleString() == (
        "struct<data:struct<id:double,a:array<struct<x:string>>,b:string,c:struct<d:boolean>>>"
    )
    frame.write.parquet(str(tmp_path / "out"))
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").select("data").collect()
    assert [json.loads(json.dumps(row["data"].asDict(recursive=True))) for row in found] == [
        {"id": 1.0, "a": [], "b": "{}", "c": None},
        {"id": 2.5, "a": [{"x": None}], "b": None, "c": {"d": True}},
    ]


def test_what_records_writes_comes_back(spark: SparkSession, live: Live) -> None:
    rows = spark.sql(
        "SELECT double('NaN') AS a, float('-Infinity') AS b, map(1, 'x', -2, null) AS c,"
        " timestamp'9999-12-31 23:59:59.5Z' + interval 1 second AS d, date'9999-12-31' + 1 AS e,"
        " timestamp_ntz'9999-12-31 23:59:59' + interval 1 second AS f"
    )
    register(spark)
    writer = records(rows).write.format("topics").options(servers=live.url, topic="typed.back")
    writer.mode("append").save()
    ddl = rows.schema.simpleString().removeprefix("struct<").removesuffix(">")
    reader = spark.read.format("topics").schema(f"data STRUCT<{ddl}>")
    back = reader.options(servers=live.url, subscribe="typed.back").load().select("data.*")
    shown = "a", "b", "to_json(c)", "unix_micros(d)", "unix_date(e)", "cast(f as string)"
    assert back.selectExpr(*shown).collect()[0][1:] == rows.selectExpr(*shown).collect()[0][1:]
    assert back.where("isnan(a) and isnotnull(d) and isnotnull(e) and isnotnull(f)").count() == 1
