"""Ranges: the records of a topic between two seqs, page by page, and the losses among them.

A range is (after, last]: exclusive at its start like ``from_seq`` (§3), inclusive at its end. Its
records are returned in ascending order. Deleted records are skipped silently (§3.2). Evicted and
expired records are reported as a `Loss`, clipped to the range, before the records that follow them.
If the topic was deleted or recreated, the rest of the range is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from topics.spark.client.http import Record, RequestError, TopicsClient

PAGE_RECORDS = 10_000  # requested page size; the server clamps it to its own maximum
RECREATED = "recreated"
DELETED = "deleted"  # the topic does not exist
UNSYNCED = "unsynced"  # the records were lost in a server crash before they were durable


class Loss(NamedTuple):
    """The seqs ``first`` to ``last``, both inclusive, were lost for a ``reason``: cap, ttl, mixed
    or source_trim (§3.2), or one of the constants above. ``estimate`` is the number of records.
    """

    first: int
    last: int
    reason: str
    estimate: int


class Range(NamedTuple):
    """The seqs (after, last] of a topic's incarnation on a server."""

    server: str
    topic: str
    after: int
    last: int
    epoch: int


def read_range(
    client: TopicsClient, part: Range, on_loss: Callable[[Loss], None], **fields: Any
) -> Iterator[list[Record]]:
    """Yield the records of a range in nonempty lists. ``fields`` are additional fields for
    `TopicsClient.diff`. ``on_loss`` may raise. Raise `RequestError`.
    """
    at, last = part.after, part.last
    while at < last:
        limit = min(PAGE_RECORDS, last - at)
        try:
            page = client.diff(part.topic, from_seq=at, limit=limit, epoch=part.epoch, **fields)
        except RequestError as error:
            if error.code != "topic_not_found":
                raise
            on_loss(Loss(at + 1, last, DELETED, last - at))
            return
        if page.epoch != part.epoch:
            on_loss(Loss(at + 1, last, RECREATED, last - at))
            return
        gap = page.tombstone
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
