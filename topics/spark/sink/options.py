"""Sink options: what a write was told, every mistake one line.

Names are matched whatever their case, as Spark gives them. A name that is nearly one of these is
refused with the nearest one; names of others (Spark's own, a source's) are left alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from topics.spark.client.http import DEFAULT_URL
from topics.spark.source.connection import (
    CONNECTION_OPTIONS,
    BadOption,
    Connection,
    choice,
    flag,
    lowered,
    number,
)

HOUR_MS = 60 * 60 * 1000
# Of a topic that is made: a job that failed on Friday is run again on Monday.
WINDOW_MS = 7 * 24 * HOUR_MS
BATCH_RECORDS = 5000
BATCH_BYTES = 4 * 1024 * 1024
SINK_OPTIONS = (
    "topic",
    "jobId",
    "node",
    "valueFormat",
    "batchRecords",
    "batchBytes",
    "idempotencyWindowMs",
    "createTopic",
    "durability",
)
NAMES = {name.lower(): name for name in (*CONNECTION_OPTIONS, *SINK_OPTIONS)}
DURABILITIES = ("ephemeral", "memory", "disk", "fsync")
ALIKE = 0.8  # how much two names have in common when one is taken for a misspelt other


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where and how to append. Picklable. Without ``topic``, each row names its own."""

    connection: Connection
    topic: str | None = None
    job_id: str | None = None
    node: str | None = None
    text: bool = False  # values are texts, to be encoded; else they are JSON
    batch_records: int = BATCH_RECORDS
    batch_bytes: int = BATCH_BYTES
    window_ms: int = WINDOW_MS
    create: bool = True
    durability: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """The options of a write. Raises `BadOption`."""
        given = lowered(options)
        _refuse_others(given)
        _check_servers(given)
        values = choice(given, "valueFormat", ("json", "text"), default="json")
        durable = choice(given, "durability", DURABILITIES, default="disk")
        return cls(
            connection=Connection.parse(given),
            topic=_text(given, "topic"),
            job_id=_text(given, "jobId"),
            node=_text(given, "node"),
            text=values == "text",
            batch_records=number(given, "batchRecords", BATCH_RECORDS),
            batch_bytes=number(given, "batchBytes", BATCH_BYTES),
            window_ms=number(given, "idempotencyWindowMs", WINDOW_MS),
            create=flag(given, "createTopic", default=True),
            durability=durable if "durability" in given else None,
        )

    def config(self) -> dict[str, Any]:
        """The config of a topic that is made."""
        config: dict[str, Any] = {"idempotency_window_ms": self.window_ms}
        return config if self.durability is None else {**config, "durability": self.durability}


def _check_servers(given: Mapping[str, str]) -> None:
    """A write has no default server: the options of a table do not come here."""
    if not given:
        raise BadOption(
            "a write without any option: Spark hands the OPTIONS of a table to no Python source;"
            " write INSERT INTO table WITH (servers = ..., topic = ...), or into a temporary view"
        )
    if not ("servers" in given or "url" in given or os.environ.get("TOPICS_URL")):
        raise BadOption(
            f"no server is named: give the option servers, for example {DEFAULT_URL}, or set"
            " TOPICS_URL"
        )


def _text(given: Mapping[str, str], name: str) -> str | None:
    text = given.get(name.lower())
    if text == "":
        raise BadOption(f"option {name} is empty")
    return text


def _refuse_others(given: Mapping[str, str]) -> None:
    if "path" in given:
        raise BadOption(
            f'a topic is no path: write .option("topic", {given["path"]!r}) and .save() or .start()'
            " without an argument"
        )
    for name in given:
        if name in NAMES:
            continue
        if near := get_close_matches(name, NAMES, n=1, cutoff=ALIKE):
            raise BadOption(f"there is no option {name}; did you mean {NAMES[near[0]]}?")
