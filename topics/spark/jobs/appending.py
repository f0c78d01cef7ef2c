"""Appending: the rows of a job to one topic, in their order, with figures for its summary.

All rows go through one partition, sorted by the caller's columns: the same rows make the same
requests with the same keys, however Spark cut them before. A job writes what it has computed, so
this is a small part of its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topics.spark.client.errors import RequestError
from topics.spark.client.servers import Server
from topics.spark.errors import JobError
from topics.spark.rows import map_arrow
from topics.spark.sink.options import SinkOptions
from topics.spark.source.connection import Patience, ServerError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from topics.spark.sink.columns import Columns

FIGURES_DDL = "records bigint, repeated bigint, requests bigint, retries bigint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """What was appended: ``repeated`` records an earlier run had appended. The heads are the
    server's own count.
    """

    records: int = 0
    repeated: int = 0
    requests: int = 0
    retries: int = 0
    head_before: int = 0
    head_after: int = 0

    @property
    def agrees(self) -> bool:
        """Whether the head moved by what was appended. A task that Spark ran twice finds its own
        records there, so the repeated ones may be of this run.
        """
        moved = self.head_after - self.head_before
        return self.records - self.repeated <= moved <= self.records

    def and_then(self, later: Appended) -> Appended:
        """Both, one after the other."""
        return Appended(
            records=self.records + later.records,
            repeated=self.repeated + later.repeated,
            requests=self.requests + later.requests,
            retries=self.retries + later.retries,
            head_before=self.head_before,
            head_after=later.head_after,
        )

    def text(self) -> str:
        """What happened to the topic, and whether the server agrees."""
        heads = f"head {self.head_before:,} before, {self.head_after:,} after"
        verdict = "The server agrees" if self.agrees else "The server does NOT agree"
        other = "" if self.agrees else "; does somebody else write to this topic?"
        return (
            f"{self.records - self.repeated:,} appended, {self.repeated:,} already there,"
            f" {self.requests:,} requests, {self.retries:,} retries\n{verdict}: {heads}{other}."
        )


@dataclass(frozen=True, slots=True)
class AppendTask:
    """Append a partition. Pickled by the driver, called by ``mapInArrow`` in every task."""

    options: SinkOptions
    columns: Columns
    scope: str
    place: Server

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send everything and give one row of figures."""
        import pyarrow as pa

        from topics.spark.sink.report import total
        from topics.spark.sink.sending import Sender

        places = {self.options.topic or "": self.place}
        figures = Sender(self.options, self.columns, self.scope, 0, places).send(batches)
        sent = total([figures]).values()
        row = {name: [sum(getattr(one, name) for one in sent)] for name in _SUMS}
        yield pa.RecordBatch.from_pydict({**row, "retries": [figures.retries]})


_SUMS = ("records", "repeated", "requests")


def append_rows(df: DataFrame, options: SinkOptions, scope: str, order: Sequence[str]) -> Appended:
    """Append the rows of ``df`` to the topic of ``options``, sorted by ``order``, which names every
    row; once for each ``scope``. Raises ``RequestError`` or ``JobError``.
    """
    from topics.spark.sink.columns import Columns

    assert options.topic is not None, "a job has one topic to write to"
    place = options.connection.locate(options.topic)
    head = head_of(options, place)
    names = [name for name in df.columns if name in _COLUMNS]
    rows = df.repartition(1).sortWithinPartitions(*order).select(*names)
    task = AppendTask(options, Columns.of(rows.schema, topic=options.topic), scope, place)
    figures: Iterable[dict[str, int]] = [
        row.asDict() for row in map_arrow(rows, task, FIGURES_DDL).collect()
    ]
    sums = {name: sum(row[name] for row in figures) for name in (*_SUMS, "retries")}
    return Appended(head_before=head, head_after=head_of(options, place), **sums)


_COLUMNS = ("key", "value", "node", "headers")


def open_dest(options: SinkOptions, warnings: list[str]) -> int:
    """Make the topic if need be, see that this key may append; its head. Raises ``RequestError``
    or ``JobError``.
    """
    from topics.spark.sink.sending import Clients, open_topic

    assert options.topic is not None, "a job has one topic to write to"
    try:
        with Clients(options, Patience.PLANNING) as clients:
            head = open_topic(clients, options, options.topic, warnings.append)
            place = clients.server_of(options.topic)
            clients.of(place).check_access(options.topic, configure=False)
    except ServerError as error:
        raise JobError(str(error)) from error
    return head


def head_of(options: SinkOptions, place: Server) -> int:
    """The head of the topic, which that server has. Raises ``RequestError``."""
    assert options.topic is not None, "a job has one topic to write to"
    with options.connection.client(place) as client:
        state = client.state(options.topic)
    if state is None:
        raise RequestError(options.topic, 404, "topic_not_found", "there is no such topic")
    return int(state["head_seq"])
