"""Replay: appends the records of an archive to topics, in order, without a JVM.

    DeltaTable -> parts (topic, partition, epoch, date) -> windows of offsets, sorted -> Sender

Within an incarnation of a topic, timestamps do not decrease, so the dates are in the same order as
the offsets. Incarnations are replayed in the order of their epochs, which increase on a server.
Memory usage is bounded by the size of a window. A record keeps its value, key, node and headers,
and gets a new offset and timestamp.

Each part is a separate write, whose batches depend only on the part's records. Therefore a repeated
replay appends nothing, even if the table has been compacted in the meantime. A replay of an archive
that has grown appends only the new records. An exception is a date that has grown in the meantime,
because its last batch differs, so replay only complete days.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from topics.errors import ExitCode
from topics.spark.job_errors import JobError, UsageError, warn
from topics.spark.jobs.appending import Appended, open_dest
from topics.spark.jobs.archive_table import opened, table_errors
from topics.spark.jobs.arguments import Commands, add_common, sink_of
from topics.spark.progress import progress
from topics.spark.sink.columns import Columns
from topics.spark.sink.options import DURABILITIES, SinkOptions
from topics.spark.source.connection import Clients, ServerError

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC = "{topic}"  # placeholder in a template
NAMES = ("value", "key", "headers", "node")
COLUMNS = Columns(value=0, key=1, topic=None, headers=2, node=3)
WINDOW_ROWS = 250_000
WINDOW_BYTES = 128 << 20


class Part(NamedTuple):
    """The records of an incarnation of a topic on one date: ``rows`` records with offsets from
    ``first`` to ``last``. ``epoch`` is None in files of earlier versions.
    """

    topic: str
    partition: int
    epoch: int | None
    date: date
    rows: int
    first: int
    last: int


class Replayed(NamedTuple):
    """The counts of a replay by target topic. ``archived`` counts the records in the archive."""

    topics: dict[str, Appended]
    archived: int

    @property
    def records(self) -> int:
        """The number of records that this run or an earlier one has appended."""
        return sum(each.records for each in self.topics.values())

    @property
    def agrees(self) -> bool:
        """Whether all records were sent, and each topic's head is high enough to include them."""
        return self.records == self.archived and all(each.agrees for each in self.topics.values())

    def text(self) -> str:
        """Return the counts of each topic and of the archive."""
        whole = "all" if self.records == self.archived else "NOT all"
        lines = [each.text() for each in self.topics.values()]
        verdict = f"{self.records:,} records to {len(self.topics):,} topics: {whole} of the"
        return "\n".join([*lines, f"{verdict} {self.archived:,} records of the archive."])


class Archive:
    """The current table in ``directory``. Raise `UsageError` if there is none."""

    def __init__(self, directory: str) -> None:
        self.directory = directory if "://" in directory else str(Path(directory).resolve())
        self._table = opened(self.directory)
        if self._table is None:
            raise UsageError(
                f"{self.directory}: not a Delta table; use Spark to read a Parquet archive and to"
                ' write it by .write.format("topics")'
            )

    def _dataset(self, since: date, until: date) -> Any:
        import pyarrow as pa

        dates = [("date", ">=", str(since)), ("date", "<", str(until))]
        data = self._table.to_pyarrow_dataset(file_pruning_predicate=dates)
        if "epoch" in data.schema.names:
            return data
        return data.replace_schema(data.schema.append(pa.field("epoch", pa.int64())))

    def parts(self, topics: Sequence[str], since: date, until: date) -> list[Part]:
        """Return the parts in the order of a replay, from the date ``since`` to the day before
        ``until``. If ``topics`` is not empty, return only parts of these topics. Raise `JobError`
        if a topic has no parts.
        """
        from pyarrow import acero

        keys = ["topic", "partition", "epoch", "date"]
        columns = {"rows": "hash_count", "first": "hash_min", "last": "hash_max"}
        figures = [("offset", function, None, name) for name, function in columns.items()]
        scan = acero.ScanNodeOptions(self._dataset(since, until), columns=[*keys, "offset"])
        steps = [
            acero.Declaration("scan", scan),
            acero.Declaration("aggregate", acero.AggregateNodeOptions(figures, keys=keys)),
        ]
        with table_errors(self.directory):
            rows = acero.Declaration.from_sequence(steps).to_table().to_pylist()
        # Records that have no epoch are older than records of the same topic that have one.
        parts = sorted(
            (Part(**row) for row in rows),
            key=lambda part: (part.topic, part.partition, part.epoch or 0, part.date),
        )
        held = sorted({part.topic for part in parts})
        missing = sorted({*topics}.difference(held))
        if missing or not parts:
            what = f' of topic "{missing[0]}"' if missing else ""
            raise JobError(
                f"{self.directory}: it has no record{what} of these dates; the topics are:"
                f" {', '.join(held[:5]) or 'none'}"
            )
        return [part for part in parts if not topics or part.topic in topics]

    def batches(self, part: Part, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of a part in the order of their offsets, as batches of the columns
        `NAMES`. All batches except the last one have ``rows`` rows.
        """
        import pyarrow as pa

        rest: list[Any] = []
        for window in self._windows(part):
            table = pa.concat_tables([*rest, window])
            end = len(table) // rows * rows
            yield from table.slice(0, end).combine_chunks().to_batches(max_chunksize=rows)
            rest = [table.slice(end)]
        for table in rest:
            yield from table.combine_chunks().to_batches()

    def _windows(self, part: Part) -> Iterator[Any]:
        import pyarrow.compute as pc

        data = self._dataset(part.date, part.date + timedelta(days=1))
        with table_errors(self.directory):
            groups = [group for file in data.get_fragments() for group in file.row_groups]
        held = sum(group.total_byte_size for group in groups)
        size = max(1, held // sum(group.num_rows for group in groups))
        seqs = part.last - part.first + 1
        step = max(1, seqs * min(WINDOW_ROWS, WINDOW_BYTES // size) // part.rows)
        topic, partition, offset = (pc.field(name) for name in ("topic", "partition", "offset"))
        # Not `is_null`: deltalake declares that a column which a file lacks is not null.
        epoch = pc.coalesce(pc.field("epoch"), pc.scalar(0))
        of_part = (topic == part.topic) & (partition == part.partition)
        of_part &= epoch == (part.epoch or 0)
        for first in range(part.first, part.last + 1, step):
            wanted = of_part & (offset >= first) & (offset < first + step)
            with table_errors(self.directory):
                table = data.to_table(columns=[*NAMES, "offset"], filter=wanted)
            table = table.sort_by("offset")
            offsets = table["offset"].combine_chunks()
            twice = pc.index(pc.equal(offsets[1:], offsets[:-1]), value=True).as_py()
            if twice >= 0:
                raise JobError(
                    f'{self.directory}: offset {offsets[twice]} of topic "{part.topic}" is in it'
                    f" twice on {part.date}: an earlier version archived two incarnations of the"
                    " topic without their epochs, or the server was restored from a backup"
                )
            yield table.select([*NAMES])


def send(archive: Archive, part: Part, sink: SinkOptions, job: str, head: int) -> Appended:
    """Append a part to its topic. ``head`` is the topic's head before the replay."""
    from topics.spark.sink.sending import Sender

    topic, started = sink.topic, time.monotonic()
    assert topic is not None, "a replay knows its topics"
    epoch = () if part.epoch is None else (part.epoch,)  # earlier versions had no epoch here
    scope = f"replay:{(job, part.topic, *epoch, str(part.date))!r}"
    try:
        with Clients(sink.connection) as clients:
            place = {topic: clients.server_of(topic)}
            sender = Sender(sink, COLUMNS, scope, part.partition, place, {topic: head})
            figures = sender.send(archive.batches(part, sink.batch_records))
            head_after = clients.head(topic)
    except (ServerError, ValueError) as error:
        raise JobError(
            f"{error}; records that were appended before remain, and the same replay appends none"
            " of them twice"
        ) from error
    sent = figures.topics[topic]
    return Appended(
        topic=topic,
        records=sent.records,
        repeated=sent.repeated,
        requests=sent.requests,
        retries=figures.retries,
        seconds=time.monotonic() - started,
        head_after=head_after,
    )


def add(commands: Commands) -> None:
    """``topics-spark replay DIR TOPIC``."""
    parser = commands.add_parser(
        "replay",
        help="append the records of an archive to topics",
        description="Append the records of an archive, a Delta table that 'topics-spark archive'"
        " wrote, to a topic, in their order and with key, node and headers. No JVM is started."
        " The same replay run again appends nothing.",
        epilog=ExitCode.summary(),
    )
    argument = parser.add_argument
    argument("directory", metavar="DIR", help="the archive: a path, or a URI of an object store")
    into = parser.add_mutually_exclusive_group(required=True)
    into.add_argument("topic", metavar="TOPIC", nargs="?", help="the target topic")
    into.add_argument(
        "--into",
        metavar="TEMPLATE",
        help="a target for each source topic, such as copy.{topic}",
    )
    argument(
        "--from-topic",
        action="append",
        default=[],
        metavar="NAME",
        help="name of a source topic, may be repeated (default: all)",
    )
    day: dict[str, Any] = {"type": date.fromisoformat, "metavar": "DATE"}
    argument("--from", dest="since", default=date.min, help="first day, such as 2026-01-31", **day)
    argument("--until", default=date.max, help="first excluded day", **day)
    argument("--durability", choices=DURABILITIES, help="of the topics; also set on existing ones")
    argument("--job-id", help="name of the replay for idempotency (default: from DIR)")
    add_common(parser, cores=False)


def run(options: argparse.Namespace) -> Replayed:
    """Run the job that the command line specifies. Raise `JobError` or `ServerError`. Records that
    were appended before an error remain, and repeating the replay does not append them twice.

    If the template contains ``{topic}``, it names a target for each source topic. Otherwise,
    several source topics are written to one target only if they are listed.
    """
    archive, into = Archive(options.directory), options.topic or options.into
    parts = archive.parts(options.from_topic, options.since, options.until)
    if len({part.topic for part in parts}) > 1 and TOPIC not in into and not options.from_topic:
        raise JobError(
            f"{options.directory}: it has records of several topics; select them by --from-topic,"
            " or name a target for each by --into, such as copy.{topic}"
        )
    today = datetime.now(UTC).date()
    if any(part.date >= today for part in parts):
        warn(
            f"the archive has records of {today}, and may get more; then another replay of that day"
            f" appends up to a batch of records again. --until {today} excludes it"
        )
    job = options.job_id or blake2b(archive.directory.encode(), digest_size=8).hexdigest()
    targets = dict.fromkeys(into.replace(TOPIC, part.topic) for part in parts)
    sinks = {topic: sink_of(options, topic, durability=options.durability) for topic in targets}
    # All topics are opened before the first record is sent.
    done = {
        topic: Appended(topic=topic, head_before=open_dest(sink)) for topic, sink in sinks.items()
    }
    result = Replayed(done, sum(part.rows for part in parts))
    with progress(lambda: result.records, quiet=options.quiet):
        for part in parts:
            topic = into.replace(TOPIC, part.topic)
            sent = send(archive, part, sinks[topic], job, done[topic].head_before)
            done[topic] = done[topic].and_then(sent)
    return result
