"""Ranges: the records of a topic between two seqs, page by page, and the losses among them.

A range is (after, last]: exclusive at its start like ``from_seq`` (§3), inclusive at its end. Its
records are returned in ascending order. Deleted records are skipped silently (§3.2). Evicted and
expired records are reported as a `Loss`, clipped to the range, before the records that follow them.
If the topic was deleted or recreated, the rest of the range is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from topics.spark.client.http import Record, TopicsClient
from topics.spark.client.request_error import RequestError

PAGE_RECORDS = 10_000  # requested; the server clamps it to its own maximum
RECREATED = "recreated"
DELETED = "deleted"  # the topic does not exist
UNSYNCED = "unsynced"  # a crash of the server lost them before they were durable


class Loss(NamedTuple):
    """The seqs ``first`` to ``last``, both inclusive, were lost for a ``reason``: cap, ttl, mixed
    or source_trim (§3.2), or one of the constants above. ``estimate`` is the number of records.
    """

    first: int
    last: int
    reason: str
    estimate: int


def read_range(
    client: TopicsClient,
    topic: str,
    after: int,
    last: int,
    *,
    epoch: int | None = None,
    tags: bool = True,
    meta: bool = True,
    node: str | None = None,
    on_loss: Callable[[Loss], None],
) -> Iterator[list[Record]]:
    """Yield the records of (after, last] in lists that are not empty. Raise `RequestError`.

    ``epoch`` is the incarnation that the range was planned for. No records of another one are read:
    the rest of the range is lost as `RECREATED`. Records of the node ``node`` are left out.
    ``on_loss`` may raise.
    """
    at = after
    while at < last:
        try:
            page = client.diff(
                topic,
                from_seq=at,
                limit=min(PAGE_RECORDS, last - at),
                epoch=epoch,
                tags=tags,
                meta=meta,
                node=node,
            )
        except RequestError as error:
            if error.code != "topic_not_found":
                raise
            on_loss(Loss(at + 1, last, DELETED, last - at))
            return
        gap = page.tombstone
        if (epoch is not None and page.epoch != epoch) or (
            gap is not None and gap.reason == RECREATED
        ):
            on_loss(Loss(at + 1, last, RECREATED, last - at))
            return
        if gap is not None and gap.gap_from <= last:
            end = min(gap.gap_to, last)
            estimate = min(gap.missed_estimate, end - gap.gap_from + 1)
            on_loss(Loss(max(gap.gap_from, at + 1), end, gap.reason, estimate))
        records = page.records
        if records and records[-1].seq > last:
            records = [record for record in records if record.seq <= last]
        if records:
            yield records
        if page.next_from_seq <= at and page.caught_up:
            # The head is below the end of the range.
            on_loss(Loss(at + 1, last, UNSYNCED, last - at))
            return
        at = page.next_from_seq
