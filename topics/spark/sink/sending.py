"""Sending: one task's rows to their topics, in chunks whose keys are the same in every attempt.

Each topic has a chunker and a numbering of its own within the task. Its chunks go to the server
that has the topic. A chunk never reaches from one Arrow batch into the next: when a stage below
fails, Spark ends the input of this one as if it were complete (Arrow takes the end of the file for
the end of the stream), always between two batches. Rows that are held at that moment would be sent
as a chunk that no other attempt makes, and appended twice. Spark cuts a partition into batches by
its settings alone (spark.sql.execution.arrow.maxRecordsPerBatch), so the chunks depend on rows,
order, options and that setting, never on time.

An executor's part: nothing here needs a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from topics.spark.client.chunks import Chunk, Chunker
from topics.spark.client.http import TopicsClient
from topics.spark.client.keys import chunk_key
from topics.spark.client.servers import Server
from topics.spark.errors import JobError
from topics.spark.opening import make_topic, warn_of_window
from topics.spark.preflight import refuse_queue
from topics.spark.sink.columns import Columns
from topics.spark.sink.encoding import BadRow, encode, topics_of
from topics.spark.sink.options import SinkOptions
from topics.spark.source.connection import Patience, errors_of
from topics.spark.task import string_block


@dataclass(slots=True)
class Sent:
    """What a task sent to one topic. ``repeated`` records were answered with an earlier answer: an
    earlier attempt had appended them.
    """

    records: int = 0
    repeated: int = 0
    requests: int = 0
    last_seq: int = 0


@dataclass(slots=True)
class TaskFigures:
    """What a task did, for the driver."""

    topics: dict[str, Sent] = field(default_factory=dict)
    retries: int = 0
    warnings: list[str] = field(default_factory=list)


class Clients:
    """One client for each server, opened when it is first needed. ``places``: the servers of topics
    that were located before.
    """

    def __init__(
        self,
        options: SinkOptions,
        patience: Patience = Patience.FULL,
        places: Mapping[str, Server] | None = None,
    ) -> None:
        self._connection = options.connection
        self._patience = patience
        self.places = dict(places or {})
        self._open: dict[tuple[Server, Patience], TopicsClient] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self._stack.close()

    def of(self, server: Server) -> TopicsClient:
        """The client of that server."""
        return self._client(server, self._patience)

    def _client(self, server: Server, patience: Patience) -> TopicsClient:
        if (server, patience) not in self._open:
            client = self._connection.client(server, patience)
            self._open[server, patience] = self._stack.enter_context(client)
        return self._open[server, patience]

    def server_of(self, topic: str) -> Server:
        """Where the topic is, or is to be made. Raises as `Connection.locate`."""
        if topic not in self.places:
            self.places[topic] = self._connection.locate(
                topic, self._patience, lambda *asked: nullcontext(self._client(*asked))
            )
        return self.places[topic]

    @property
    def retries(self) -> int:
        """Tries after the first, of all requests so far."""
        return sum(client.retries for client in self._open.values())


def open_topic(
    clients: Clients, options: SinkOptions, topic: str, warn: Callable[[str], None]
) -> int:
    """Make the topic if it is absent and may be made; its head seq. Raises `ServerError`,
    `RequestError` or ``JobError``.
    """
    server = clients.server_of(topic)
    client = clients.of(server)
    with errors_of(server):
        if options.create:
            state = make_topic(client, topic, options.config(), warn)
        else:
            found = client.state(topic)
            if found is None:
                raise JobError(
                    f'topic "{topic}": there is no such topic on {server.url}; make it, or leave'
                    " the option createTopic out"
                )
            state = found
            refuse_queue(topic, state)
            warn_of_window(topic, state, warn)
    return int(state["head_seq"])


class _Outlet:
    """One topic of a task: its chunks, their keys and its server."""

    def __init__(self, sender: Sender, topic: str) -> None:
        options = sender.options
        self._sender = sender
        self._topic = topic
        self._server = sender.clients.server_of(topic)
        self._client = sender.clients.of(self._server)
        self._chunker = Chunker(options.batch_records, options.batch_bytes, options.node)
        self.sent = Sent()

    def append(self, records: pa.Array) -> None:
        """Append the records of one batch, down to the last."""
        self._append(self._chunker.add(*string_block(records)))
        self._append(self._chunker.rest())

    def _append(self, chunks: Iterator[Chunk]) -> None:
        scope, partition = self._sender.scope, self._sender.partition
        for chunk in chunks:
            key = chunk_key(scope, self._topic, partition, chunk.number, chunk.count, chunk.body)
            with errors_of(self._server):
                receipt = self._client.append(self._topic, chunk.body, chunk.count, key)
            self.sent.requests += 1
            self.sent.records += chunk.count
            self.sent.repeated += chunk.count if receipt.deduped else 0
            self.sent.last_seq = max(self.sent.last_seq, receipt.last_seq)


class Sender:
    """Sends the rows of one partition. ``scope`` is the write's name in the keys; ``places`` are
    the servers of topics that are known.
    """

    def __init__(
        self,
        options: SinkOptions,
        columns: Columns,
        scope: str,
        partition: int,
        places: Mapping[str, Server] | None = None,
    ) -> None:
        self.options = options
        self.scope = scope
        self.partition = partition
        self._columns = columns
        self._outlets: dict[str, _Outlet] = {}
        self._figures = TaskFigures()
        self.clients = Clients(options, places=places)

    def send(self, batches: Iterable[pa.RecordBatch]) -> TaskFigures:
        """Append all rows and return the figures. Raises ``ServerError``, ``JobError`` or
        ``BadRow`` at the first refusal; what was appended before stays.
        """
        with self.clients:
            for batch in batches:
                self._take(batch)
            self._figures.retries = self.clients.retries
        self._figures.topics = {topic: outlet.sent for topic, outlet in self._outlets.items()}
        return self._figures

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
        """The same error with topic and partition."""
        topic, place = self.options.topic, self._columns.topic
        if topic is None and place is not None:
            topic = batch.column(place)[error.row].as_py()
        return BadRow(
            error.row, f'topic "{topic}", partition {self.partition} of the rows: {error.reason}'
        )

    def _outlet(self, topic: str) -> _Outlet:
        if topic not in self._outlets:
            if self.options.topic is None:  # else it was opened when the write was planned
                open_topic(self.clients, self.options, topic, self._figures.warnings.append)
            self._outlets[topic] = _Outlet(self, topic)
        return self._outlets[topic]


def by_topic(topics: pa.Array, records: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The records of each topic, in their order; the topics in the order of their first rows."""
    codes = topics.dictionary_encode()
    names = codes.dictionary.to_pylist()
    if len(names) > 1:
        records = records.take(pc.array_sort_indices(codes.indices))  # a stable sort
    counts = pc.value_counts(codes.indices).field("counts").to_pylist()
    first = 0
    for name, count in zip(names, counts, strict=True):
        yield name, records.slice(first, count)
        first += count
