"""JSON answers to queue requests (§10), rendered as bytes up to ``performance`` (`answers`).

A record is spliced in as it was rendered for the log: it is never decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from topics.formats.json_text import json_bytes, json_string


def job_json(lease_number: int, deadline_ts: int, deliveries: int, record: bytes) -> bytes:
    """A leased job (§10.2); ``record`` is the object that readers get."""
    lease = b'{"lease_id":"lease_%x","deadline":%d,"deliveries":%d,' % (
        lease_number,
        deadline_ts,
        deliveries,
    )
    return lease + record[1:]


def claimed(topic: str, jobs: Sequence[bytes], ready: int) -> bytes:
    """Answer to a claim (§10.2); the jobs are those of `job_json`."""
    return b'{"topic":"%b","claimed":[%b],"count":%d,"ready":%d' % (
        topic.encode(),
        b",".join(jobs),
        len(jobs),
        ready,
    )


def acked(topic: str, count: int, skipped: Iterable[int], ready: int, in_flight: int) -> bytes:
    """Answer to an ack (§10.4)."""
    return _counted(b"acked", topic, count, skipped, ready, in_flight)


def nacked(topic: str, count: int, skipped: Iterable[int], ready: int, in_flight: int) -> bytes:
    """Answer to a nack (§10.5)."""
    return _counted(b"nacked", topic, count, skipped, ready, in_flight)


def _counted(
    what: bytes, topic: str, count: int, skipped: Iterable[int], ready: int, in_flight: int
) -> bytes:
    return b'{"topic":"%b","%b":%d,"skipped":%b,"ready":%d,"in_flight":%d' % (
        topic.encode(),
        what,
        count,
        _numbers(skipped),
        ready,
        in_flight,
    )


def extended(topic: str, seqs: Sequence[int], until_ts: int, skipped: Iterable[int]) -> bytes:
    """Answer to an extend (§10.6): the leases of ``seqs`` now end at ``until_ts``."""
    deadlines = b",".join([b'"%d":%d' % (seq, until_ts) for seq in seqs])
    return b'{"topic":"%b","extended":%d,"skipped":%b,"deadlines":{%b}' % (
        topic.encode(),
        len(seqs),
        _numbers(skipped),
        deadlines,
    )


def lease_json(
    seq: int, node: str, lease_number: int | None, deadline_ts: int, deliveries: int
) -> bytes:
    """A lease in the list of leases. ``lease_number`` None: the reader may not know it."""
    lease_id = b"" if lease_number is None else b'"lease_id":"lease_%x",' % lease_number
    return b'{"$seq":%d,"node":%b,%b"deadline":%d,"deliveries":%d}' % (
        seq,
        json_string(node),
        lease_id,
        deadline_ts,
        deliveries,
    )


def leases(items: Iterable[bytes]) -> bytes:
    """The array of leases, those of `lease_json`; the whole value, not the answer around it."""
    return b"[%b]" % b",".join(items)


def redriven(topic: str, moved: int, remaining: int, skipped: int, reason: str | None) -> bytes:
    """Answer to a redrive. ``reason``: code of the first failure, None when nothing failed."""
    return b'{"topic":"%b","moved":%d,"remaining":%d,"skipped":%d%b' % (
        topic.encode(),
        moved,
        remaining,
        skipped,
        b"" if reason is None else b',"reason":' + json_string(reason),
    )


def _numbers(numbers: Iterable[int]) -> bytes:
    return json_bytes([*numbers])
