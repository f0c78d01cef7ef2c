"""Archive check: compares an archive with the server after a run.

The query's progress contains the seqs that the run has read from each topic. If the files contain
the same number of records with the same sum of seqs, they contain each record once. Otherwise, seqs
were deleted, lost or duplicated, and the topic is read again. It is a fault if a record on the
server is missing from the files, or if the files contain a record twice.

Records are identified by epoch and seq, because an incarnation of a topic has the same seqs as an
earlier one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from topics.spark.jobs.streams import QueryProgress, Span, read_batch
from topics.spark.source.connection import Connection
from topics.spark.source.plan import Head, Heads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INCARNATION = ("partition", "topic", "epoch")
KEY = (*INCARNATION, "offset")
EVER = "0001-01-01"
MISSING, TWICE = "is on the server and not in the files", "is in the files twice"


@dataclass(slots=True, kw_only=True)
class Checked:
    """The check of an incarnation of a topic on a server (``partition``).

    A run read the records with the seqs (``after``, ``last``]. The source reported ``lost`` of
    these records as lost. No record in this range has a date before ``since``. The files contain
    ``rows`` of the records, and ``total`` is the sum of ``seq - after`` over these rows. ``fault``
    describes an error.
    """

    server: str
    topic: str
    epoch: int
    partition: int = 0
    after: int = 0
    last: int = 0
    lost: int = 0
    since: str = EVER
    rows: int = 0
    total: int = 0
    fault: str | None = None

    @property
    def absent(self) -> int:
        """The number of seqs without a record."""
        return max(0, self.last - self.after - self.rows)

    @property
    def is_complete(self) -> bool:
        """Whether each seq has a record."""
        count = self.last - self.after
        return (self.rows, self.total) == (count, count * (count + 1) // 2)


def check(
    spark: SparkSession,
    options: Mapping[str, str],
    run: QueryProgress,
    heads: Callable[[], Heads],
    before: Heads,
    rows: Callable[[str], DataFrame],
) -> list[Checked]:
    """Check the topics that a run has read, and the topics that it has not read completely.
    ``options`` are the connection options. ``before`` contains the ``heads`` before the run.
    ``rows`` reads the archive from a given date on. Raise the errors of the source.
    """
    from pyspark.sql import functions as f

    servers = Connection.parse(options).servers
    found = [
        checked(servers.index(server), server, topic, span, before.get(server, {}).get(topic))
        for (server, topic, _), span in run.spans.items()
        if span.start != span.end
    ]
    late = unread(run, before)
    now = heads() if late else {}
    if changed := [each for each in found if each.last > each.after]:
        archived = rows(min(each.since for each in changed))
        groups = within(spark, archived, changed).groupBy(*INCARNATION)
        distances = f.sum(f.col("offset") - f.col("after"))
        sums = {row[:3]: row[3:] for row in groups.agg(f.count("*"), distances).collect()}
        for each in changed:
            each.rows, each.total = sums.get((each.partition, each.topic, each.epoch), (0, 0))
        odd = [each for each in changed if not each.is_complete]
        now = now or (heads() if odd else {})
        if existing := [each for each in odd if is_current(each, now)]:
            compare(spark, options, archived, existing)
    # A topic that was deleted during the run may be missing from the offsets.
    return [*found, *(each for each in late if is_current(each, now))]


def checked(partition: int, server: str, topic: str, span: Span, head: Head | None) -> Checked:
    """Return the check of a span. ``head`` was the topic's head before the run. Records that were
    deleted before the run are not reported as lost.
    """
    (start, end), after, since = span, 0, EVER
    if start is not None:
        after = start.seq
        if start.head == start.seq and start.head_ts:  # `$ts` does not decrease within a topic
            since = datetime.fromtimestamp(start.head_ts / 1000, UTC).date().isoformat()
    elif head is not None and head.epoch == end.epoch:
        after = min(head.earliest - 1, end.seq)
    return Checked(
        server=server,
        partition=partition,
        topic=topic,
        epoch=end.epoch,
        after=after,
        last=end.seq,
        lost=end.lost - (start.lost if start else 0),
        since=since,
    )


def is_current(each: Checked, heads: Heads) -> bool:
    """Return whether the server still has this incarnation of the topic."""
    head = heads.get(each.server, {}).get(each.topic)
    return head is not None and head.epoch == each.epoch


def unread(run: QueryProgress, before: Heads) -> list[Checked]:
    """Return the topics that the query did not read up to their heads before the run."""
    found = []
    # If there are several incarnations, use the last one.
    ends = {(server, topic): span.end for (server, topic, _), span in run.spans.items()}
    for server, topics in before.items():
        for topic, head in topics.items():
            seq, epoch, *_ = ends.get((server, topic), (0, head.epoch))
            if epoch == head.epoch and seq < head.head:
                fault = f"the query ends at seq {seq:,}, and the head was {head.head:,} before"
                found.append(Checked(server=server, topic=topic, epoch=head.epoch, fault=fault))
    return found


def within(spark: SparkSession, rows: DataFrame, spans: Sequence[Checked]) -> DataFrame:
    """Return the rows of these incarnations between ``after`` and ``last``."""
    from pyspark.sql import functions as f

    values = [(each.partition, each.topic, each.epoch, each.after, each.last) for each in spans]
    ddl = "partition int, topic string, epoch bigint, after bigint, last bigint"
    wanted = f.broadcast(spark.createDataFrame(values, ddl))
    return rows.join(wanted, [*INCARNATION]).where("offset > after and offset <= last")


def compare(
    spark: SparkSession, options: Mapping[str, str], archived: DataFrame, spans: Sequence[Checked]
) -> None:
    """Compare each record of these spans in the archive with the server, and set their faults."""
    from pyspark.sql import functions as f

    starts: dict[str, dict[str, int]] = {}
    for each in spans:
        starts.setdefault(each.topic, {})[str(each.partition)] = each.after + 1
    wanted = {
        "subscribePattern": "|".join(map(re.escape, starts)),  # a topic may be on two servers
        "columns": ",".join(KEY),
        "startingOffsets": json.dumps(starts),
        "failOnDataLoss": "false",
    }
    there = within(spark, read_batch(spark, {**options, **wanted}), spans).select(*KEY)
    kept = within(spark, archived, spans).select(*KEY)
    missing = there.join(kept, [*KEY], "left_anti").withColumn("fault", f.lit(MISSING))
    twice = kept.groupBy(*KEY).count().where("count > 1").select(*KEY, f.lit(TWICE).alias("fault"))
    faults = missing.unionByName(twice).groupBy(*INCARNATION, "fault").agg(f.min("offset"))
    texts: dict[tuple[int, str, int], list[str]] = {}
    for partition, topic, epoch, fault, seq in faults.orderBy("fault", ascending=False).collect():
        texts.setdefault((partition, topic, epoch), []).append(f"seq {seq:,} {fault}")
    for each in spans:
        key = each.partition, each.topic, each.epoch
        each.fault = ", ".join(texts.get(key, ())) or None
