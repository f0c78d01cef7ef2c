"""Reads and writes of ``format("topics")`` in Spark on a real server."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.live import Live
from topics.spark import records, register
from topics.spark.job_errors import last_line
from topics.spark.sink.columns import BadColumns
from topics.spark.source.lag import TopicLag, lags

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
WAIT_S = 60


def load(spark: SparkSession, live: Live, **options: str) -> DataFrame:
    return spark.read.format("topics").options(**{"servers": live.url} | options).load()


def write(df: DataFrame, live: Live, **options: str) -> None:
    df.write.format("topics").mode("append").options(servers=live.url, **options).save()


def test_records_are_rows(spark: SparkSession, live: Live) -> None:
    live.make("spark.rows", 1)
    before = time.time()
    live.append("spark.rows", [2], tag="k", node="n", meta={"trace": 1})
    df = load(spark, live, subscribe="spark.rows")
    assert df.dtypes == [
        ("key", "string"),
        ("value", "string"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("node", "string"),
        ("headers", "string"),
    ]
    first, second = df.orderBy("offset").collect()
    assert (first.key, first.node, first.headers) == (None, None, None)
    assert (second.key, second.value, second.topic) == ("k", '{"id": 2}', "spark.rows")
    assert (second.partition, second.offset, second.node) == (0, 2, "n")
    assert json.loads(second.headers) == {"trace": 1}
    ((at,),) = df.where("offset = 2").selectExpr("unix_millis(timestamp)").collect()
    assert before - 1 < at / 1000 < time.time() + 1
    reader = spark.read.format("topics").options(servers=live.url, topic="spark.rows")
    given = reader.schema("offset BIGINT, value STRING").load()
    assert given.where("get_json_object(value, '$.id') = offset").count() == 2


def test_rows_of_all_columns_are_read_as_they_were_written(spark: SparkSession, live: Live) -> None:
    df = spark.range(0, 3000, 1, 3).selectExpr(
        "to_json(struct(id, 'é\"' as text)) as value",
        "if(id % 2 = 0, concat('k\"', id), null) as key",
        "concat('spark.t', id % 3) as topic",
        "if(id % 5 = 0, '{\"h\": 1}', null) as headers",
        "if(id % 7 = 0, 'n', null) as node",
        "id as offset",
    )
    write(df, live, batchRecords="300", node="all")
    for number in range(3):
        found = live.read(f"spark.t{number}")
        assert sorted(record["data"]["id"] for record in found) == list(range(number, 3000, 3))
        for record in found:
            row_id = record["data"]["id"]
            assert record["data"]["text"] == 'é"'
            assert record.get("$tag") == (f'k"{row_id}' if row_id % 2 == 0 else None)
            assert record.get("meta") == ({"h": 1} if row_id % 5 == 0 else None)
            assert record["$node"] == ("n" if row_id % 7 == 0 else "all")


def test_texts_and_maps_of_headers_are_read_as_they_were_written(
    spark: SparkSession, live: Live
) -> None:
    df = spark.sql("SELECT 'a\nb' AS value, 'k' AS key, map('a', 'x', 'b', null) AS headers")
    write(df, live, topic="spark.text", valueFormat="text")
    assert live.read("spark.text")[0]["meta"] == {"a": "x", "b": None}
    given = {"servers": live.url, "assign": '{"spark.text": [0]}', "valueFormat": "text"}
    reader = spark.read.format("topics").options(**given)
    found = reader.schema("value BINARY, key BINARY, headers MAP<STRING, STRING>").load().collect()
    assert [tuple(row) for row in found] == [(b"a\nb", b"k", {"a": "x", "b": None})]


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


def test_dates_that_are_keys_of_maps_are_texts(spark: SparkSession) -> None:
    df = spark.sql(
        "SELECT map(DATE'2026-01-31', 1) AS a, array(struct(map(DATE'2026-02-01', DATE'2026-02-02')"
        " AS c)) AS b, map(1, 2) AS d"
    )
    ((value,),) = records(df).collect()
    assert value == '{"a":{"2026-01-31":1},"b":[{"c":{"2026-02-01":"2026-02-02"}}],"d":{"1":2}}'
    with pytest.raises(BadColumns, match="keys of type TIMESTAMP has no JSON; cast them"):
        records(spark.sql("SELECT array(map(now(), 1)) AS a"))


def test_from_json_restores_the_rows_of_records(spark: SparkSession, live: Live) -> None:
    rows = spark.sql(
        "SELECT double('NaN') AS a, float('-Infinity') AS b, map('x', 1, 'y', null) AS c,"
        " timestamp'2024-12-31 23:59:59.123456Z' AS d, decimal('1.10') AS e,"
        " array('\u00e4', null) AS f"
    )
    write(records(rows), live, topic="spark.back")
    kind = rows.schema.simpleString()
    back = load(spark, live, subscribe="spark.back")
    typed = back.selectExpr(f"from_json(value, '{kind}', map('mode', 'FAILFAST')) AS data")
    (found,), (row,) = typed.select("data.*").collect(), rows.collect()
    assert found[1:] == row[1:]
    assert found.a != found.a


def test_sql_names_the_server_of_a_table_in_each_statement(spark: SparkSession, live: Live) -> None:
    given = f"servers = '{live.url}', topic = 'spark.sql'"
    view = given.replace(" =", "")
    spark.sql(f"CREATE TEMPORARY VIEW sql_view USING topics OPTIONS ({view})")
    spark.sql("CREATE TABLE sql_table (value STRING) USING topics")
    try:
        spark.sql("INSERT INTO sql_table WITH (" + given + ") SELECT '1' AS value")
        with pytest.raises(Exception, match="INSERT INTO table WITH"):
            spark.sql("INSERT INTO sql_table SELECT '2' AS value")
        found = spark.sql(f"SELECT value FROM sql_table WITH ({given})").collect()
        assert [row["value"] for row in found] == ["1"]
        assert [row["value"] for row in spark.table("sql_view").collect()] == ["1"]
    finally:
        spark.sql("DROP TABLE sql_table")
        spark.sql("DROP VIEW sql_view")
    assert [record["data"] for record in live.read("spark.sql")] == [1]


def last_message(failure: BaseException) -> str:
    """Return the last line of a Python worker's error, except for Spark's SQLSTATE."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return next(line for line in reversed(lines) if not line.startswith("SQLSTATE"))


def test_invalid_input_is_reported_in_one_line(spark: SparkSession, live: Live) -> None:
    register(spark)  # again
    live.make("spark.evicted", 10, cap_records=4)
    lost = {"subscribe": "spark.evicted", "startingOffsets": '{"spark.evicted": 2}'}
    for options, message in (
        ({"subscibe": "a"}, "BadOption: there is no option subscibe; is it subscribe?"),
        ({"subscribe": "spark.absent"}, '"spark.absent": topic_not_found: there is no such topic'),
        (lost, 'DataLost: topic "spark.evicted" on server http'),  # by a task
    ):
        with pytest.raises(Exception) as failure:
            load(spark, live, **options).collect()
        assert message in last_message(failure.value), str(failure.value)
    df = spark.range(0, 10, 1, 2).selectExpr("concat(id, '}') as value")
    for options, message in (
        ({"jobI": "x"}, "there is no option jobi; is it jobId?"),
        ({}, 'topic "spark.wrong", partition '),  # by a task
    ):
        with pytest.raises(Exception) as failure:
            write(df, live, topic="spark.wrong", **options)
        assert message in last_line(failure.value)
    assert live.read("spark.wrong") == []


def test_a_wrong_key_is_reported_but_never_printed(
    spark: SparkSession, tmp_path: Path, locked: Live
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("the-right-key\n")
    bad.write_text("another-secret\n")
    df = load(spark, locked, subscribe="spark.locked", apiKeyFile=str(good))
    assert df.count() == 3
    with pytest.raises(Exception, match="unauthorized") as failure:
        load(spark, locked, subscribe="spark.locked", apiKeyFile=str(bad)).count()
    assert "TOPICS_API_KEY counts only if it is set before" in last_message(failure.value)
    shown = str(failure.value) + df._jdf.queryExecution().toString()
    assert "another-secret" not in shown
    assert "the-right-key" not in shown


def test_available_now_reads_limited_batches_and_resumes(
    spark: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("spark.now", 100)
    out, given = str(tmp_path / "out"), {"servers": f"one={live.url}", "subscribe": "spark.now"}
    given |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}

    def run() -> StreamingQuery:
        df = spark.readStream.format("topics").options(**given).load().select("offset")
        writer = df.writeStream.format("parquet").option("path", out).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "point")).start()
        try:
            assert query.awaitTermination(WAIT_S)
        finally:
            query.stop()
        return query

    def written() -> list[int]:
        return sorted(row.offset for row in spark.read.parquet(out).collect())

    query = run()
    found = [lags(progress) for progress in query.recentProgress[:3]]
    assert written() == list(range(1, 101))
    assert [(lag.seq, lag.records) for (lag,) in found] == [(40, 60), (80, 20), (100, 0)]
    assert lags(query.lastProgress)[0] == TopicLag("one", "spark.now", 100, 0, 0)
    live.append("spark.now", range(101, 111))
    run()
    assert written() == list(range(1, 111))
