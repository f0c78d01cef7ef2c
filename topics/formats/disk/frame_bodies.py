"""Frame bodies: what each kind of WAL frame holds, in its header fields and in its body.

    number  kind           header fields that are set                           body
    1       APPEND         topic_id first_seq ts_ms record_count ext_len flags  records
    2       DELETE         topic_id first_seq ts_ms record_count flags          runs
    3       TOPIC          topic_id first_seq ts_ms ext_len                     map
    4       LEASE          topic_id ts_ms record_count ext_len flags            rows
    6       START          ts_ms ext_len                                        map
    7       TOPIC_DELETED  topic_id ts_ms                                       none
    8       SEQS_RESERVED  topic_id first_seq                                   none
    9       FLOOR          topic_id first_seq ext_len                           array
    10      TS_RESERVED    ts_ms                                                none
    12      ROUTER_SET     ts_ms ext_len                                        map
    13      ROUTERS_GONE   ts_ms ext_len                                        array
    14      LOST           topic_id first_seq record_count ext_len              rows, zeros
    15      FORWARD        ts_ms record_count ext_len flags                     rows, runs, records

Every other header field is 0. Only an APPEND frame may have bit EXTERNAL of `RecordFlags`: writers
of the log look for it in frames of any kind. Integers are little-endian; maps and arrays are CBOR,
and ``ext_len`` is their length.

APPEND: the records of one write, with contiguous seqs from ``first_seq``, all at ``ts_ms``. The
body is that of ``records.py``. With flag EXTERNAL it is the ext map alone, and the whole body is in
a blob file (``blob.py``), which was durable before the frame was written.

DELETE: records deleted by a client, or jobs that have left their queue. With ``record_count`` 0
there is no body, and all records below ``first_seq`` go. Else ``first_seq`` is 0, and the body has
one row for each of ``record_count`` runs of seqs, in rising order:

    offset  size  field   meaning
    0       8     first   first seq of the run
    8       8     length  seqs in the run

Flag DEAD_LETTERED says that the records were moved to a dead-letter topic, and count as such.

TOPIC: a topic made or configured. ``first_seq`` is the ceiling of its reserved seqs. No record in
memory had a `$ts` above ``ts_ms + TS_AHEAD_MS`` by then. Body:

    key        value   meaning
    name       text    of the topic
    epoch      int     the incarnation of the topic
    config     map     `TopicConfig`, by its field names
    head       int     last seq that was given
    last_ts    int     last `$ts` that was given
    start      int     first seq that no cause has removed
    floors     array   as the body of FLOOR
    losses     array   (first, last) of each range of seqs lost at a restart
    damaged    array   (first, last) of each range of seqs lost to damage
    trimmed    array   (first, last) of each range of seqs burnt for a router
    keys_from  int     idempotency keys of earlier seqs are forgotten

LEASE: what happened to ``record_count`` jobs of a queue (§10.1). ``flags`` is the op:

    op  name      keys of ext  what happened
    1   CLAIMED   n u          leased to node "n" until "u", also by an extension
    2   RELEASED  u e          claimable from "u" on; "e", where there is one: the error of a nack
    3   DYING     n            no more deliveries; the move to the dead-letter topic "n" begins

"u" is in milliseconds since 1970. Body of a LEASE frame:

    part        size        present when  meaning
    ext         ext_len     ext_len > 0   CBOR map
    seqs        u64[count]  always        the jobs
    numbers     u64[count]  op 1          of their leases
    deliveries  u32[count]  always        how often the job has been delivered by then

START: a process began to write the log. Its reservations of `$ts` replace all before: no record in
memory has one above ``ts_ms + TS_AHEAD_MS``. Body:

    key   value  meaning
    boot  text   names the run of the machine; empty where unknown

TOPIC_DELETED: the topic is gone, with its records and its name.

SEQS_RESERVED: no seq up to ``first_seq`` is given again after a restart.

FLOOR: records removed by cap or age. ``first_seq`` is the first seq that no cause has removed.
Body, for each cause the seq below which it has removed records, or burnt seqs:

    index  floor   meaning
    0      cap     caps of the topic
    1      ttl     age
    2      loss    restarts
    3      damage  damaged bytes
    4      trim    losses of the source of a router

TS_RESERVED: no record in memory has a `$ts` above ``ts_ms + TS_AHEAD_MS``.

ROUTER_SET: a router made or configured, in the log of the shard that owns all routers. It replaces
an earlier life of its name. Body:

    key        value  meaning
    name       text   of the router
    id         int    this life of the name; never used again
    config     map    `RouterConfig`, by its field names
    source_id  int    of the source's topic
    epoch      int    of the source
    dest_id    int    of the dest's topic
    start      int    head of the source when the router was made
    total      int    records that were forwarded in earlier lives of the name

ROUTERS_GONE: routers removed. Body: an array of their ids.

FORWARD: copies that routers have appended to their dests, and how far the routers have come. The
body is that of ``copies.py``: a row for each dest, a run for each stretch of records, and the
records where no frame before it in the log file has them. ``flags`` are those of the copies as they
are read; ``record_count`` is the number of copies of each dest.

LOST: a repair has put it where frames could not be read. ``record_count`` seqs of the topic, from
``first_seq`` on, are lost. With ``topic_id`` 0 any topic may have lost up to ``record_count`` seqs
behind its head. The body says more of the kind, in ``ext_len`` bytes; zeros fill the room:

    offset  size  field         meaning
    0       8     topic_id      as in the header
    8       8     first_seq
    16      4     record_count
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple

import cbor2

from topics.formats.buffers import Buffer
from topics.formats.disk.frames import FRAME_HEADER_BYTES, Frame, FrameHeader, FrameKind
from topics.formats.disk.records import RecordFlags
from topics.formats.ranges import SeqRange, SeqRun, seq_ranges

TS_AHEAD_MS = 2000
RUN = struct.Struct("<QQ")
LOSS = struct.Struct("<QQI")


class DeleteFlags(IntEnum):
    """What else a DELETE frame says. Written to disk: never renumber, only add."""

    DEAD_LETTERED = 1


class LeaseOp(IntEnum):
    """What happened to the jobs of a LEASE frame. Written to disk: never renumber, only add."""

    CLAIMED = 1
    RELEASED = 2
    DYING = 3


class LeaseRows(NamedTuple):
    """What a LEASE frame says. What its op does not have is empty or 0. ``node``: of a move, the
    dead-letter topic.
    """

    op: LeaseOp
    seqs: Sequence[int]
    deliveries: Sequence[int]
    node: str = ""
    until_ts: int = 0
    numbers: Sequence[int] = ()
    error: str | None = None


class Floors(NamedTuple):
    """For each cause the seq below which it has removed records."""

    cap: int
    ttl: int
    loss: int
    damage: int
    trim: int


class TopicBody(NamedTuple):
    """Body of a TOPIC frame. ``config``: a `TopicConfig` as a map."""

    name: str
    epoch: int
    config: Mapping[str, Any]
    head_seq: int
    last_ts: int
    start_seq: int
    floors: Floors
    losses: Sequence[SeqRange]
    damaged: Sequence[SeqRange]
    trimmed: Sequence[SeqRange]
    keys_from_seq: int


class RouterBody(NamedTuple):
    """Body of a ROUTER_SET frame. ``config``: a `RouterConfig` as a map."""

    name: str
    id: int
    config: Mapping[str, Any]
    source_id: int
    epoch: int
    dest_id: int
    start_seq: int
    base_total: int


def append_frame(
    topic_id: int,
    first_seq: int,
    ts_ms: int,
    record_count: int,
    flags: int,
    ext_len: int,
    parts: Sequence[Buffer],
) -> Frame:
    """An APPEND frame that holds its records; the arguments are those of `records.encode`."""
    return Frame(FrameKind.APPEND, topic_id, first_seq, ts_ms, record_count, flags, ext_len, parts)


def external_append_frame(
    topic_id: int, first_seq: int, ts_ms: int, record_count: int, flags: int, ext: bytes
) -> Frame:
    """An APPEND frame whose records are in a blob file."""
    flags |= RecordFlags.EXTERNAL
    return append_frame(topic_id, first_seq, ts_ms, record_count, flags, len(ext), (ext,))


def decode_idempotency_key(ext: Buffer) -> str | None:
    """The key in the ext map of an APPEND frame, if there is one."""
    return cbor2.loads(bytes(ext)).get("k")  # type: ignore[no-any-return]


def delete_below_frame(topic_id: int, first_seq: int, ts_ms: int) -> Frame:
    """A DELETE frame: all records below ``first_seq`` go."""
    return Frame(FrameKind.DELETE, topic_id, first_seq, ts_ms)


def delete_runs_frame(
    topic_id: int, runs: Sequence[SeqRun], ts_ms: int, *, dead_lettered: bool = False
) -> Frame:
    """A DELETE frame: the records of these runs go, in rising order."""
    body = struct.pack(f"<{2 * len(runs)}Q", *chain.from_iterable(runs))
    flags = DeleteFlags.DEAD_LETTERED if dead_lettered else 0
    return Frame(FrameKind.DELETE, topic_id, 0, ts_ms, len(runs), flags, parts=(body,))


def decode_runs(body: Buffer) -> Iterator[SeqRun]:
    """The runs of a DELETE frame."""
    return map(SeqRun._make, RUN.iter_unpack(body))


def lease_frame(topic_id: int, ts_ms: int, rows: LeaseRows) -> Frame:
    """A LEASE frame."""
    op, count, numbers = rows.op, len(rows.seqs), rows.numbers
    assert len(rows.deliveries) == count, "each job has its deliveries"
    assert len(numbers) == (count if op is LeaseOp.CLAIMED else 0), "each lease has its number"
    ext: dict[str, Any] = {"n": rows.node} if rows.node else {}
    if op is not LeaseOp.DYING:
        ext["u"] = rows.until_ts
    if rows.error is not None:
        ext["e"] = rows.error
    packed = cbor2.dumps(ext) if ext else b""
    layout = f"<{count + len(numbers)}Q{count}I"
    body = struct.pack(layout, *rows.seqs, *numbers, *rows.deliveries)
    return Frame(FrameKind.LEASE, topic_id, 0, ts_ms, count, op, len(packed), parts=(packed, body))


def decode_lease(header: FrameHeader, body: Buffer) -> LeaseRows:
    """What a LEASE frame says."""
    op, count, start = LeaseOp(header.flags), header.record_count, header.ext_len
    ext: dict[str, Any] = cbor2.loads(bytes(body[:start])) if start else {}
    seqs = struct.unpack_from(f"<{count}Q", body, start)
    start += 8 * count
    numbers: tuple[int, ...] = ()
    if op is LeaseOp.CLAIMED:
        numbers = struct.unpack_from(f"<{count}Q", body, start)
        start += 8 * count
    deliveries = struct.unpack_from(f"<{count}I", body, start)
    return LeaseRows(op, seqs, deliveries, ext.get("n", ""), ext.get("u", 0), numbers, ext.get("e"))


def topic_frame(topic_id: int, reserved_seq: int, ts_ms: int, body: TopicBody) -> Frame:
    """A TOPIC frame; seqs up to ``reserved_seq`` are reserved."""
    packed = cbor2.dumps(
        {
            "name": body.name,
            "epoch": body.epoch,
            "config": body.config,
            "head": body.head_seq,
            "last_ts": body.last_ts,
            "start": body.start_seq,
            "floors": tuple(body.floors),
            "losses": body.losses,
            "damaged": body.damaged,
            "trimmed": body.trimmed,
            "keys_from": body.keys_from_seq,
        }
    )
    return Frame(
        FrameKind.TOPIC, topic_id, reserved_seq, ts_ms, ext_len=len(packed), parts=(packed,)
    )


def decode_topic(body: Buffer) -> TopicBody:
    """Body of a TOPIC frame."""
    held: dict[str, Any] = cbor2.loads(bytes(body))
    return TopicBody(
        name=held["name"],
        epoch=held["epoch"],
        config=held["config"],
        head_seq=held["head"],
        last_ts=held["last_ts"],
        start_seq=held["start"],
        floors=Floors(*held["floors"]),
        losses=seq_ranges(held["losses"]),
        damaged=seq_ranges(held["damaged"]),
        trimmed=seq_ranges(held["trimmed"]),
        keys_from_seq=held["keys_from"],
    )


def start_frame(boot: str, ts_ms: int) -> Frame:
    """A START frame of a process in this run of the machine."""
    packed = cbor2.dumps({"boot": boot})
    return Frame(FrameKind.START, ts_ms=ts_ms, ext_len=len(packed), parts=(packed,))


def decode_start(body: Buffer) -> str:
    """The run of the machine in which the process of a START frame began."""
    return cbor2.loads(bytes(body))["boot"]  # type: ignore[no-any-return]


def topic_deleted_frame(topic_id: int, ts_ms: int) -> Frame:
    """A TOPIC_DELETED frame."""
    return Frame(FrameKind.TOPIC_DELETED, topic_id, ts_ms=ts_ms)


def seqs_reserved_frame(topic_id: int, reserved_seq: int) -> Frame:
    """A SEQS_RESERVED frame: no seq up to ``reserved_seq`` is given again after a restart."""
    return Frame(FrameKind.SEQS_RESERVED, topic_id, reserved_seq)


def floor_frame(topic_id: int, start_seq: int, floors: Floors) -> Frame:
    """A FLOOR frame; ``start_seq`` is the first seq that no cause has removed."""
    packed = cbor2.dumps(tuple(floors))
    return Frame(FrameKind.FLOOR, topic_id, start_seq, ext_len=len(packed), parts=(packed,))


def decode_floors(body: Buffer) -> Floors:
    """Body of a FLOOR frame."""
    return Floors(*cbor2.loads(bytes(body)))


def ts_reserved_frame(ts_ms: int) -> Frame:
    """A TS_RESERVED frame."""
    return Frame(FrameKind.TS_RESERVED, ts_ms=ts_ms)


def encode_router(body: RouterBody) -> bytes:
    """Body of a ROUTER_SET frame. A checkpoint holds routers in the same form."""
    return cbor2.dumps(
        {
            "name": body.name,
            "id": body.id,
            "config": body.config,
            "source_id": body.source_id,
            "epoch": body.epoch,
            "dest_id": body.dest_id,
            "start": body.start_seq,
            "total": body.base_total,
        }
    )


def decode_router(body: Buffer) -> RouterBody:
    """What `encode_router` gave."""
    held: dict[str, Any] = cbor2.loads(bytes(body))
    return RouterBody(
        name=held["name"],
        id=held["id"],
        config=held["config"],
        source_id=held["source_id"],
        epoch=held["epoch"],
        dest_id=held["dest_id"],
        start_seq=held["start"],
        base_total=held["total"],
    )


def router_set_frame(packed: bytes, ts_ms: int) -> Frame:
    """A ROUTER_SET frame with a body of `encode_router`."""
    return Frame(FrameKind.ROUTER_SET, ts_ms=ts_ms, ext_len=len(packed), parts=(packed,))


def lost_frame(losses: Sequence[tuple[int, int, int]], length: int) -> Frame:
    """A LOST frame, which takes ``length`` bytes; ``losses``: topic_id, first_seq, record_count."""
    (topic_id, first_seq, count), *more = losses
    rows = b"".join([LOSS.pack(*each) for each in more])
    body = rows.ljust(length - FRAME_HEADER_BYTES, b"\0")
    return Frame(
        *(FrameKind.LOST, topic_id, first_seq),
        record_count=count,
        ext_len=len(rows),
        parts=(body,),
    )


def lost_frame_bytes(losses: int) -> int:
    """What a LOST frame with so many losses takes at least."""
    return FRAME_HEADER_BYTES + LOSS.size * (losses - 1)


def decode_losses(header: FrameHeader, body: Buffer) -> list[tuple[int, int, int]]:
    """What a LOST frame says: topic_id, first_seq, record_count."""
    rows = memoryview(body)[: header.ext_len]
    first = header.topic_id, header.first_seq, header.record_count
    return [first, *LOSS.iter_unpack(rows)]


def routers_gone_frame(router_ids: Sequence[int], ts_ms: int) -> Frame:
    """A ROUTERS_GONE frame."""
    packed = cbor2.dumps([*router_ids])
    return Frame(FrameKind.ROUTERS_GONE, ts_ms=ts_ms, ext_len=len(packed), parts=(packed,))


def decode_router_ids(body: Buffer) -> Sequence[int]:
    """The ids of a ROUTERS_GONE frame."""
    return cbor2.loads(bytes(body))  # type: ignore[no-any-return]
