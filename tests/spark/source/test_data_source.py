"""format("topics") in Spark: reads as users write them, against real servers."""

from __future__ import annotations

import json
import threading
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
    from pyspark.sql.streaming.query import StreamingQuery

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


def test_a_view_in_sql_reads_topics(registered: SparkSession, live: Live) -> None:
    live.make("spark.sql", 10)
    registered.sql(
        "CREATE OR REPLACE TEMPORARY VIEW records USING topics OPTIONS"
        f" (servers '{live.url}', subscribe 'spark.sql', minPartitions '3')"
    )
    (row,) = registered.sql("SELECT count(*) AS n, max(offset) AS last FROM records").collect()
    assert (row.n, row.last) == (10, 10)


def test_a_dataframe_stays_as_it_was_first_read(registered: SparkSession, live: Live) -> None:
    from pyspark.sql import functions as f

    live.make("spark.fixed", 10)
    df = load(registered, live, subscribe="spark.fixed", columns="offset")
    assert df.count() == 10
    live.append("spark.fixed", [11])
    assert df.count() == 10
    assert df.join(df.selectExpr("offset AS other"), f.expr("offset = 1")).count() == 10
    assert load(registered, live, subscribe="spark.fixed").count() == 11


def test_an_empty_topic_has_no_rows(registered: SparkSession, live: Live) -> None:
    live.make("spark.empty")
    assert load(registered, live, subscribe="spark.empty").collect() == []


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


def wait_for(done: Any, query: StreamingQuery) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)


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


def test_a_batch_that_was_not_committed_is_read_again_as_it_was(
    registered: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("spark.replay", 10)
    seen: dict[int, list[list[int]]] = {}

    def note(df: DataFrame, batch: int) -> None:
        seen.setdefault(batch, []).append(sorted(row.offset for row in df.collect()))

    def run() -> None:
        df = registered.readStream.format("topics").options(
            servers=f"one={live.url}", subscribe="spark.replay", startingOffsets="earliest"
        )
        writer = df.load().writeStream.foreachBatch(note).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "replay")).start()
        try:
            assert query.awaitTermination(WAIT_S)
        finally:
            query.stop()

    run()
    (tmp_path / "replay/commits/0").unlink()
    (tmp_path / "replay/commits/.0.crc").unlink(missing_ok=True)
    live.append("spark.replay", [11, 12])
    run()
    assert seen == {0: [list(range(1, 11))] * 2, 1: [[11, 12]]}


def test_a_query_outlives_a_kill_of_the_server(
    registered: SparkSession, mortal: Live, tmp_path: Path
) -> None:
    mortal.make("spark.kill", 100)
    checkpoint = tmp_path / "kill"
    options = {"subscribe": "spark.kill", "maxOffsetsPerTrigger": "60", "columns": "topic,offset"}
    with streaming(registered, mortal, "kill", checkpoint, **options) as writer:
        query = writer.trigger(processingTime="100 milliseconds").start()
        wait_for(lambda: query.lastProgress is not None, query)
        mortal.server.kill()
        again = threading.Timer(1.5, mortal.server.start)
        again.start()
        again.join()
        mortal.append("spark.kill", range(101, 151))
        wait_for(lambda: _read_to(query) == 150, query)
    assert written(registered, checkpoint) == list(range(1, 151))


def _read_to(query: StreamingQuery) -> int:
    return max((lag.seq for lag in lags(query.lastProgress)), default=0)


def test_a_pattern_finds_new_topics_while_one_of_two_servers_is_down(
    registered: SparkSession, live: Live, mortal: Live, tmp_path: Path
) -> None:
    servers = f"a={live.url},b={mortal.url}"
    live.make("spark.two.a", 5)
    mortal.make("spark.two.b", 5)
    checkpoint = tmp_path / "two"
    pattern = {"servers": servers, "subscribePattern": r"spark\.two\..*"}
    with streaming(registered, live, "two", checkpoint, **pattern) as writer:
        query = writer.start()
        wait_for(lambda: len(lags(query.lastProgress)) == 2, query)
        mortal.server.kill()
        live.make("spark.two.new", 3)
        wait_for(lambda: len(lags(query.lastProgress)) == 3 and _behind(query) == 0, query)
        mortal.server.start()
        mortal.append("spark.two.b", [6])
        wait_for(lambda: _seqs(query).get("spark.two.b") == 6, query)
    assert written(registered, checkpoint) == sorted([*range(1, 6), *range(1, 7), 1, 2, 3])


def _seqs(query: StreamingQuery) -> dict[str, int]:
    return {lag.topic: lag.seq for lag in lags(query.lastProgress)}


def _behind(query: StreamingQuery) -> int:
    return sum(lag.records for lag in lags(query.lastProgress))


def test_a_loss_ends_a_query_with_a_line_that_says_all(
    registered: SparkSession, live: Live, tmp_path: Path
) -> None:
    live.make("spark.loss", 10, cap_records=4)
    given = {"subscribe": "spark.loss", "startingOffsets": '{"spark.loss": 3}'}
    with streaming(registered, live, "loss", tmp_path / "loss", **given) as writer:
        query = writer.trigger(availableNow=True).start()
        with pytest.raises(Exception, match="DataLost") as caught:
            query.awaitTermination(WAIT_S)
    assert 'topic "spark.loss" on server one: offsets 3 to 6 are gone' in str(caught.value)


def test_a_write_goes_to_the_sink(registered: SparkSession, live: Live) -> None:
    live.make("spark.copied", 5)
    df = load(registered, live, subscribe="spark.copied")
    writer = df.write.format("topics").options(servers=live.url, topic="spark.copy")
    writer.mode("append").save()
    copied = load(registered, live, subscribe="spark.copy")
    values = sorted(row.value for row in df.collect())
    assert sorted(row.value for row in copied.collect()) == values
