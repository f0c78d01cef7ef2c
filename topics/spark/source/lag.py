"""Lag: the number of records that a streaming query has not read yet, for each topic.

In Spark 4.3, a Python source cannot report metrics of its own. Instead, the lag is computed from
the query's progress. The progress contains the offsets at the end of a batch, and the ends of the
topics at that time (``latestOffset``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from topics.spark.source.offsets import BadOffset, Offsets, decode


class TopicLag(NamedTuple):
    """The lag of a topic. ``records`` is the number of seqs between ``seq``, the last seq that was
    read, and the end of the topic, including deleted records. About ``lost`` records were lost
    before they were read.
    """

    server: str
    topic: str
    seq: int
    records: int
    lost: int


def lags(progress: Mapping[str, Any] | None) -> list[TopicLag]:
    """Return the lag of every topic that the query reads, or no lags before the first batch."""
    found = []
    for source in () if progress is None else progress["sources"]:
        latest = offsets_of(source["latestOffset"])
        for server, topics in offsets_of(source["endOffset"]).items():
            for topic, at in topics.items():
                end = latest.get(server, {}).get(topic)
                records = max(0, end.seq - at.seq) if end and end.epoch == at.epoch else 0
                found.append(TopicLag(server, topic, at.seq, records, at.lost))
    return found


def offsets_of(value: object) -> Offsets:
    """Return the offsets of a topics source, or none for another source. They may be JSON text."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        return decode(found) if isinstance(found, dict) else {}
    except (ValueError, BadOffset):
        return {}
