"""Check of an archive: what a run wrote, against the server's own counts.

For each topic, the seqs that the query went through are known from its checkpoint. Those without a
record in the files are holes: deleted before they were read, or lost. A hole is right when the
server has no record there either, so each is asked for. A topic that the server has and the query
did not reach is told as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from topics.spark.client.http import TopicsClient
from topics.spark.client.servers import Servers
from topics.spark.jobs.archive_state import Figure
from topics.spark.jobs.arguments import located
from topics.spark.jobs.checkpoint import Positions
from topics.spark.source.connection import Connection, Patience
from topics.spark.source.offsets import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOLES_MAX = 200  # asked for, of a topic
TOPICS_MAX = 5_000  # whose heads are noted before a run
Heads = dict[tuple[str, str], int]  # by server and topic


class Hole(NamedTuple):
    """Seqs without a record, both ends inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One topic of one server: ``after`` and ``last`` bound the seqs that a run went through,
    ``rows`` of them are in the files, ``lost`` the source reported. ``fault`` says what is wrong.
    """

    server: str
    topic: str
    after: int
    last: int
    rows: int
    lost: int
    fault: str | None = None

    @property
    def absent(self) -> int:
        """Seqs without a record."""
        return max(0, self.last - self.after - self.rows)


def heads(connection: Connection, subscribe: str, *, is_pattern: bool) -> Heads:
    """The heads of the topics that a query is to reach. Raises `RequestError`."""
    found: Heads = {}
    members = connection.servers.members if is_pattern else [located(connection, subscribe)]
    for server in members:
        with connection.client(server, Patience.PLANNING) as client:
            names = _matching(client, subscribe) if is_pattern else [subscribe]
            for name in names:
                state = client.state(name)
                if state is not None:
                    found[server.name, name] = state["head_seq"]
                if len(found) >= TOPICS_MAX:
                    return found
    return found


def _matching(client: TopicsClient, pattern: str) -> Iterable[str]:
    wanted = re.compile(pattern)
    return filter(wanted.fullmatch, client.names())


def passed(
    servers: Servers, figures: Sequence[Figure], begin: Positions, end: Positions
) -> list[Checked]:
    """The seqs that a run went through, by topic. A topic without a position at the beginning
    starts with its first record: what was gone before is nobody's loss.
    """
    rows = {(servers.members[each.partition].name, each.topic): each for each in figures}
    found = []
    for (server, topic), at in sorted(end.items()):
        figure = rows.pop((server, topic), Figure(0, topic, 0, at.seq + 1, at.seq))
        before = begin.get((server, topic), Position(figure.first - 1, at.epoch))
        restarted = before.epoch != at.epoch  # the topic was made again
        found.append(
            Checked(
                server=server,
                topic=topic,
                after=figure.first - 1 if restarted else before.seq,
                last=at.seq,
                rows=figure.rows,
                lost=at.lost - before.lost,
            )
        )
    for (server, topic), figure in sorted(rows.items()):
        found.append(
            Checked(
                server=server,
                topic=topic,
                after=figure.first - 1,
                last=figure.last,
                rows=figure.rows,
                lost=0,
                fault=f"{figure.rows:,} records of a topic that the query has no offset of",
            )
        )
    return found


def fault_of(client: TopicsClient, each: Checked, holes: Sequence[Hole], before: int) -> str | None:
    """What is wrong with a topic: ``holes`` are some of those in the files, ``before`` its head
    before the run. Raises `RequestError`.
    """
    if each.fault is not None:
        return each.fault
    if each.rows > each.last - each.after:
        return f"{each.rows:,} records in {each.last - each.after:,} seqs"
    state = client.state(each.topic)
    if state is None:
        return None if each.last >= before else "the topic is gone"
    if each.last < min(before, state["head_seq"]):
        return f"it ends at seq {each.last:,}, and the head was {before:,} before"
    for hole in holes:
        page = client.diff(each.topic, from_seq=hole.first - 1, limit=1, tags=False, meta=False)
        if page.records and page.records[0].seq <= hole.last:
            return f"seq {page.records[0].seq:,} is on the server and not in the files"
    return None


def holes_in(df: DataFrame, each: Checked, partition: int) -> list[Hole]:
    """Holes in the archive's rows ``df`` between the ends of a topic, the first `HOLES_MAX`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    own = (
        (f.col("topic") == each.topic)
        & (f.col("partition") == partition)
        & f.col("offset").between(each.after + 1, each.last)
    )
    before = f.lag("offset", 1, each.after).over(Window.orderBy("offset"))
    rows = df.where(own).select("offset", before.alias("before"))
    found = rows.where("offset - before > 1").orderBy("offset").limit(HOLES_MAX).collect()
    holes = [Hole(row["before"] + 1, row["offset"] - 1) for row in found]
    ends = df.where(own).agg(f.max("offset")).collect()[0][0] or each.after
    return [*holes, Hole(ends + 1, each.last)] if ends < each.last else holes


def unreached(found: Sequence[Checked], before: Heads) -> list[Checked]:
    """Topics that had records before the run, and that the query knows nothing of."""
    known = {(each.server, each.topic) for each in found}
    return [
        Checked(
            server=server,
            topic=topic,
            after=0,
            last=head,
            rows=0,
            lost=0,
            fault=f"it had the head {head:,} before, and the query did not come to it",
        )
        for (server, topic), head in sorted(before.items())
        if head and (server, topic) not in known
    ]


def check(
    connection: Connection, found: Sequence[Checked], before: Heads, rows: Callable[[], DataFrame]
) -> list[Checked]:
    """The topics of a run with what is wrong with each; those in which nothing happened are left
    out. ``rows`` reads the archive. Raises `RequestError`.
    """
    checked = []
    for each in found:
        head = before.get((each.server, each.topic), 0)
        if each.last == each.after and not each.rows and each.last >= head:
            continue
        index = connection.servers.index(each.server)
        holes = holes_in(rows(), each, index) if each.absent else []
        with connection.client(connection.server(each.server)) as client:
            checked.append(replace(each, fault=fault_of(client, each, holes, head)))
    return [*checked, *unreached(found, before)]
