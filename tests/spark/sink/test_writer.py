"""The writers, called as Spark does, without a JVM."""

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

from topics.spark.sink import writer
from topics.spark.sink.writer import BatchWriter, StreamWriter

SCHEMA = StructType([StructField("value", StringType())])


def options(stub: StubServer, **more: str) -> dict[str, str]:
    return {"servers": stub.url, "topic": "t", "numRetries": "2", **more}


def nowhere() -> Connection:
    """Return a connection to an unreachable server."""
    return Connection.parse({"servers": "http://127.0.0.1:1", "numRetries": "0"})


def rows(count: int) -> Any:
    return pa.record_batch({"value": pa.array([str(number) for number in range(count)])})


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The local properties of the task in which the test seems to run."""
    properties: dict[str, str] = {}
    task = SimpleNamespace(partitionId=lambda: 3, getLocalProperty=properties.get)
    monkeypatch.setattr(writer, "_task", lambda: task)
    return properties


@pytest.mark.usefixtures("in_task")
def test_a_batch_is_appended_with_a_summary_of_one_line(
    stub: StubServer, capfd: pytest.CaptureFixture[str]
) -> None:
    planned = BatchWriter(options(stub, jobId="j"), SCHEMA, overwrite=False)
    sent = pickle.loads(pickle.dumps(planned))
    messages = [sent.write(iter([rows(10)])), None]
    planned.commit([pickle.loads(pickle.dumps(message)) for message in messages])
    message = capfd.readouterr().err
    assert message.startswith('topics: 10 records to topic "t" in ')
    assert message.endswith(" s, 1 requests, 0 retries, job j\n")
    assert [record["data"] for record in stub.topics["t"].records] == list(range(10))


@pytest.mark.usefixtures("in_task")
def test_only_writes_with_the_same_job_id_are_deduplicated(stub: StubServer) -> None:
    for name in ({}, {"jobId": "j"}):
        for _ in range(2):
            BatchWriter(options(stub, **name), SCHEMA, overwrite=False).write(iter([rows(10)]))
    assert len(stub.topics["t"].records) == 30


@pytest.mark.usefixtures("in_task")
@pytest.mark.parametrize(
    ("job", "name"),
    [({"jobId": "j"}, "the same job again"), ({}, "the same job with the option jobId=")],
)
def test_a_failed_write_reports_remaining_records_and_how_to_continue(
    stub: StubServer, capfd: pytest.CaptureFixture[str], job: dict[str, str], name: str
) -> None:
    planned = BatchWriter(options(stub, batchRecords="10", **job), SCHEMA, overwrite=False)
    stub.faults.extend([None, Fault(status=500, code="internal")])
    with pytest.raises(ServerError):
        planned.write(iter([rows(20)]))
    planned.abort([None])
    message = capfd.readouterr().err
    assert "topics: the write failed; about 10 records that it appended remain; " + name in message
    assert message.endswith("appends none of them twice\n")


def test_a_failed_write_without_records_is_reported_even_without_a_server(
    stub: StubServer, capfd: pytest.CaptureFixture[str]
) -> None:
    planned = BatchWriter(options(stub), SCHEMA, overwrite=False)
    planned.abort([None])
    assert capfd.readouterr().err == "topics: the write failed; nothing was appended\n"
    planned.options, planned.places = replace(planned.options, connection=nowhere()), {}
    planned.abort([None])
    assert "the 0 records of its finished tasks remain" in capfd.readouterr().err


@pytest.mark.parametrize("make", [BatchWriter, StreamWriter])
def test_invalid_writes_are_refused_when_they_are_planned(stub: StubServer, make: Any) -> None:
    number = StructType([StructField("value", IntegerType())])
    for wanted, schema, overwrite, error in (
        (options(stub), SCHEMA, True, BadOption),
        (options(stub), number, False, ValueError),
        (options(stub, createTopic="false"), SCHEMA, False, JobError),
    ):
        with pytest.raises(error) as refusal:
            make(wanted, schema, overwrite=overwrite)
        assert "\n" not in str(refusal.value)
    assert not stub.topics


def test_an_unreachable_server_is_reported_when_a_batch_is_planned() -> None:
    for topic in ({"topic": "t"}, {}):
        wanted = {"servers": "http://127.0.0.1:1", **topic}
        schema = StructType([*SCHEMA.fields, StructField("topic", StringType())])
        with pytest.raises(ServerError, match=r"server http://127.0.0.1:1: .*unreachable"):
            BatchWriter(wanted, schema, overwrite=False)


def test_a_stream_is_planned_without_its_server_and_a_task_opens_the_topic(
    stub: StubServer, in_task: dict[str, str]
) -> None:
    in_task |= {"sql.streaming.queryId": "q", "streaming.sql.batchId": "0"}
    away = {"servers": "http://127.0.0.1:1", "topic": "t"}
    planned = StreamWriter(away, SCHEMA, overwrite=False)
    planned.options = replace(planned.options, connection=Connection.parse({"servers": stub.url}))
    planned.write(iter([rows(10)]))
    assert len(stub.topics["t"].records) == 10
    assert stub.topics["t"].config["idempotency_window_ms"] == planned.options.window_ms


def test_a_stream_has_no_job_id(stub: StubServer) -> None:
    with pytest.raises(BadOption, match="option jobId is for"):
        StreamWriter(options(stub, jobId="j"), SCHEMA, overwrite=False)


def test_query_and_number_identify_a_micro_batch(stub: StubServer, in_task: dict[str, str]) -> None:
    planned = StreamWriter(options(stub), SCHEMA, overwrite=False)
    for query, batch in (("q", "0"), ("q", "0"), ("q", "1"), ("r", "0")):
        in_task |= {"sql.streaming.queryId": query, "streaming.sql.batchId": batch}
        planned.write(iter([rows(10)]))
    assert len(stub.topics["t"].records) == 30


@pytest.mark.usefixtures("in_task")
def test_a_task_without_query_and_batch_appends_no_record(stub: StubServer) -> None:
    with pytest.raises(JobError, match="does not pass query and batch"):
        StreamWriter(options(stub), SCHEMA, overwrite=False).write(iter([rows(10)]))
    assert stub.topics["t"].records == []


def test_a_stream_prints_warnings_once_and_remaining_records_of_a_failure(
    stub: StubServer, capfd: pytest.CaptureFixture[str]
) -> None:
    stub.make("t", idempotency_window_ms=5000)
    planned = StreamWriter(options(stub), SCHEMA, overwrite=False)
    planned.commit([], 0)
    planned.commit([], 1)
    assert capfd.readouterr().err.count("for 5 s only") == 1
    planned.abort([None], 7)
    assert (
        "micro-batch 7 failed; the 0 records of its finished tasks remain" in capfd.readouterr().err
    )
