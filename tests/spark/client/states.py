"""The state of a topic as the client returns it, for models of a server."""

from __future__ import annotations

from typing import Any

from topics.client.values import TopicInfo, TopicState


def topic_info(name: str, head: int, earliest: int, epoch: int, ts: int | None) -> TopicInfo:
    """Return a topic of a list. ``ts`` is the time of its last record."""
    return TopicInfo(**_fields(name, head, earliest, epoch, ts), durable=False)


def topic_state(
    name: str, head: int, earliest: int, epoch: int, ts: int | None = None
) -> TopicState:
    """Return the state of a topic with an empty config."""
    fields = _fields(name, head, earliest, epoch, ts)
    return TopicState(**fields, type="log", next_seq=head + 1, config={})


def _fields(name: str, head: int, earliest: int, epoch: int, ts: int | None) -> dict[str, Any]:
    return {
        "name": name,
        "head_seq": head,
        "earliest_seq": earliest,
        "count": head + 1 - earliest,
        "bytes": 0,
        "epoch": epoch,
        "effective_priority": 0,
        "last_write_ts": ts,
    }
