"""Write options: parses and checks them. Each invalid option causes a one-line error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topics.spark.source.connection import BadOption, Connection, Given

HOUR_MS = 60 * 60 * 1000
DURABILITIES = ("ephemeral", "memory", "disk", "fsync")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The destination and the settings of appends. Picklable. If ``topic`` is None, each row
    contains its topic.
    """

    connection: Connection
    topic: str | None
    job_id: str | None
    node: str | None
    text: bool  # whether the values are text, which is encoded as JSON strings
    batch_records: int
    batch_bytes: int
    window_ms: int
    create: bool
    durability: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse the options of a write. Raise `BadOption`."""
        given = Given(options)
        given.refuse_unknown("write")
        if not given:
            raise BadOption(
                "a write without options: Spark does not pass the OPTIONS of a table to a Python"
                " source; write INSERT INTO table WITH (servers = ..., topic = ...), or into a"
                " temporary view"
            )
        has_durability = "durability" in given
        return cls(
            connection=Connection.parse(given),
            topic=given.text("topic"),
            job_id=given.text("jobId"),
            node=given.text("node"),
            text=given.choice("valueFormat", ("json", "text")) == "text",
            batch_records=given.number("batchRecords"),
            batch_bytes=given.number("batchBytes"),
            window_ms=given.number("idempotencyWindowMs"),
            create=given.flag("createTopic"),
            durability=given.choice("durability", DURABILITIES) if has_durability else None,
        )

    def config(self) -> dict[str, Any]:
        """Return the config for a topic that is created."""
        config: dict[str, Any] = {"idempotency_window_ms": self.window_ms}
        return config if self.durability is None else {**config, "durability": self.durability}
