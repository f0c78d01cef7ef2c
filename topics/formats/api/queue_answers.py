"""JSON responses to queue requests (§10), rendered as bytes up to ``performance`` (`answers`).

A record is inserted in the form in which it was rendered for the log, without decoding it. Dead
letters (§10.6) are records that are moved between a queue and its dead-letter topic, with a changed
``meta``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw

from topics.formats.api.json_members import member, with_members, without_members
from topics.formats.json_text import json_bytes, json_string
from topics.formats.names import valid_topic_name


def jobs_json(jobs: Iterable[tuple[int, int, int, int, bytes]]) -> list[bytes]:
    """Render leased jobs (§10.2).

    Each job is given as its seq, lease number, deadline, number of deliveries and rendered record.
    """
    return [
        b'{"lease_id":"lease_%x","deadline":%d,"deliveries":%d,%b'
        % (number, deadline_ts, deliveries, record[1:])
        for _, number, deadline_ts, deliveries, record in jobs
    ]


def with_error(record: bytes, error: str) -> bytes:
    """Add ``last_error``, the most recent error with which a job was nacked, to its record."""
    return b'{"last_error":%b,%b' % (json_string(error), record[1:])


def claimed(topic: str, jobs: Sequence[bytes], ready: int) -> bytes:
    """Render the response to a claim (§10.2). ``jobs`` are the results of `jobs_json`."""
    return b'{"topic":"%b","claimed":[%b],"count":%d,"ready":%d' % (
        topic.encode(),
        b",".join(jobs),
        len(jobs),
        ready,
    )


def settled(
    what: bytes, topic: str, count: int, skipped: Sequence[int], ready: int, in_flight: int
) -> bytes:
    """Render the response to an ack (§10.4, ``acked``) or a nack (§10.5, ``nacked``)."""
    return b'{"topic":"%b","%b":%d,"skipped":%b,"ready":%d,"in_flight":%d' % (
        topic.encode(),
        what,
        count,
        json_bytes(skipped) if skipped else b"[]",
        ready,
        in_flight,
    )


def extended(topic: str, seqs: Sequence[int], until_ts: int, skipped: Sequence[int]) -> bytes:
    """Render the response to an extend (§10.6). The leases of ``seqs`` now end at ``until_ts``."""
    deadlines = b",".join([b'"%d":%d' % (seq, until_ts) for seq in seqs])
    return b'{"topic":"%b","extended":%d,"skipped":%b,"deadlines":{%b}' % (
        topic.encode(),
        len(seqs),
        json_bytes(skipped) if skipped else b"[]",
        deadlines,
    )


def lease_json(
    seq: int,
    node: str,
    lease_number: int | None,
    deadline_ts: int,
    deliveries: int,
    error: str | None = None,
) -> bytes:
    """Render a lease for the list of leases.

    ``lease_number`` is None if the caller may not see it.
    """
    lease_id = b"" if lease_number is None else b'"lease_id":"lease_%x",' % lease_number
    return b'{"$seq":%d,"node":%b,%b"deadline":%d,"deliveries":%d%b}' % (
        seq,
        json_string(node),
        lease_id,
        deadline_ts,
        deliveries,
        b"" if error is None else b',"last_error":' + json_string(error),
    )


def leases(items: Iterable[bytes]) -> bytes:
    """Render the array of leases from the results of `lease_json`, excluding the rest of the
    response.
    """
    return b"[%b]" % b",".join(items)


def redriven(topic: str, moved: int, remaining: int, skipped: int, reason: str | None) -> bytes:
    """Render the response to a redrive. ``reason`` is the code of the first failure, if any."""
    return b'{"topic":"%b","moved":%d,"remaining":%d,"skipped":%d%b' % (
        topic.encode(),
        moved,
        remaining,
        skipped,
        b"" if reason is None else b',"reason":' + json_string(reason),
    )


_STAMP = "$dead_letter_"
_SOURCE = "$dead_letter_from"
_NOTHING = Raw(b"")


class RecordParts(NamedTuple):
    """The parts of a record that are kept when it is moved, as rendered JSON.

    An absent tag or meta is empty.
    """

    tag: bytes
    data: bytes
    meta: bytes


class _Rendered(msgspec.Struct, gc=False):
    data: Raw
    tag: Raw = msgspec.field(default=_NOTHING, name="$tag")
    meta: Raw = _NOTHING


_rendered = msgspec.json.Decoder(_Rendered)


def stamped(meta: bytes, source: str, deliveries: int, seq: int, error: str | None = None) -> bytes:
    """Add the stamp of a dead letter to ``meta``. It replaces an earlier stamp.

    The stamp contains the queue ``source``, the job's ``seq`` there, its number of deliveries, and
    ``error``, the most recent error with which the job was nacked.
    """
    stamp = b'"$dead_letter_from":"%b","$dead_letter_deliveries":%d,"$dead_letter_src_seq":%d' % (
        source.encode(),
        deliveries,
        seq,
    )
    if error is not None:
        stamp += b',"$dead_letter_error":' + json_string(error)
    return with_members(unstamped(meta), stamp)


def unstamped(meta: bytes) -> bytes:
    """Remove the stamp from ``meta``. Returns b"" if it contains nothing else."""
    return without_members(meta, lambda key: key.startswith(_STAMP))


def source_of(meta: bytes) -> str | None:
    """Return the queue from which a dead letter was moved, or None if its meta names no topic."""
    value = member(meta, _SOURCE)
    if value is None or value[:1] != b'"':
        return None
    name = msgspec.json.decode(value, type=str)
    return name if valid_topic_name(name) else None


def record_parts(record: bytes) -> RecordParts:
    """Split a rendered record into its parts."""
    try:
        found = _rendered.decode(record)
    except RecursionError:
        # The decoder is recursive, and may have less stack here than when the record was appended.
        parts = (member(record, name) for name in ("$tag", "data", "meta"))
        return RecordParts(*(part or b"" for part in parts))
    return RecordParts(bytes(found.tag), bytes(found.data), bytes(found.meta))


def append_request(parts: RecordParts, key: str, create: bool | None) -> bytes:
    """Render the body of an append (§2) of one record with an idempotency key."""
    tag = b',"tag":' + parts.tag if parts.tag else b""
    meta = b',"meta":' + parts.meta if parts.meta else b""
    return b'{"records":[{"data":%b%b%b}],"idempotency_key":%b,"create":%b}' % (
        parts.data,
        tag,
        meta,
        json_string(key),
        b"null" if create is None else (b"false", b"true")[create],
    )
