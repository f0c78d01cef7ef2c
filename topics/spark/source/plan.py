"""Plan: the seq ranges that a read covers. They depend only on the servers' `Heads` and on offsets.

A batch read consists of ranges that are fixed when it is planned, each with the topic's epoch. A
batch of a stream consists of the ranges between two offsets. They depend on nothing else, so that a
batch that Spark repeats after a crash reads the same records. Therefore, a new or recreated topic
is added to a stream's offsets in a batch that reads none of its records. The next batch then starts
at a position that is in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from topics.spark.client.ranges import DELETED, RECREATED, UNSYNCED, Loss, Range
from topics.spark.source.offsets import Offsets, Position

REWOUND = "rewound"  # the log ends before the last record that was read, or differs from it
REASONS = {
    "cap": "evicted, to keep the topic within its caps",
    "ttl": "expired, older than the topic's ttl_ms",
    "mixed": "evicted, expired, or lost at a restart or at the promotion of a standby",
    "source_trim": "deleted from the source of a router before they were forwarded",
    RECREATED: "the topic was deleted and created again",
    DELETED: "it was deleted, or is no longer subscribed to on this server",
    UNSYNCED: "a crash of the server lost them before they were durable",
    REWOUND: (
        "the server has an older state, as after the restore of a backup, and may have assigned"
        " their offsets to other records"
    ),
}


class DataLost(Exception):
    """Records that a read must return are lost. The text is one line with topic and reason."""


class Head(NamedTuple):
    """The seqs ``earliest`` to ``head`` of a topic's incarnation ``epoch``. ``ts`` is the `$ts` of
    ``head``, 0 if it is not known.
    """

    earliest: int
    head: int
    epoch: int
    ts: int = 0


# The heads by server name, then by topic.
Heads = dict[str, dict[str, Head]]


class Step(NamedTuple):
    """The records of one topic that a stream can read next, after ``at`` and up to ``head``, or up
    to ``end`` if it is not 0. ``ts`` is the `$ts` of ``head``.
    """

    server: str
    topic: str
    at: Position
    head: int
    ts: int = 0
    end: int = 0

    @property
    def lag(self) -> int:
        """The number of seqs to read."""
        return max(0, (self.end or self.head) - self.at.seq)


def pack(ranges: Sequence[Range], max_records: int, min_tasks: int) -> list[tuple[Range, ...]]:
    """Divide the ranges, in order, among tasks of equal size. A task has at most ``max_records``
    seqs, and there are at least ``min_tasks`` tasks if there are enough seqs.

    The ranges are laid end to end on a line, which is then cut: a large range is divided among
    several tasks, and many small ranges share a task. A range whose end is not above its start is
    dropped first, because a negative length would shorten the line and cut off other ranges.
    """
    ranges = [part for part in ranges if part.last > part.after]
    total = sum(part.last - part.after for part in ranges)
    count = max(-(-total // max_records), min(min_tasks, total))
    tasks: list[tuple[Range, ...]] = []
    task: list[Range] = []
    taken = 0
    for part in ranges:
        after = part.after
        while after < part.last:
            cut = total * (len(tasks) + 1) // count
            last = min(part.last, after + cut - taken)
            task.append(part._replace(after=after, last=last))
            taken += last - after
            after = last
            if taken == cut:
                tasks.append(tuple(task))
                task = []
    return tasks


def split_absent(
    start: Offsets, heads: Heads, is_droppable: Callable[[str], bool]
) -> tuple[Offsets, Offsets]:
    """Return the positions that a stream keeps, and the positions of absent topics to drop.

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


def unread(server: str, topic: str, at: Position, before: Heads, reason: str) -> Loss:
    """Return the known seqs after a position, as a loss. They are known from the position's batch,
    and from ``before``, the heads of an earlier poll, if the epoch is the same.
    """
    head = before.get(server, {}).get(topic)
    last = max(at.seq, at.head, head.head if head is not None and head.epoch == at.epoch else 0)
    return Loss(at.seq + 1, last, reason, last - at.seq)


def steps(
    start: Offsets, heads: Heads, before: Heads, on_loss: Callable[[str, str, Loss], None]
) -> list[Step]:
    """Return the steps of a stream at ``start``. ``on_loss`` is called with the `unread` records of
    each deleted or recreated topic, and may raise.

    A deleted topic keeps its position, so that its next incarnation is reported as `RECREATED`.
    Topics whose positions are dropped instead must not be in ``start`` (`split_absent`).
    """
    found: list[Step] = []
    for server, topics in heads.items():
        positions = start.get(server, {})
        for topic, at in positions.items():
            now = topics.get(topic)
            if now is not None and now.epoch == at.epoch:
                found.append(Step(server, topic, at, now.head, now.ts))
                continue
            loss = unread(server, topic, at, before, DELETED if now is None else RECREATED)
            on_loss(server, topic, loss)
            found.append(
                Step(server, topic, at, at.seq)
                if now is None
                else _first_step(server, topic, now, at.lost + loss.estimate)
            )
        new = sorted(topics.keys() - positions.keys())
        found += [_first_step(server, topic, topics[topic], 0) for topic in new]
    return found


def _first_step(server: str, topic: str, head: Head, lost: int) -> Step:
    """Return the step of a new topic: a position before its earliest record, and no records."""
    at = Position(head.earliest - 1, head.epoch, lost)
    return Step(server, topic, at, at.seq)


def skip(step: Step, loss: Loss) -> Step:
    """Return the step after lost seqs, which are counted."""
    at = step.at
    return step._replace(
        at=Position(max(at.seq, loss.last), at.epoch, at.lost + max(0, loss.estimate))
    )


def rewind(step: Step, seq: int) -> Step:
    """Return the step for a log that has only the records up to ``seq`` in common with the log that
    was read. This batch reads nothing, and the next one continues after ``seq``. Known unread
    records in the earlier log are counted as lost.
    """
    at = step.at
    lost = max(0, at.head - max(at.seq, seq))
    at = Position(min(at.seq, seq), at.epoch, at.lost + lost)
    return step._replace(at=at, head=at.seq, ts=0)


def advance(start: Offsets, found: Sequence[Step], limit: int | None) -> Offsets:
    """Return the offsets after a batch of at most ``limit`` seqs, but at least one seq of each
    topic that has unread seqs. Topics without a step keep their positions.
    """
    counts = divide([step.lag for step in found], limit)
    end = {server: dict(topics) for server, topics in start.items()}
    for step, count in zip(found, counts, strict=True):
        at, topics = step.at, end.setdefault(step.server, {})
        if count or at != topics.get(step.topic):
            at = at._replace(seq=at.seq + count, head=step.head, head_ts=step.ts)
        topics[step.topic] = at
    return end


def divide(lags: Sequence[int], limit: int | None) -> list[int]:
    """Divide ``limit`` in proportion to the lags. No share is above its lag, and none is below 1 if
    the lag is not 0.
    """
    total = sum(lags)
    if limit is None or total <= limit:
        return list(lags)
    ones = [min(1, lag) for lag in lags]
    above, rest = total - sum(ones), max(0, limit - sum(ones))
    # The lags above one are laid end to end, and their ends are scaled to the rest of the limit.
    ends = accumulate(lag - one for lag, one in zip(lags, ones, strict=True))
    cuts = pairwise([0, *(end * rest // max(1, above) for end in ends)])
    return [one + last - after for one, (after, last) in zip(ones, cuts, strict=True)]


def ranges_between(start: Offsets, end: Offsets) -> list[Range]:
    """Return the ranges that a batch reads. The result depends only on the two offsets.

    If the end position counts more losses than the start position, they are directly after the
    start position (`skip`).
    """
    return [
        Range(server, topic, at.seq + max(0, until.lost - at.lost), until.seq, until.epoch)
        for server, topics in sorted(end.items())
        for topic, until in sorted(topics.items())
        if (at := start.get(server, {}).get(topic)) is not None
        and at.epoch == until.epoch
        and until.seq > at.seq
    ]


def loss_text(server: str, topic: str, loss: Loss) -> str:
    """Return one line that describes a loss to the user."""
    where = f'topic "{topic}" on server {server}'
    reason = REASONS.get(loss.reason, loss.reason)
    if loss.reason in (DELETED, RECREATED, REWOUND):
        return f"{where}: {reason}; offsets from {loss.first} are lost"
    return (
        f"{where}: offsets {loss.first} to {loss.last} are lost, about {loss.estimate} records:"
        f" {reason}"
    )
