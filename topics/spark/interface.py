"""The options and columns of ``format("topics")``: names, defaults and meanings.

The parsers take names and defaults from here, and `python -m tests.docs.spark --write` generates
the tables in topics/docs/spark.md.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Use = Literal["read", "write"]


class Option(NamedTuple):
    """An option. ``default`` is in the form that a user would write, or empty if there is none."""

    name: str
    use: Use | Literal["both"]
    default: str
    meaning: str


OPTIONS: Final = (
    Option("servers", "both", "", "the servers, `URL` or `NAME=URL,NAME=URL`; required unless"
           " the environment variable `TOPICS_URL` is set"),
    Option("url", "both", "", "the same as `servers`"),
    Option("apiKeyFile", "both", "", "a file that contains the API key; the driver reads it"),
    Option("apiToken", "both", "", "the API key; Spark masks it in plans"),
    Option("apiKey", "both", "", "the API key; Spark shows it in plans"),
    Option("caFile", "both", "", "a PEM file with the CA certificates for the servers"),
    Option("certFile", "both", "", "a PEM file with the client's certificate"),
    Option("keyFile", "both", "", "the client's private key, unless `certFile` contains it"),
    Option("numRetries", "both", "60", "retries of a request; 60 take almost 10 minutes"),
    Option("connectTimeoutMs", "both", "5000", "timeout for a connection"),
    Option("readTimeoutMs", "both", "120000", "timeout for a response"),
    Option("valueFormat", "both", "json", "`json`: the column `value` is JSON; `text`: it is the"
           " content of a JSON string; a read returns other JSON unchanged, and null as NULL"),
    Option("topic", "read", "", "the same as `subscribe`"),
    Option("subscribe", "read", "", "the topics, separated by commas"),
    Option("subscribePattern", "read", "", "a regular expression that matches complete names of"
           " topics"),
    Option("assign", "read", "", 'the topics with the numbers of their servers, `{"TOPIC": [0]}`'),
    Option("columns", "read", "all except `epoch`", "the columns, separated by commas"),
    Option("startingOffsets", "read", "batch: `earliest`, stream: `latest`", "the first offset:"
           ' `earliest`, `latest` or `{"TOPIC": 42}`, where -2 is earliest and -1 is latest'),
    Option("endingOffsets", "read", "`latest`", "batch: the offset after the last one, as above"),
    Option("startingTimestamp", "read", "", "the first timestamp, in ms since 1970"),
    Option("endingTimestamp", "read", "", "batch: the timestamp after the last one"),
    Option("startingOffsetsByTimestamp", "read", "", "the first timestamp of each topic,"
           ' `{"TOPIC": 1700000000000}`'),
    Option("endingOffsetsByTimestamp", "read", "", "batch: the timestamp after the last one of"
           " each topic"),
    Option("failOnDataLoss", "read", "true", "whether lost records are an error; if `false`, they"
           " are a warning and a count"),
    Option("minPartitions", "read", "1", "the minimum number of tasks"),
    Option("maxRecordsPerPartition", "read", "500000", "the maximum number of records per task"),
    Option("maxOffsetsPerTrigger", "read", "", "stream: maximum offsets per micro-batch"),
    Option("minOffsetsPerTrigger", "read", "0", "stream: minimum offsets per micro-batch"),
    Option("maxTriggerDelay", "read", "15m", "stream: how long `minOffsetsPerTrigger` may delay a"
           " micro-batch"),
    Option("node", "read", "", "omit the records from this writer"),
    Option("includeHeaders", "read", "", "ignored option of Kafka; `headers` is always available"),
    Option("topic", "write", "", "the topic of all rows; required if there is no column `topic`"),
    Option("jobId", "write", "", "batch: identifies the write, so that repeating it appends"
           " nothing twice"),
    Option("node", "write", "", "the writer of all rows, if there is no column `node`"),
    Option("batchRecords", "write", "5000", "the maximum number of records per request"),
    Option("batchBytes", "write", "4194304", "the maximum number of bytes per request"),
    Option("createTopic", "write", "true", "whether to create a topic that does not exist"),
    Option("idempotencyWindowMs", "write", "604800000", "`idempotency_window_ms` of a created"
           " topic"),
    Option("durability", "write", "", "`durability` of a created topic: `ephemeral`, `memory`,"
           " `disk` or `fsync`"),
)  # fmt: skip
DEFAULTS: Final = {option.name: option.default for option in OPTIONS}
COLUMNS: Final = {
    "key": "`tag`; null for none",
    "value": "`data`: JSON, or text with `valueFormat=text`",
    "topic": "the topic",
    "partition": "the number of the topic's server among the names of the servers, from 0",
    "offset": "the seq",
    "timestamp": "the time of the append",
    "node": "the writer; null for none",
    "headers": "`meta`, a JSON object or its members; null for none",
    "epoch": "distinguishes the topic from deleted topics with the same name",
    "delay_ms": "for queues: ms until the job may be claimed; null for none",
    "deliver_at": "for queues: when the job may be claimed; BIGINT: ms since 1970; null for none",
}


def known_names(use: Use) -> dict[str, str]:
    """Return the options for reads or writes, by their names in lower case."""
    return {option.name.lower(): option.name for option in OPTIONS if option.use in (use, "both")}
