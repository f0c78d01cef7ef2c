"""Sending: sends the rows of a task to their topics, in requests that have the same keys in every
attempt.

    Arrow batch -> encode -> chunks of each topic -> thread: append a chunk with its key

The next chunk is encoded while a request is in flight. A chunk is sent after the response to the
previous chunk, which keeps the order of records. After a failure, no further chunk is sent. A chunk
contains rows from only one Arrow batch. If an earlier stage of the query fails, Spark ends the
input after one of its batches as if it were complete. If the last rows were kept for the next
chunk, they would be sent as a chunk that no other attempt sends, and they would be appended twice.
Spark divides a partition into batches by spark.sql.execution.arrow.maxRecordsPerBatch alone, so the
chunks depend on that setting, the rows, their order and the options.

This module runs on executors and needs no session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from threading import Thread

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from topics.client.chunks import Chunk, Chunker, chunk_key
from topics.spark.client.servers import Server
from topics.spark.sink.columns import Columns
from topics.spark.sink.encoding import BadRow, encode, string_block, topics_of
from topics.spark.sink.opening import open_topic
from topics.spark.sink.options import SinkOptions
from topics.spark.source.connection import Clients, errors_of


@dataclass(slots=True)
class Sent:
    """The records that a task has sent to a topic. ``repeated`` of them had already been appended:
    their seqs are not above the head before the write or, if this head is unknown, the server has
    reported that it knew the key.
    """

    records: int = 0
    repeated: int = 0
    requests: int = 0


@dataclass(slots=True)
class TaskFigures:
    """The result of a task."""

    topics: dict[str, Sent] = field(default_factory=dict)
    retries: int = 0
    warnings: list[str] = field(default_factory=list)


class Sender:
    """Sends the rows of one partition. ``scope`` identifies the write in the keys; ``places`` are
    the known servers of topics, and ``heads`` are the heads before the write.
    """

    def __init__(
        self,
        options: SinkOptions,
        columns: Columns,
        scope: str,
        partition: int,
        places: Mapping[str, Server] | None = None,
        heads: Mapping[str, int] | None = None,
    ) -> None:
        self.options = options
        self.scope = scope
        self.partition = partition
        self.heads = dict(heads or {})
        self.clients = Clients(options.connection, places=places)
        self._columns = columns
        self._outlets: dict[str, _Outlet] = {}
        self._figures = TaskFigures()
        self._flight: Future[None] | None = None

    def send(self, batches: Iterable[pa.RecordBatch]) -> TaskFigures:
        """Append all rows. This may be called only once. Raise `ServerError`, `JobError` or
        `BadRow` for the first failure; records that were appended before it remain.
        """
        with self.clients:
            try:
                for batch in batches:
                    self._take(batch)
                self.settle()
            except Exception:  # but not Ctrl-C, because a request may be retried for minutes
                wait([self._flight] if self._flight else ())
                raise
            self._figures.retries = self.clients.retries
        self._figures.topics = {topic: outlet.sent for topic, outlet in self._outlets.items()}
        return self._figures

    def post(self, send: Callable[[], None]) -> None:
        """Call `settle`, then start ``send`` in a thread."""
        self.settle()
        self._flight = flight = Future[None]()
        Thread(target=_settle, args=(flight, send), name="append", daemon=True).start()

    def settle(self) -> None:
        """Wait for the request in flight. If it failed, raise its exception."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.result()

    def _take(self, batch: pa.RecordBatch) -> None:
        topic, place = self.options.topic, self._columns.topic
        try:
            records = encode(batch, self._columns, text=self.options.text)
            if topic is not None:
                self._outlet(topic).append(records)
                return
            assert place is not None, "checked when the write was planned"
            topics = topics_of(batch, place)
        except BadRow as error:
            raise self._located(error, batch) from None
        for name, share in by_topic(topics, records):
            self._outlet(name).append(share)

    def _located(self, error: BadRow, batch: pa.RecordBatch) -> BadRow:
        """Return the error with topic and partition."""
        topic, place = self.options.topic, self._columns.topic
        if topic is None and place is not None:
            topic = batch.column(place)[error.row].as_py()
        return BadRow(
            error.row, f'topic "{topic}", partition {self.partition} of the rows: {error.reason}'
        )

    def _outlet(self, topic: str) -> _Outlet:
        if topic not in self._outlets:
            self.settle()  # only one thread may use a client
            if topic not in self.clients.places:  # the topic of the plan is already open
                open_topic(self.clients, self.options, topic, self._figures.warnings.append)
            self._outlets[topic] = _Outlet(self, topic)
        return self._outlets[topic]


def _settle(flight: Future[None], send: Callable[[], None]) -> None:
    try:
        send()
    except Exception as error:
        flight.set_exception(error)
    else:
        flight.set_result(None)


class _Outlet:
    """A topic of a task: its server and the numbers of its chunks."""

    def __init__(self, sender: Sender, topic: str) -> None:
        options = sender.options
        self._sender = sender
        self._topic = topic
        self._server = sender.clients.server_of(topic)
        self._client = sender.clients.of(self._server)
        self._chunker = Chunker[None](options.batch_records, options.batch_bytes)
        # create:false, because an append would create a deleted topic with the default window of
        # two minutes.
        node = options.node
        origin = b"" if node is None else b'"node":' + msgspec.json.encode(node) + b","
        self._head = b'{"create":false,' + origin + b'"records":'
        self.sent = Sent()

    def append(self, records: pa.Array) -> None:
        """Append the records of one batch."""
        for chunk in self._chunker.cut(*string_block(records)):
            self._sender.post(partial(self._send, chunk))

    def _send(self, chunk: Chunk[None]) -> None:
        sender, sent, count = self._sender, self.sent, chunk.count
        body = b"".join((self._head, chunk.records, b"}"))
        key = chunk_key(sender.scope, self._topic, sender.partition, chunk.number, count, body)
        with errors_of(self._server):
            receipt = self._client.append(self._topic, body, count, key)
        head = sender.heads.get(self._topic)
        is_repeated = receipt.deduped if head is None else receipt.first_seq <= head
        sent.requests += 1
        sent.records += count
        sent.repeated += count if is_repeated else 0


def by_topic(topics: pa.Array, records: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the topics, in the order of their first rows, with their records in order."""
    codes = topics.dictionary_encode()
    names = codes.dictionary.to_pylist()
    if len(names) > 1:
        records = records.take(pc.array_sort_indices(codes.indices))  # a stable sort
    counts = pc.value_counts(codes.indices).field("counts").to_pylist()
    first = 0
    for name, count in zip(names, counts, strict=True):
        yield name, records.slice(first, count)
        first += count
