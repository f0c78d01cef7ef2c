"""Send task: an executor's part of a job. It takes Arrow batches of encoded records, appends them,
and returns one row of figures.

Executors import this module, so it needs neither a session nor the server's packages. One instance
of ``SendTask`` runs in every task: ``mapInArrow`` calls it with the batches of the partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topics.spark.client.chunks import Chunk, Chunker
from topics.spark.client.http import Receipt, Target, TopicsClient
from topics.spark.client.keys import chunk_key

if TYPE_CHECKING:
    import pyarrow as pa

# The figures of a partition, in the order of its row. `appended` are records that got a seq above
# the head that the topic had before the job, whichever attempt wrote them; `deduped` are records
# that an earlier run had written.
FIGURES = (
    "partition",
    "records",
    "appended",
    "deduped",
    "requests",
    "retries",
    "repeated",
    "first_seq",
    "last_seq",
)
FIGURES_DDL = ", ".join(f"{name} bigint" for name in FIGURES)


class Figures:
    """What one partition did. ``repeated`` counts the requests that the server answered with an
    earlier answer.
    """

    def __init__(self, partition: int, head_before: int) -> None:
        self.partition = partition
        self.head_before = head_before
        self.records = self.appended = self.deduped = self.requests = self.retries = (
            self.repeated
        ) = 0
        self.first_seq = self.last_seq = 0

    def note(self, chunk: Chunk, receipt: Receipt) -> None:
        """Count one answered chunk."""
        self.records += chunk.count
        if receipt.first_seq > self.head_before:
            self.appended += chunk.count
        else:
            self.deduped += chunk.count
        self.repeated += receipt.deduped
        self.first_seq = min(self.first_seq or receipt.first_seq, receipt.first_seq)
        self.last_seq = max(self.last_seq, receipt.last_seq)

    def numbers(self) -> dict[str, int]:
        """All figures, by name."""
        return {name: getattr(self, name) for name in FIGURES}

    def row(self) -> dict[str, list[int]]:
        """One row of ``FIGURES_DDL``, as columns."""
        return {name: [value] for name, value in self.numbers().items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTask:
    """Send a partition to ``topic``. Pickled by the driver, called by ``mapInArrow`` in every task.

    ``settled`` is a Spark accumulator: it grows when a task is done, also by records that were
    written before.
    """

    target: Target
    topic: str
    scope: str
    head_before: int
    batch_records: int
    batch_bytes: int
    node: str | None
    settled: Any

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send everything; a ``RequestError`` fails the task, and Spark runs it again with the same
        keys.
        """
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "runs in a task only"
        figures = Figures(context.partitionId(), self.head_before)
        with TopicsClient(self.target) as client:
            for chunk in self._chunks(batches):
                key = chunk_key(
                    self.scope, self.topic, figures.partition, chunk.number, chunk.count, chunk.body
                )
                figures.note(chunk, client.append(self.topic, chunk.body, chunk.count, key))
            figures.requests, figures.retries = client.requests, client.retries
        self.settled.add(figures.records)
        yield pa.RecordBatch.from_pydict(figures.row())

    def _chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
        chunker = Chunker(self.batch_records, self.batch_bytes, self.node)
        for batch in batches:
            yield from chunker.add(*string_block(batch.column(0)))
            # A stage below that fails ends this input between two batches, as if it were complete.
            # No chunk reaches over that point, or the retry would make another one of its rows.
            yield from chunker.rest()


def string_block(column: pa.Array) -> tuple[memoryview, memoryview]:
    """Offsets and data of an Arrow string column without nulls, in place: the block that
    ``Chunker.add`` takes.
    """
    import pyarrow as pa

    assert column.null_count == 0, "every row was encoded"
    _, offsets, data = column.buffers()
    first, end = column.offset, column.offset + len(column) + 1
    if len(column) == 0 or offsets is None:
        return memoryview(bytes(4)).cast("i"), memoryview(b"")
    large = pa.types.is_large_string(column.type)
    words = memoryview(offsets).cast("q") if large else memoryview(offsets).cast("i")
    return words[first:end], memoryview(data if data is not None else b"")
