"""Send: checked rows into a topic, in their order, by one connection.

The keys are those of the Spark producer with one partition: job, number of the batch and content.
So a job that is run again appends nothing, as long as it makes the same batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, TextIO

from topics.spark.client.chunks import Chunk, Chunker
from topics.spark.client.errors import RequestError
from topics.spark.client.http import Target, TopicsClient
from topics.spark.client.keys import chunk_key
from topics.spark.client.ranges import Lost, read_range
from topics.spark.errors import JobError
from topics.spark.opening import open_topic
from topics.spark.plain.rows import Block, Rows
from topics.spark.producer import FIRST_CONNECTS, MIB, left_behind, say
from topics.spark.progress import Progress
from topics.spark.summary import Summary, summarize
from topics.spark.task import Figures


def send(
    rows: Rows,
    topic: str,
    *,
    target: Target,
    source: str,
    job_id: str | None = None,
    durability: str | None = None,
    node: str | None = None,
    batch_records: int = 5000,
    batch_bytes: int = 4 * MIB,
    progress: TextIO | None = None,
    warn: Callable[[str], None] = lambda line: say(f"warning: {line}"),
) -> Summary:
    """Append all rows to ``topic`` and return the figures; for arguments and failures see
    `topics.spark.producer.produce`. The default name of the job is made of ``source`` and the
    rows' digest. JSON lines without a named job of which the topic has the first, and nothing
    else, may have grown: only the others are appended.
    """
    started = time.monotonic()
    with TopicsClient(replace(target, connect_retries=FIRST_CONNECTS)) as client:
        before = open_topic(client, topic, durability, warn)
        there = 0 if job_id else lines_there(client, topic, before, rows.lines, node)
    job = job_id or blake2b(repr((source, rows.digest)).encode(), digest_size=8).hexdigest()
    figures = Figures(0, before["head_seq"])
    figures.records = figures.deduped = figures.last_seq = there
    figures.first_seq = min(1, there)
    chunks = chunks_behind(rows, there, lambda: Chunker(batch_records, batch_bytes, node))
    try:
        if progress is None:
            append(chunks, target, topic, f"batch:{job}", figures)
        else:
            with Progress(progress, rows.count, lambda: figures.records) as shown:
                append(chunks, target, topic, f"batch:{job}", figures)
                shown.finish(figures.records)
    except RequestError as error:
        raise JobError(f"{error}{left_behind(target, topic, before)}") from error
    with TopicsClient(target) as client:
        after = client.state(topic) or {"head_seq": 0}
    seconds = time.monotonic() - started
    return summarize(topic, job, [figures.numbers()], before, after, seconds)


def lines_there(
    client: TopicsClient,
    topic: str,
    state: Mapping[str, Any],
    lines: Sequence[tuple[bytes, str | None]],
    node: str | None,
) -> int:
    """How many of the first lines are all that the topic ever had, in their order and with their
    tags and node; 0 when it had anything else. Raises ``RequestError``.
    """
    head, there = state["head_seq"], 0
    if not 0 < head <= len(lines):
        return 0
    lost: list[Lost] = []
    epoch = state.get("epoch")
    for page in read_range(client, topic, 0, head, epoch=epoch, meta=False, on_loss=lost.append):
        wanted = [(line.strip(), tag, node) for line, tag in lines[there : there + len(page)]]
        there += len(page)
        found = [(bytes(record.data), record.tag, record.node) for record in page]
        if lost or page[-1].seq != there or found != wanted:
            return 0
    return there if there == head else 0


def append(
    chunks: Iterator[Chunk], target: Target, topic: str, scope: str, figures: Figures
) -> None:
    """Append the chunks one after the other. Raises ``RequestError``."""
    with TopicsClient(target) as client:
        for chunk in chunks:
            key = chunk_key(scope, topic, figures.partition, chunk.number, chunk.count, chunk.body)
            figures.note(chunk, client.append(topic, chunk.body, chunk.count, key))
            figures.requests, figures.retries = client.requests, client.retries


def chunks_of(blocks: Iterator[Block], chunker: Chunker) -> Iterator[Chunk]:
    """All chunks of the blocks."""
    for block in blocks:
        yield from chunker.add(*block)
    yield from chunker.rest()


def chunks_behind(rows: Rows, there: int, chunker: Callable[[], Chunker]) -> Iterator[Chunk]:
    """The chunks of all rows but the first ``there``. Where a chunk of the whole ends there, they
    are those of the whole with their numbers: a request that is still under way is known again.
    """
    chunks, passed = chunks_of(rows.blocks(0), chunker()), 0
    while passed < there:
        passed += next(chunks).count
    return chunks if passed == there else chunks_of(rows.blocks(there), chunker())
