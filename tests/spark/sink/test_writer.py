"""Writers as Spark drives them, without a JVM."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.spark.client.stub_server import Fault, StubServer
from topics.spark.job_errors import JobError
from topics.spark.source.connection import BadOption, Connection, ServerError

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from topics.spark.sink import batch_writer, stream_writer, writer
from topics.spark.sink.writer import BatchWriter, StreamWriter

SCHEMA = StructType([StructField("value", StringType())])


def options(stub: StubServer, **more: str) -> dict[str, str]:
    return {"servers": stub.url, "topic": "t", "numRetries": "2", **more}


def nowhere() -> Connection:
    """A connection to a server that is not there."""
    return Connection.parse({"servers": "http://127.0.0.1:1", "numRetries": "0"})


def rows(count: int) -> Any:
    return pa.record_batch({"value": pa.array([str(number) for number in range(count)])})


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The local properties of the task that the test is."""
    properties: dict[str, str] = {}
    task = SimpleNamespace(partitionId=lambda: 3, getLocalProperty=properties.get)
    monkeypatch.setattr(writer, "_task", lambda: task)
    return properties


@pytest.mark.usefixtures("in_task")
def test_a_batch_is_appended_and_told_in_one_line(
    stub: StubServer, capfd: pytest.CaptureFixture[str]
) -> None:
    made = batch_writer(options(stub, jobId="j"), SCHEMA, False)
    sent = pickle.loads(pickle.dumps(made))
    messages = [sent.write(iter([rows(10)])), None]
    made.commit([pickle.loads(pickle.dumps(message)) for message in messages])
    told = capfd.readouterr().err
    assert told.startswith('topics: 10 records to topic "t" in ')
    assert told.endswith(" s, 1 requests, 0 retries, job j\n")
    assert [record["data"] for record in stub.topics["t"].records] == list(range(10))


@pytest.mark.usefixtures("in_task")
def test_two_writes_without_a_job_id_are_two_and_with_one_they_are_one(stub: StubServer) -> None:
    for name in ({}, {"jobId": "j"}):
        for _ in range(2):
            batch_writer(options(stub, **name), SCHEMA, False).write(iter([rows(10)]))
    assert len(stub.topics["t"].records) == 30


@pytest.mark.usefixtures("in_task")
@pytest.mark.parametrize(
    ("job", "name"),
    [({"jobId": "j"}, "the same job again"), ({}, "the same job with the option jobId=")],
)
def test_a_failed_write_tells_what_stays_and_how_to_go_on(
    stub: StubServer, capfd: pytest.CaptureFixture[str], job: dict[str, str], name: str
) -> None:
    made = batch_writer(options(stub, batchRecords="10", **job), SCHEMA, False)
    stub.faults.extend([None, Fault(status=500, code="internal")])
    with pytest.raises(ServerError):
        made.write(iter([rows(20)]))
    made.abort([None])
    told = capfd.readouterr().err
    assert "topics: the write failed; about 10 records that it appended stay; " + name in told
    assert told.endswith("appends none of them twice\n")


def test_a_write_that_appended_nothing_tells_so_also_when_the_server_is_gone(
    stub: StubServer, capfd: pytest.CaptureFixture[str]
) -> None:
    made = BatchWriter(options(stub), SCHEMA, overwrite=False)
    made.abort([None])
    assert capfd.readouterr().err == "topics: the write failed; nothing was appended\n"
    made.options, made.places = replace(made.options, connection=nowhere()), {}
    made.abort([None])
    assert "the 0 records of its finished tasks stay" in capfd.readouterr().err


@pytest.mark.parametrize("make", [batch_writer, stream_writer])
def test_what_cannot_be_written_is_refused_when_the_write_is_planned(
    stub: StubServer, make: Any
) -> None:
    stub.make("queue", type="queue")
    number = StructType([StructField("value", IntegerType())])
    for wanted, schema, overwrite, error in (
        (options(stub), SCHEMA, True, BadOption),
        (options(stub), number, False, ValueError),
        (options(stub, topic="queue"), SCHEMA, False, JobError),
    ):
        with pytest.raises(error) as refusal:
            make(wanted, schema, overwrite)
        assert "\n" not in str(refusal.value)
    assert list(stub.topics) == ["queue"]


def test_a_server_that_is_not_there_is_told_when_a_batch_is_planned() -> None:
    for topic in ({"topic": "t"}, {}):
        wanted = {"servers": "http://127.0.0.1:1", **topic}
        schema = StructType([*SCHEMA.fields, StructField("topic", StringType())])
        with pytest.raises(ServerError, match=r"server http://127.0.0.1:1: .*unreachable"):
            batch_writer(wanted, schema, False)


def test_a_stream_is_planned_while_its_server_is_away_and_a_task_opens_the_topic(
    stub: StubServer, in_task: dict[str, str]
) -> None:
    in_task |= {"sql.streaming.queryId": "q", "streaming.sql.batchId": "0"}
    away = {"servers": "http://127.0.0.1:1", "topic": "t"}
    made = StreamWriter(away, SCHEMA, overwrite=False)
    made.options = replace(made.options, connection=Connection.parse({"servers": stub.url}))
    made.write(iter([rows(10)]))
    assert len(stub.topics["t"].records) == 10
    assert stub.topics["t"].config["idempotency_window_ms"] == made.options.window_ms


def test_a_stream_has_no_job_id(stub: StubServer) -> None:
    with pytest.raises(BadOption, match="option jobId is for"):
        stream_writer(options(stub, jobId="j"), SCHEMA, False)


def test_a_micro_batch_is_known_by_its_query_and_number(
    stub: StubServer, in_task: dict[str, str]
) -> None:
    made = stream_writer(options(stub), SCHEMA, False)
    for query, batch in (("q", "0"), ("q", "0"), ("q", "1"), ("r", "0")):
        in_task |= {"sql.streaming.queryId": query, "streaming.sql.batchId": batch}
        made.write(iter([rows(10)]))
    assert len(stub.topics["t"].records) == 30


@pytest.mark.usefixtures("in_task")
def test_a_task_without_query_and_batch_appends_nothing(stub: StubServer) -> None:
    with pytest.raises(JobError, match="does not tell a task its query"):
        stream_writer(options(stub), SCHEMA, False).write(iter([rows(10)]))
    assert stub.topics["t"].records == []


def test_a_stream_tells_its_warnings_once_and_what_stays_of_a_failed_batch(
    stub: StubServer, capfd: pytest.CaptureFixture[str]
) -> None:
    stub.make("t", idempotency_window_ms=5000)
    made = stream_writer(options(stub), SCHEMA, False)
    made.commit([], 0)
    made.commit([], 1)
    assert capfd.readouterr().err.count("for 5 s only") == 1
    made.abort([None], 7)
    assert (
        "micro-batch 7 failed; the 0 records of its finished tasks stay" in capfd.readouterr().err
    )
