"""JSON responses to topic requests (§1 to §5), rendered as bytes.

Topic names are plain ASCII and need no escaping. If the end of a response is known only later, the
response is rendered in two parts: the bytes before ``performance``, and the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from topics.formats.api.topic_config import TopicConfig, config_json
from topics.formats.buffers import Buffer
from topics.formats.json_text import json_bytes

_BOOL = (b"false", b"true")
NOT_THROTTLED = b',"throttle_wait_ms":0.0'


def performance(
    total_ms: float,
    *,
    wal_ms: float | None = None,
    fsync_ms: float | None = None,
    throttle_ms: float | None = None,
) -> bytes:
    """Render the ``performance`` member (§0.9) and the end of the object.

    ``throttle_ms`` is given only for an append or a claim.
    """
    throttle = b"" if throttle_ms is None else _throttle(throttle_ms)
    if wal_ms is None:
        return b',"performance":{"server_total_ms":%.3f%b}}' % (total_ms, throttle)
    return b',"performance":{"server_total_ms":%.3f%b,"wal_append_ms":%.3f,"fsync_ms":%.3f}}' % (
        total_ms,
        throttle,
        wal_ms,
        fsync_ms or 0.0,
    )


def _throttle(throttle_ms: float) -> bytes:
    return b',"throttle_wait_ms":%.3f' % throttle_ms if throttle_ms else NOT_THROTTLED


def appended(
    topic: str,
    first_seq: int,
    count: int,
    ending: bytes,
    *,
    with_seqs: bool,
    created: bool,
    deduped: bool,
) -> bytes:
    """Render the response to an append (§2). ``ending`` is the result of `performance`.

    ``head_seq`` is the last seq of the append itself, so that a retry gets the same response.
    """
    last_seq = first_seq + count - 1
    if not with_seqs:
        seqs = b""
    elif count == 1:
        seqs = b'"seqs":[%d],' % first_seq
    else:
        seqs = b'"seqs":[%b],' % b",".join([b"%d" % seq for seq in range(first_seq, last_seq + 1)])
    return (
        b'{"topic":"%b","first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,'
        b'"created":%b,"deduped":%b%b'
    ) % (
        topic.encode(),
        first_seq,
        last_seq,
        seqs,
        last_seq,
        count,
        _BOOL[created],
        _BOOL[deduped],
        ending,
    )


def difference(topic: str, chunks: Sequence[Buffer], end: bytes = b"") -> bytes:
    """Render the response to a diff (§3): the records, and ``end``, the result of `difference_end`.

    The records are copied once.
    """
    spaced: list[Buffer] = [b","] * (2 * len(chunks) - 1)
    spaced[::2] = chunks
    return b"".join((b'{"topic":"%b","records":[' % topic.encode(), *spaced, end))


def difference_end(
    *,
    next_from_seq: int,
    head_seq: int,
    earliest_seq: int,
    epoch: int,
    tombstone: dict[str, Any] | None,
    scanned: int,
    total_ms: float,
    throttle_ms: float = 0.0,
) -> bytes:
    """Render the part of the response to a diff that follows its records."""
    caught_up = next_from_seq >= head_seq
    return (
        b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"tombstone":%b,'
        b'"lag":%d,"epoch":%d,"performance":{"server_total_ms":%.3f,"records_scanned":%d%b}}'
    ) % (
        next_from_seq,
        head_seq,
        earliest_seq,
        _BOOL[caught_up],
        json_bytes(tombstone),
        max(0, head_seq - next_from_seq),
        epoch,
        total_ms,
        scanned,
        _throttle(throttle_ms),
    )


def configured(
    topic: str,
    config: TopicConfig,
    *,
    created: bool,
    epoch: int | None,
    dropped: int | None,
    dry_run: bool = False,
) -> bytes:
    """Return the response to a topic PUT (§1.1) up to ``performance``.

    ``epoch`` is None if a dry run would create the topic. ``dropped`` is the number of records that
    caps and age have removed, or None if neither has changed.
    """
    return b'{"topic":"%b","created":%b,"config":%b%b%b%b' % (
        topic.encode(),
        _BOOL[created],
        config_json(config),
        b"" if epoch is None else b',"epoch":%d' % epoch,
        b"" if dropped is None else b',"dropped":%d' % dropped,
        b',"dry_run":true' if dry_run else b"",
    )


def deleted(topic: str, *, existed: bool, routers: Iterable[str] = ()) -> bytes:
    """Render the response to a topic DELETE (§1.4) up to ``performance``.

    ``routers`` are the routers that were deleted with the topic, if the caller's key may see them.
    """
    removed = json_bytes(sorted(routers))
    return b'{"topic":"%b","deleted":%b,"routers_removed":%b' % (
        topic.encode(),
        _BOOL[existed],
        removed,
    )


def records_deleted(
    topic: str, removed: int, *, earliest_seq: int, head_seq: int, count: int, size: int
) -> bytes:
    """Render the response to a delete of records (§5) up to ``performance``."""
    return b'{"topic":"%b","deleted":%d,"earliest_seq":%d,"head_seq":%d,"count":%d,"bytes":%d' % (
        topic.encode(),
        removed,
        earliest_seq,
        head_seq,
        count,
        size,
    )


def state(fields: dict[str, Any]) -> bytes:
    """Render the response to a topic GET (§1.2) up to ``performance``."""
    return json_bytes(fields)[:-1]
