"""Ranges: the records of a topic between two seqs, page by page, and what of them is lost.

A range is (after, last]: exclusive at its start as ``from_seq`` is (§3), inclusive at its end. Its
records come in ascending order; deleted seqs are passed over silently, as §3.2 says. What was
evicted, expired or taken with an earlier incarnation of the topic is told as `Lost`, clipped to the
range, before the records behind it. Of a topic that is deleted, all of the range is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from topics.spark.client.http import Record, TopicsClient
from topics.spark.client.request_error import RequestError

PAGE_RECORDS = 10_000  # asked for; the server clamps it to its own maximum
RECREATED = "recreated"
GONE = "gone"  # there is no such topic
UNSYNCED = "unsynced"  # a crash took them before they were durable


class Lost(NamedTuple):
    """Seqs ``first`` to ``last``, both inclusive, are gone for ``reason`` (§3.2): cap, ttl, mixed,
    source_trim, recreated, `GONE` or `UNSYNCED`. ``estimate``: about how many records that were.
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
    on_loss: Callable[[Lost], None],
) -> Iterator[list[Record]]:
    """Lists of records of (after, last], none of them empty.

    ``epoch`` is the incarnation that the range was planned for: records of another one are not
    read, all of the rest of the range is lost as `RECREATED`. ``on_loss`` may raise. Records whose
    node is ``node`` are left out. Raises `RequestError`.
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
            on_loss(Lost(at + 1, last, GONE, last - at))
            return
        gone = page.tombstone
        if (epoch is not None and page.epoch != epoch) or (
            gone is not None and gone.reason == RECREATED
        ):
            on_loss(Lost(at + 1, last, RECREATED, last - at))
            return
        if gone is not None and gone.gap_from <= last:
            end = min(gone.gap_to, last)
            share = end - gone.gap_from + 1
            estimate = min(gone.missed_estimate, share)
            on_loss(Lost(max(gone.gap_from, at + 1), end, gone.reason, estimate))
        records = page.records
        if records and records[-1].seq > last:
            records = [record for record in records if record.seq <= last]
        if records:
            yield records
        if page.next_from_seq <= at and page.caught_up:
            # The head lies before the end of the range.
            on_loss(Lost(at + 1, last, UNSYNCED, last - at))
            return
        at = page.next_from_seq
