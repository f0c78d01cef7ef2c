"""Lag: how far a streaming query is behind, topic by topic, from the progress that Spark reports.

A source cannot give Spark metrics of its own; but progress has the offsets at the end of the batch
and the ends of the topics at that time (``latestOffset``), which is all that is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from topics.spark.source.offsets import BadOffset, Offsets, decode


class TopicLag(NamedTuple):
    """``records`` lie between ``seq``, the last one that was read, and the end of the topic, those
    included that were deleted. About ``lost`` were gone before they could be read.
    """

    server: str
    topic: str
    seq: int
    records: int
    lost: int


def lags(progress: Mapping[str, Any] | None) -> list[TopicLag]:
    """The lag of every topic that the query reads with this source; none before its first batch."""
    sources: Sequence[Any] = () if progress is None else progress["sources"]
    return [lag for source in sources for lag in _of_source(source)]


def _of_source(source: Mapping[str, Any]) -> Iterator[TopicLag]:
    end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    for server, topics in end.items():
        for topic, at in topics.items():
            until = latest.get(server, {}).get(topic)
            same = until is not None and until.epoch == at.epoch
            ahead = max(0, until.seq - at.seq) if until is not None and same else 0
            yield TopicLag(server, topic, at.seq, ahead, at.lost)


def _offsets(value: object) -> Offsets:
    """The offsets of a source of ours, else none: text in a progress, parsed in its JSON."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        return decode(found) if isinstance(found, dict) else {}
    except (ValueError, BadOffset):
        return {}
