"""Send: checked rows into a topic, in their order, by one connection.

The keys are those of the Spark producer with one partition: job, number of the batch and content.
So a job that is run again appends nothing, as long as it makes the same batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import blake2b
from typing import TextIO

from topics.client.chunks import Chunk, Chunker
from topics.client.errors import RequestError
from topics.client.http import Target, TopicsClient
from topics.client.keys import chunk_key
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
    rows' digest.
    """
    started = time.monotonic()
    with TopicsClient(replace(target, connect_retries=FIRST_CONNECTS)) as client:
        before = open_topic(client, topic, durability, warn)
    job = job_id or blake2b(repr((source, rows.digest)).encode(), digest_size=8).hexdigest()
    figures = Figures(0, before["head_seq"])
    chunks = chunks_of(rows.blocks(), Chunker(batch_records, batch_bytes, node))
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
