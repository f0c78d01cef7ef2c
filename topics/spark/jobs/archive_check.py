"""Check of an archive: what a run wrote, against the offsets that it went through and the server.

Of each topic, the seqs that the query went through are known from its progress. If the files have
as many records with the same sum of seqs, they have each of them once. Else seqs are deleted, lost
or doubled, and the topic is read from the server again: a record that is there and not in the files
is a fault, and so is one that the files have twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from topics.spark.jobs.streams import Passage, read_batch
from topics.spark.source.connection import Connection
from topics.spark.source.offsets import Offsets, Position
from topics.spark.source.plan import Heads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = ("partition", "topic", "offset", "timestamp")  # two lives of a topic differ in the time
EVER = "0001-01-01"
MISSING, TWICE = "is on the server and not in the files", "is in the files twice"


@dataclass(slots=True, kw_only=True)
class Checked:
    """A topic of a server (``partition``): a run went through its seqs (``after``, ``last``], of
    which the source reported ``lost``, and wrote ``rows``, the sum of whose distances from
    ``after`` is ``total``. ``since``: none of them is of an earlier date. ``remade``: the topic was
    deleted and made again. ``fault`` says what is wrong.
    """

    server: str
    topic: str
    partition: int = 0
    after: int = 0
    last: int = 0
    lost: int = 0
    since: str = EVER
    remade: bool = False
    rows: int = 0
    total: int = 0
    fault: str | None = None

    @property
    def absent(self) -> int:
        """Seqs without a record."""
        return max(0, self.last - self.after - self.rows)

    @property
    def is_whole(self) -> bool:
        """Whether each seq has a record."""
        count = self.last - self.after
        return (self.rows, self.total) == (count, count * (count + 1) // 2)


def check(
    spark: SparkSession,
    options: Mapping[str, str],
    run: Passage,
    heads: Callable[[], Heads],
    before: Heads,
    rows: Callable[[str], DataFrame],
) -> list[Checked]:
    """The topics in which a run did something, or should have. ``options`` are those of the
    connection, ``before`` the ``heads`` before the run; ``rows`` reads the archive from a date on.
    Raises as the source.
    """
    from pyspark.sql import functions as f

    servers = Connection.parse(options).servers
    found = [
        passed(number, server.name, topic, run.begin, at, before)
        for number, server in enumerate(servers.members)
        for topic, at in run.end.get(server.name, {}).items()
        if at != run.begin.get(server.name, {}).get(topic)
    ]
    if moved := [each for each in found if each.last > each.after]:
        held = rows(min(each.since for each in moved))
        counts = within(spark, held, moved).groupBy("partition", "topic")
        beyond = f.sum(f.col("offset") - f.col("after"))
        sums = {row[:2]: row[2:] for row in counts.agg(f.count("*"), beyond).collect()}
        for each in moved:
            each.rows, each.total = sums.get((each.partition, each.topic), (0, 0))
        odd = [each for each in moved if each.remade or not each.is_whole]
        now = heads() if odd else {}
        if there := [each for each in odd if each.topic in now[each.server]]:
            compare(spark, options, held, there)
    if late := unreached(run.end, before):
        # A topic of a pattern that was deleted during the run has left the offsets.
        now = heads()
        late = [each for each in late if each.topic in now.get(each.server, {})]
    return [*found, *late]


def passed(
    partition: int, server: str, topic: str, begins: Offsets, at: Position, before: Heads
) -> Checked:
    """What a run went through in a topic, where it is now ``at``. What was gone before is nobody's
    loss.
    """
    begin, head = begins.get(server, {}).get(topic), before.get(server, {}).get(topic)
    after, since = 0, EVER
    if begin is not None and begin.epoch == at.epoch:
        after = begin.seq
        if begin.head == begin.seq and begin.head_ts:  # `$ts` never goes back within a topic
            since = datetime.fromtimestamp(begin.head_ts / 1000, UTC).date().isoformat()
    elif head is not None and head.epoch == at.epoch:
        after = min(head.earliest - 1, at.seq)
    return Checked(
        server=server,
        partition=partition,
        topic=topic,
        after=after,
        last=at.seq,
        lost=at.lost - (begin.lost if begin else 0),
        since=since,
        remade=begin is not None and begin.epoch != at.epoch,
    )


def unreached(end: Offsets, before: Heads) -> list[Checked]:
    """Topics of which the query did not come to the head that they had before."""
    found = []
    for server, topics in before.items():
        for topic, head in topics.items():
            at = end.get(server, {}).get(topic, Position(0, head.epoch))
            if at.epoch == head.epoch and at.seq < head.head:
                fault = f"the query ends at seq {at.seq:,}, and the head was {head.head:,} before"
                found.append(Checked(server=server, topic=topic, fault=fault))
    return found


def within(spark: SparkSession, rows: DataFrame, spans: Sequence[Checked]) -> DataFrame:
    """The rows of these topics between ``after`` and ``last``."""
    from pyspark.sql import functions as f

    values = [(each.partition, each.topic, each.after, each.last) for each in spans]
    ddl = "partition int, topic string, after bigint, last bigint"
    wanted = f.broadcast(spark.createDataFrame(values, ddl))
    return rows.join(wanted, ["partition", "topic"]).where("offset > after and offset <= last")


def compare(
    spark: SparkSession, options: Mapping[str, str], held: DataFrame, spans: Sequence[Checked]
) -> None:
    """Compare the rows of an archive, record by record, with what the server has of these topics,
    and note one fault of each.
    """
    from pyspark.sql import functions as f

    starts: dict[str, dict[str, int]] = {}
    for each in spans:
        starts.setdefault(each.topic, {})[str(each.partition)] = each.after + 1
    wanted = {
        "subscribePattern": "|".join(map(re.escape, starts)),  # may be on two servers each
        "startingOffsets": json.dumps(starts),
        "failOnDataLoss": "false",
    }
    there = within(spark, read_batch(spark, {**options, **wanted}), spans).select(*KEY)
    kept = within(spark, held, spans).select(*KEY)
    missing = there.join(kept, [*KEY], "left_anti").withColumn("fault", f.lit(MISSING))
    twice = kept.groupBy(*KEY).count().where("count > 1").select(*KEY, f.lit(TWICE).alias("fault"))
    first = missing.unionByName(twice).groupBy("partition", "topic", "fault").agg(f.min("offset"))
    faults: dict[tuple[int, str], list[str]] = {}
    for partition, topic, fault, seq in first.orderBy("fault", ascending=False).collect():
        faults.setdefault((partition, topic), []).append(f"seq {seq:,} {fault}")
    for each in spans:
        each.fault = ", ".join(faults.get((each.partition, each.topic), ())) or None
