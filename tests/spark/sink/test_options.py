"""The options of writes. Each invalid option is one line."""

from __future__ import annotations

import pickle

import pytest

from topics.spark.sink.options import HOUR_MS, SinkOptions
from topics.spark.source.connection import BadOption


def test_by_default_values_are_json_and_keys_are_kept_for_a_week() -> None:
    options = SinkOptions.parse({"servers": "http://h:1"})
    assert (options.topic, options.job_id, options.node, options.text) == (None, None, None, False)
    assert (options.batch_records, options.batch_bytes) == (5000, 4 * 1024 * 1024)
    assert options.create
    assert options.config() == {"idempotency_window_ms": 7 * 24 * HOUR_MS}


def test_names_are_not_case_sensitive_and_options_can_be_pickled() -> None:
    options = SinkOptions.parse(
        {
            "SERVERS": "http://h:1",
            "topic": "t",
            "jobid": "j",
            "NODE": "n",
            "valueFormat": "TEXT",
            "batchrecords": "7",
            "batchBytes": "8",
            "idempotencyWindowMs": "9",
            "createTopic": "False",
            "durability": "fsync",
        }
    )
    assert (options.topic, options.job_id, options.node, options.text) == ("t", "j", "n", True)
    assert (options.batch_records, options.batch_bytes, options.create) == (7, 8, False)
    assert options.config() == {"idempotency_window_ms": 9, "durability": "fsync"}
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("topci", "t", "there is no option topci; is it topic?"),
        ("batchRecord", "1", "there is no option batchrecord; is it batchRecords?"),
        ("topic", "", "option topic is empty"),
        ("batchBytes", "0", "option batchBytes is 0"),
        ("createTopic", "maybe", "option createTopic is 'maybe'"),
        ("durability", "ram", "option durability is 'ram'"),
        ("valueFormat", "avro", "option valueFormat is 'avro'"),
        ("path", "events", "a topic has no path: give .option('topic', 'events') and call .save()"),
        ("kafka.bootstrap.servers", "h:1", "name a topics server with the option servers"),
        ("kafka.acks", "all", "option kafka.acks is Kafka's and has no meaning for topics"),
    ],
)
def test_an_invalid_option_is_reported_in_one_line_with_its_name(
    name: str, value: str, message: str
) -> None:
    with pytest.raises(BadOption) as refusal:
        SinkOptions.parse({"servers": "http://h:1", name: value})
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_write_has_no_default_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPICS_URL", raising=False)
    with pytest.raises(BadOption, match="no server is named: give the option servers"):
        SinkOptions.parse({"topic": "t"})
    monkeypatch.setenv("TOPICS_URL", "http://h:2")
    assert SinkOptions.parse({"topic": "t"}).connection.servers.members[0].url == "http://h:2"
    with pytest.raises(BadOption, match="INSERT INTO table WITH"):
        SinkOptions.parse({})  # of a table, whose own options Spark keeps to itself


@pytest.mark.parametrize("name", ["checkpointLocation", "queryName", "startingOffsets", "header"])
def test_options_of_spark_and_of_reads_are_ignored(name: str) -> None:
    assert SinkOptions.parse({"servers": "http://h:1", name: "x"}).topic is None


def test_the_api_key_is_not_part_of_the_repr() -> None:
    options = SinkOptions.parse({"servers": "http://h:1", "apiKey": "hunter2"})
    assert options.connection.api_key == "hunter2"
    assert "hunter2" not in repr(options)
