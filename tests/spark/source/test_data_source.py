"""format("topics") in Spark: reads as users write them, against real servers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.source.live import Live
from topics.spark import records
from topics.spark.source.data_source import TopicsDataSource
from topics.spark.source.lag import TopicLag, lags

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
WAIT_S = 60


@pytest.fixture
def registered(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(TopicsDataSource)
    return spark


def load(spark: SparkSession, live: Live, **options: str) -> DataFrame:
    return spark.read.format("topics").options(**{"servers": live.url} | options).load()


def last_line(error: BaseException) -> str:
    """The line of a Python worker's error that people read: the last but Spark's own state."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next(line for line in reversed(lines) if not line.startswith("SQLSTATE"))


def test_records_are_rows(registered: SparkSession, live: Live) -> None:
    live.make("spark.rows", 1)
    before = time.time()
    live.append("spark.rows", [2], tag="k", node="n", meta={"trace": 1})
    df = load(registered, live, subscribe="spark.rows")
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


def test_columns_are_those_of_the_schema_or_the_option(
    registered: SparkSession, live: Live
) -> None:
    live.make("spark.columns", 20)
    named = load(registered, live, subscribe="spark.columns", columns="offset,value")
    assert named.columns == ["offset", "value"]
    reader = registered.read.format("topics").options(servers=live.url, topic="spark.columns")
    given = reader.schema("offset BIGINT, value STRING").load()
    assert given.where("get_json_object(value, '$.id') = offset").count() == 20


def test_from_json_reads_back_what_records_wrote(registered: SparkSession, live: Live) -> None:
    rows = registered.sql(
        "SELECT double('NaN') AS a, float('-Infinity') AS b, map('x', 1, 'y', null) AS c,"
        " timestamp'2024-12-31 23:59:59.123456Z' AS d, decimal('1.10') AS e,"
        " array('\u00e4', null) AS f"
    )
    writer = records(rows).write.format("topics").options(servers=live.url, topic="spark.back")
    writer.mode("append").save()
    kind = rows.schema.simpleString()
    back = load(registered, live, subscribe="spark.back")
    typed = back.selectExpr(f"from_json(value, '{kind}', map('mode', 'FAILFAST')) AS data")
    (found,), (row,) = typed.select("data.*").collect(), rows.collect()
    assert found[1:] == row[1:]
    assert found.a != found.a


def test_mistakes_end_with_a_line_that_says_all(
    registered: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("spark.evicted", 10, cap_records=4)
    lost = {"subscribe": "spark.evicted", "startingOffsets": '{"spark.evicted": 2}'}
    for options, said in (
        ({"subscibe": "a"}, "BadOption: there is no option subscibe; is it subscribe?"),
        ({"subscribe": "spark.absent"}, '"spark.absent": topic_not_found: there is no such topic'),
        ({"subscribe": "a", "servers": "http://127.0.0.1:9"}, "is the server running at this"),
        ({"subscribe": "a", "columns": "offset,foo"}, "option columns names 'foo'"),
        (lost, 'DataLost: topic "spark.evicted" on server http'),
    ):
        with pytest.raises(Exception) as caught:
            load(registered, live, **options).collect()
        assert said in last_line(caught.value), str(caught.value)


def test_a_wrong_key_is_told_and_never_shown(
    registered: SparkSession, tmp_path: Path, locked: Live
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("the-right-key\n")
    bad.write_text("another-secret\n")
    df = load(registered, locked, subscribe="spark.locked", apiKeyFile=str(good))
    assert df.count() == 3
    with pytest.raises(Exception, match="unauthorized") as caught:
        load(registered, locked, subscribe="spark.locked", apiKeyFile=str(bad)).count()
    assert "set TOPICS_API_KEY to one of the server's keys" in last_line(caught.value)
    shown = str(caught.value) + df._jdf.queryExecution().toString()
    assert "another-secret" not in shown
    assert "the-right-key" not in shown


@contextmanager
def streaming(
    spark: SparkSession, live: Live, name: str, checkpoint: Path, **options: str
) -> Iterator[Any]:
    """A writer of a stream into a table in memory, to be started; all queries end."""
    given = {"servers": f"one={live.url}", "startingOffsets": "earliest"} | options
    df = spark.readStream.format("topics").options(**given).load()
    writer = df.select("topic", "offset").writeStream.format("parquet")
    writer = writer.option("path", str(checkpoint.parent / f"{checkpoint.name}.out"))
    try:
        yield writer.queryName(name).option("checkpointLocation", str(checkpoint))
    finally:
        for query in spark.streams.active:
            query.stop()


def written(spark: SparkSession, checkpoint: Path) -> list[int]:
    out = str(checkpoint.parent / f"{checkpoint.name}.out")
    return sorted(row.offset for row in spark.read.parquet(out).collect())


def test_available_now_reads_in_limited_batches_and_goes_on_later(
    registered: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("spark.now", 100)
    limits = {"subscribe": "spark.now", "maxOffsetsPerTrigger": "40"}
    checkpoint = tmp_path / "now"
    with streaming(registered, live, "now", checkpoint, **limits) as writer:
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        found = [lags(progress) for progress in query.recentProgress[:3]]
    assert written(registered, checkpoint) == list(range(1, 101))
    assert [(lag.seq, lag.records) for (lag,) in found] == [(40, 60), (80, 20), (100, 0)]
    assert lags(query.lastProgress)[0] == TopicLag("one", "spark.now", 100, 0, 0)
    live.append("spark.now", range(101, 111))
    with streaming(registered, live, "now", checkpoint, **limits) as writer:
        assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)
    assert written(registered, checkpoint) == list(range(1, 111))
