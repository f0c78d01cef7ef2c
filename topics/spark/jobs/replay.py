"""Replay: the records of an archive back into topics, in their order.

Each target topic is written by one connection: its source topics by name, partition by partition,
offset by offset. A record keeps value, key, node and headers; it gets a new offset and timestamp.

The keys of the batches are made of the job, source topic, partition, date, number of the batch and
content. So the same replay run again appends nothing, and a replay of an archive that has grown
appends what is new. Only the last batch of a date that grew meanwhile is another one: replay
finished days.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TextIO

from topics.errors import ExitCode
from topics.spark.client.chunks import Chunk, Chunker
from topics.spark.client.errors import RequestError
from topics.spark.client.http import DEFAULT_URL, Target, TopicsClient
from topics.spark.client.keys import chunk_key
from topics.spark.client.servers import Servers
from topics.spark.errors import JobError
from topics.spark.jobs.archive_parts import Archive, Block, Part
from topics.spark.jobs.arguments import Commands, add_servers, byte_count, located, positive
from topics.spark.opening import open_topic
from topics.spark.preflight import check_server
from topics.spark.producer import FIRST_CONNECTS, MIB, left_behind, say
from topics.spark.progress import Progress
from topics.spark.source.connection import RETRIES, Connection
from topics.spark.summary import Summary, summarize
from topics.spark.task import Figures

TOPIC = "{topic}"  # in a template


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did: the summary of each target topic, and how many records it was to send."""

    summaries: tuple[Summary, ...]
    archived: int

    @property
    def records(self) -> int:
        """Records that were sent, or had been."""
        return sum(summary.records for summary in self.summaries)

    @property
    def agrees(self) -> bool:
        """Whether all of the archive was sent and every topic's head moved by what was appended."""
        return self.records == self.archived and all(one.agrees for one in self.summaries)

    def text(self) -> str:
        """For a terminal."""
        whole = "all" if self.records == self.archived else "NOT all"
        verdict = (
            f"{self.records:,} records to {len(self.summaries):,} topics: {whole} of the"
            f" {self.archived:,} records of the archive."
        )
        return "\n".join([*(summary.text() for summary in self.summaries), verdict])


def replay(
    root: Path,
    into: str,
    *,
    topics: Sequence[str] = (),
    since: str | None = None,
    until: str | None = None,
    servers: Servers | None = None,
    api_key: str | None = None,
    retries: int = RETRIES,
    job_id: str | None = None,
    durability: str | None = None,
    batch_records: int = 5000,
    batch_bytes: int = 4 * MIB,
    progress: TextIO | None = None,
    warn: Callable[[str], None] = lambda line: say(f"warning: {line}"),
) -> Replayed:
    """Append the records of the archive in ``root`` to the topic ``into``, or to several topics
    when ``into`` holds ``{topic}``, which is replaced by the name of the source topic.

    ``topics`` names the source topics, by default all; a single target takes several of them only
    when they are named. ``since`` and ``until`` are dates, ``YYYY-MM-DD``; the second is left out.
    ``job_id`` names the replay for idempotency, by default after the folder. Raises ``JobError`` or
    ``RequestError``; what was appended before stays, and the same replay run again does not append
    it twice.
    """
    archive = Archive(root.resolve())
    parts = archive.parts(topics, since, until)
    if not parts:
        raise JobError(f"{archive.root}: it has no record of these dates")
    targets = _targets(archive, parts, into, named=bool(topics))
    _warn_of_growth(parts, warn)
    servers = servers or Servers.parse(os.environ.get("TOPICS_URL", DEFAULT_URL))
    connection = Connection(servers=servers, api_key=api_key, retries=retries)
    ends = {topic: connection.target(located(connection, topic)) for topic in targets}
    for topic, target in ends.items():
        check_server(target, topic, durability)
    job = job_id or blake2b(str(archive.root).encode(), digest_size=8).hexdigest()
    sending = _Sending(archive, job, durability, batch_records, batch_bytes, warn)
    total = sum(part.count for part in parts)
    summaries = []
    if progress is None:
        summaries = [sending.send(topic, ends[topic], targets[topic]) for topic in targets]
    else:
        with Progress(progress, total, lambda: sending.records) as shown:
            summaries = [sending.send(topic, ends[topic], targets[topic]) for topic in targets]
            shown.finish(sending.records)
    return Replayed(tuple(summaries), total)


def _targets(
    archive: Archive, parts: list[Part], into: str, *, named: bool
) -> dict[str, list[Part]]:
    """The parts of each target topic, in the order in which they are sent."""
    sources = {part.topic for part in parts}
    if len(sources) > 1 and TOPIC not in into and not named:
        raise JobError(
            f"{archive.root}: it has records of {len(sources):,} topics; choose with"
            " --from-topic, or give each a topic of its own with --into, such as copy.{topic}"
        )
    targets: dict[str, list[Part]] = {}
    for part in parts:
        targets.setdefault(into.replace(TOPIC, part.topic), []).append(part)
    return targets


def _warn_of_growth(parts: list[Part], warn: Callable[[str], None]) -> None:
    today = datetime.now(UTC).date().isoformat()
    if any(part.date >= today for part in parts):
        warn(
            f"the archive has records of {today}, which may become more: another replay of that day"
            f" then appends up to a batch of them again. --until {today} leaves it out"
        )


class _Sending:
    """Sends parts to targets, one after the other. ``records`` are those sent so far."""

    def __init__(
        self,
        archive: Archive,
        job: str,
        durability: str | None,
        batch_records: int,
        batch_bytes: int,
        warn: Callable[[str], None],
    ) -> None:
        self._archive = archive
        self._job = job
        self._durability = durability
        self._limits = batch_records, batch_bytes
        self._warn = warn
        self._figures: list[Figures] = []

    @property
    def records(self) -> int:
        return sum(figures.records for figures in self._figures)

    def send(self, topic: str, target: Target, parts: list[Part]) -> Summary:
        """Append the parts to the topic in this order."""
        started = time.monotonic()
        with TopicsClient(replace(target, connect_retries=FIRST_CONNECTS)) as client:
            before = open_topic(client, topic, self._durability, self._warn)
        sent: list[Figures] = []
        try:
            for part in parts:
                sent.append(Figures(part.partition, before["head_seq"]))
                self._figures.append(sent[-1])
                chunks = _chunks(self._archive.blocks(part), Chunker(*self._limits))
                scope = f"replay:{(self._job, part.topic, part.date)!r}"
                _append(chunks, target, topic, scope, sent[-1])
        except (RequestError, JobError) as error:
            raise JobError(f"{error}{left_behind(target, topic, before)}") from error
        with TopicsClient(target) as client:
            after = client.state(topic) or {"head_seq": 0}
        numbers = [figures.numbers() for figures in sent]
        seconds = time.monotonic() - started
        return summarize(topic, self._job, numbers, before, after, seconds)


def _append(
    chunks: Iterator[Chunk], target: Target, topic: str, scope: str, figures: Figures
) -> None:
    """Append the chunks one after the other. Raises ``RequestError``."""
    with TopicsClient(target) as client:
        for chunk in chunks:
            key = chunk_key(scope, topic, figures.partition, chunk.number, chunk.count, chunk.body)
            figures.note(chunk, client.append(topic, chunk.body, chunk.count, key))
            figures.requests, figures.retries = client.requests, client.retries


def _chunks(blocks: Iterator[Block], chunker: Chunker) -> Iterator[Chunk]:
    for block in blocks:
        yield from chunker.add(*block)
    yield from chunker.rest()


def add(commands: Commands) -> None:
    """``topics-spark replay DIR TOPIC``."""
    parser = commands.add_parser(
        "replay",
        help="an archive back into topics",
        description="Append the records of an archive, as 'topics-spark archive' writes it, to a"
        " topic, in their order and with key, node and headers. No JVM is started. The same replay"
        " run again appends nothing.",
        epilog=ExitCode.sentence(),
    )
    argument = parser.add_argument
    argument("directory", metavar="DIR", type=local, help="folder of the archive")
    into = parser.add_mutually_exclusive_group(required=True)
    into.add_argument("topic", metavar="TOPIC", nargs="?", help="topic that gets the records")
    into.add_argument(
        "--into",
        type=template,
        metavar="TEMPLATE",
        help="a topic for each source topic, such as copy.{topic}",
    )
    argument(
        "--from-topic",
        action="append",
        default=[],
        metavar="NAME",
        help="only records of this topic; may be given several times (default: all)",
    )
    argument("--from", dest="since", type=day, metavar="DATE", help="first day, such as 2026-01-31")
    argument("--until", type=day, metavar="DATE", help="first day that is left out")
    argument(
        "--durability",
        choices=("ephemeral", "memory", "disk", "fsync"),
        help="of the topics; existing ones are changed",
    )
    argument("--job-id", help="name of the replay for idempotency (default: made of DIR)")
    argument("--batch-records", type=positive, default=5000, help="(default: %(default)s)")
    argument("--batch-bytes", type=byte_count, default=4 * MIB, help="(default: 4MiB)")
    add_servers(parser)


def local(text: str) -> Path:
    """A local folder."""
    if "://" in text:
        raise argparse.ArgumentTypeError("must be a local folder")
    return Path(text)


def template(text: str) -> str:
    """A name with ``{topic}`` in it."""
    if TOPIC not in text:
        raise argparse.ArgumentTypeError(f"must hold {TOPIC}, such as copy.{TOPIC}")
    return text


def day(text: str) -> str:
    """A date, ``YYYY-MM-DD``."""
    try:
        date.fromisoformat(text)
    except ValueError:
        text = ""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise argparse.ArgumentTypeError("must be a date like 2026-01-31")
    return text


def run(options: argparse.Namespace) -> Replayed:
    """Do the job."""
    return replay(
        options.directory,
        options.topic or options.into,
        topics=options.from_topic,
        since=options.since,
        until=options.until,
        servers=options.url,
        api_key=os.environ.get("TOPICS_API_KEY"),
        retries=options.retries,
        job_id=options.job_id,
        durability=options.durability,
        batch_records=options.batch_records,
        batch_bytes=options.batch_bytes,
        progress=None if options.quiet else sys.stderr,
    )
