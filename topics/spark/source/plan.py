"""Plan: which ranges of seqs are read. Pure: what the servers hold comes in as `Heads`.

A batch read is ranges that are fixed when it is planned, each with the topic's epoch. A stream's
batch is the ranges between two offsets, and so is its repetition after a crash: nothing else is
looked at. That is why a topic that is new, or was made again, enters a stream's offsets with a
batch that reads nothing of it: the next one begins at a position that the checkpoint has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from topics.spark.client.ranges import GONE, RECREATED, UNSYNCED, Lost
from topics.spark.source.offsets import EARLIEST, LATEST, Bounds, Offsets, Position, seq_before

REWOUND = "rewound"  # the log ends before what was read of it, or goes on otherwise
REASONS = {
    "cap": "evicted, to keep the topic within its caps",
    "ttl": "expired, older than the topic's ttl_ms",
    "mixed": "evicted or expired",
    "source_trim": "gone from the source of a router before it could forward them",
    RECREATED: "the topic was deleted and made again",
    GONE: "it was deleted, or is no longer subscribed to on this server",
    UNSYNCED: "a crash took them before they were durable",
    REWOUND: "the server has an older state, as of a restored backup; others may have their place",
}
GO_ON = "give failOnDataLoss=false to go on without them"


class DataLost(Exception):
    """Records that should be read are gone. One line: topic, server, offsets, reason."""


class Head(NamedTuple):
    """What a topic holds: seqs ``earliest`` to ``head`` of the incarnation ``epoch``. ``ts`` is the
    `$ts` of ``head``, 0 where it is not known.
    """

    earliest: int
    head: int
    epoch: int
    ts: int = 0


# By the server's name, then by topic.
Heads = dict[str, dict[str, Head]]


class Range(NamedTuple):
    """(after, last] of a topic's incarnation on a server."""

    server: str
    topic: str
    after: int
    last: int
    epoch: int


class Step(NamedTuple):
    """What a stream can do in one topic: go from ``at`` up to ``head``, whose `$ts` is ``ts``."""

    server: str
    topic: str
    at: Position
    head: int
    ts: int = 0

    @property
    def lag(self) -> int:
        """How many seqs lie ahead."""
        return max(0, self.head - self.at.seq)


def bound(bounds: Bounds, topic: str, partition: int, head: Head) -> int:
    """The seq before a bound that is no time. Raises `DataLost` beyond the end."""
    offset, end = bounds.of(topic, partition), head.head + 1
    if offset == LATEST:
        return head.head
    if offset == EARLIEST:
        return head.earliest - 1
    if offset > end:
        raise DataLost(
            f'option {bounds.option} has offset {offset} for topic "{topic}", which ends at {end}'
        )
    return seq_before(offset)


def pack(ranges: Sequence[Range], max_records: int, min_tasks: int) -> list[tuple[Range, ...]]:
    """The ranges, in their order, for tasks of equal size: of at most ``max_records`` seqs, and at
    least ``min_tasks`` of them if there are as many seqs.

    The ranges are laid end to end on a line, which is then cut: a large range is divided among
    several tasks, and many small ranges share a task. A range whose end is not above its start is
    dropped first, because a negative length would shorten the line and cut off other ranges.
    """
    ranges = [found for found in ranges if found.last > found.after]
    total = sum(found.last - found.after for found in ranges)
    count = max(-(-total // max_records), min(min_tasks, total))
    tasks: list[tuple[Range, ...]] = []
    task: list[Range] = []
    taken = 0
    for found in ranges:
        after = found.after
        while after < found.last:
            cut = total * (len(tasks) + 1) // count
            last = min(found.last, after + cut - taken)
            task.append(Range(found.server, found.topic, after, last, found.epoch))
            taken += last - after
            after = last
            if taken == cut:
                tasks.append(tuple(task))
                task = []
    return tasks


def split_absent(
    start: Offsets, heads: Heads, is_droppable: Callable[[str], bool]
) -> tuple[Offsets, Offsets]:
    """Return the positions that a stream keeps, and those of absent topics that it may drop.

    A topic is absent if its server has replied and does not have it. Servers without a reply keep
    their positions.
    """
    kept: Offsets = {server: dict(topics) for server, topics in start.items()}
    absent: Offsets = {}
    for server, topics in heads.items():
        for topic in start.get(server, {}).keys() - topics.keys():
            if is_droppable(topic):
                absent.setdefault(server, {})[topic] = kept[server].pop(topic)
    return kept, absent


def unread(at: Position, head: Head | None) -> int:
    """Return how many seqs after a position are known: from its batch, or from an earlier ``head``
    of the same incarnation.
    """
    known = head.head if head is not None and head.epoch == at.epoch else 0
    return max(0, known - at.seq, at.head - at.seq)


def steps(
    start: Offsets, heads: Heads, before: Heads, on_loss: Callable[[str, str, Lost], None]
) -> list[Step]:
    """Return what a stream at ``start`` can do, by server and topic. ``on_loss`` is called for
    deleted and recreated topics, and may raise; ``before`` are the heads of the previous poll, from
    which the number of lost records is estimated.

    A deleted topic keeps its position, so that its next incarnation is reported as `RECREATED`. The
    topics that may be dropped instead were removed from ``start`` by `split_absent`.
    """
    found: list[Step] = []
    for server, topics in heads.items():
        for topic, at in start.get(server, {}).items():
            now = topics.get(topic)
            if now is not None and now.epoch == at.epoch:
                found.append(Step(server, topic, at, now.head, now.ts))
                continue
            count = unread(at, before.get(server, {}).get(topic))
            reason = GONE if now is None else RECREATED
            on_loss(server, topic, Lost(at.seq + 1, at.seq + count, reason, count))
            found.append(
                Step(server, topic, at, at.seq)
                if now is None
                else _beginning(server, topic, now, at.lost + count)
            )
        new = topics.keys() - start.get(server, {}).keys()
        found += [_beginning(server, topic, topics[topic], 0) for topic in sorted(new)]
    return found


def _beginning(server: str, topic: str, head: Head, lost: int) -> Step:
    """A topic enters with its earliest record ahead, of which this batch reads nothing."""
    at = Position(head.earliest - 1, head.epoch, lost)
    return Step(server, topic, at, at.seq)


def skip(step: Step, lost: Lost) -> Step:
    """The step beyond seqs that are gone, with their count."""
    at = step.at
    return step._replace(
        at=Position(max(at.seq, lost.last), at.epoch, at.lost + max(0, lost.estimate))
    )


def rewind(step: Step, seq: int) -> Step:
    """The step when of the log that was read only what is up to ``seq`` is left: this batch reads
    nothing, the next one goes on there. Records that were seen and not read are lost.
    """
    at = step.at
    lost = max(0, at.head - max(at.seq, seq))
    at = Position(min(at.seq, seq), at.epoch, at.lost + lost)
    return step._replace(at=at, head=at.seq, ts=0)


def advance(start: Offsets, found: Sequence[Step], limit: int | None) -> Offsets:
    """The offsets after a batch of at most ``limit`` seqs, at least one of every topic with any.

    Servers that are not among the steps keep their positions.
    """
    taken = shares([step.lag for step in found], limit)
    end = {server: dict(topics) for server, topics in start.items()}
    for step, count in zip(found, taken, strict=True):
        at, topics = step.at, end.setdefault(step.server, {})
        if count or at != topics.get(step.topic):
            at = at._replace(seq=at.seq + count, head=step.head, head_ts=step.ts)
        topics[step.topic] = at
    return end


def shares(lags: Sequence[int], limit: int | None) -> list[int]:
    """Parts of ``limit`` in proportion to the lags: none above its lag, none below 1 where there
    is any lag.
    """
    total = sum(lags)
    if limit is None or total <= limit:
        return list(lags)
    ones = [min(1, lag) for lag in lags]
    above, rest = total - sum(ones), max(0, limit - sum(ones))
    taken = [one + (lag - one) * rest // max(1, above) for one, lag in zip(ones, lags, strict=True)]
    spare = limit - sum(taken)
    for index, lag in enumerate(lags):
        more = max(0, min(spare, lag - taken[index], 1))
        taken[index] += more
        spare -= more
    return taken


def between(start: Offsets, end: Offsets) -> list[Range]:
    """The ranges that a batch reads: the same whenever it is asked for."""
    return [
        Range(server, topic, at.seq, until.seq, until.epoch)
        for server, topics in sorted(end.items())
        for topic, until in sorted(topics.items())
        if (at := start.get(server, {}).get(topic)) is not None
        and at.epoch == until.epoch
        and until.seq > at.seq
    ]


def loss_text(server: str, topic: str, lost: Lost) -> str:
    """What is gone, for people, in one line."""
    where = f'topic "{topic}" on server {server}'
    reason = REASONS.get(lost.reason, lost.reason)
    if lost.reason in (GONE, RECREATED, REWOUND):
        return f"{where}: {reason}; offsets from {lost.first} are gone"
    return (
        f"{where}: offsets {lost.first} to {lost.last} are gone, about {lost.estimate} records:"
        f" {reason}"
    )


def positions(heads: Heads) -> Offsets:
    """The ends of all topics, as offsets."""
    return {
        server: {topic: Position(head.head, head.epoch) for topic, head in topics.items()}
        for server, topics in heads.items()
    }
