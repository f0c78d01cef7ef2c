"""Server responses as values: frozen structs for use with ``match``.

    Event = Record | Tombstone | CaughtUp | TopicDeleted

A gap is a value at its position among the records, so a reader cannot miss it by accident.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from math import isfinite
from typing import Any, TypeAlias

import msgspec
from msgspec import field


def encoded(value: Any) -> bytes:
    """Return a value as JSON. Raise `ValueError` for NaN and the infinities, which JSON lacks, and
    `TypeError` for a type without a JSON form.
    """
    text = msgspec.json.encode(value)
    if b"null" in text:  # msgspec writes NaN and the infinities as null
        _check_finite(msgspec.to_builtins(value, builtin_types=(msgspec.Raw,)))
    return text


def _check_finite(value: Any) -> None:
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return
    for each in value:
        _check_finite(each)


def decoded(raw: bytes | msgspec.Raw) -> Any:
    """Return JSON as Python objects. The standard library decodes what msgspec refuses, such as
    numbers that exceed a double.
    """
    try:
        return msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return json.loads(bytes(raw))


class Record(msgspec.Struct, frozen=True, dict=True, kw_only=True, omit_defaults=True):
    """A record (§3.1). ``raw_data`` and ``raw_meta`` are the JSON text as it was sent. ``ts`` is
    the time of the append in ms since 1970.
    """

    topic: str = ""
    seq: int = field(name="$seq")
    ts: int = field(name="$ts")
    node: str | None = field(name="$node", default=None)
    tag: str | None = field(name="$tag", default=None)
    raw_data: msgspec.Raw = field(name="data", default=msgspec.Raw(b"null"))
    raw_meta: msgspec.Raw = field(name="meta", default=msgspec.Raw(b"null"))

    @cached_property
    def data(self) -> Any:
        """The payload as Python objects."""
        return decoded(self.raw_data)

    @cached_property
    def meta(self) -> dict[str, Any] | None:
        """The record's ``meta`` object, or None."""
        meta: dict[str, Any] | None = decoded(self.raw_meta)
        return meta

    def __hash__(self) -> int:
        return hash((self.topic, self.seq, self.ts))

    def __repr__(self) -> str:
        tag = "" if self.tag is None else f" {self.tag}"
        return f"<{type(self).__name__} {self.topic}#{self.seq}{tag} {self.data!r:.100}>"


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """The records ``gap_from`` to ``gap_to``, inclusive, were lost before they were read. If the
    ``reason`` is "recreated", the topic was deleted and created again.
    """

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int
    topic: str = ""


class CaughtUp(msgspec.Struct, frozen=True, kw_only=True):
    """The reader has received all records up to ``head_seq``."""

    head_seq: int
    topic: str = ""


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The topic was deleted. A watch continues with its other topics, and ends after the last one
    has been deleted.
    """

    head_seq: int
    topic: str = ""
    reason: str = "deleted"


Event: TypeAlias = Record | Tombstone | CaughtUp | TopicDeleted


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an append (§2). ``deduped``: the idempotency key was known, so nothing was
    appended and the seqs belong to the first append.
    """

    topic: str = ""
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool = False
    deduped: bool


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """The number of records that a delete removed, and the topic's state after it (§5)."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a queue by state (§10.7)."""

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int = 0


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in the list of topics (§1.3)."""

    name: str = field(name="topic")
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    epoch: int
    durable: bool
    effective_priority: int
    last_write_ts: int | None = None


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with its config (§1.2). ``queue`` is None for a log."""

    name: str = field(name="topic")
    type: str
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    epoch: int
    config: dict[str, Any]
    effective_priority: int
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    queue: QueueCounts | None = None


class TopicPut(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a topic PUT, or of its dry run (§1.1). ``dropped`` is the number of records
    that a lower cap or age removes. ``epoch`` is 0 if a dry run would create the topic.
    """

    created: bool
    config: dict[str, Any]
    epoch: int = 0
    dropped: int = 0


class RouterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A router (§6). A list contains only the name, source, dest, guarantee and total of each
    router. The other fields are None.
    """

    name: str = field(name="router")
    source: str
    dest: str
    guarantee: str
    preserve_node: bool | None = None
    preserve_tag: bool | None = None
    filter: list[str] | None = None
    allow_cycle: bool | None = None
    forwarded_total: int = 0
    lag_records: int | None = None
    lag_ms: int | None = None


class JobRecord(Record, frozen=True, dict=True, kw_only=True):
    """A claimed job (§10.2). ``deadline`` is in ms since 1970. ``last_error`` is the error text of
    the last nack.
    """

    lease_id: str
    deadline: int
    deliveries: int
    last_error: str | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of a job. ``lease_id`` is None unless the key has the scope write."""

    seq: int = field(name="$seq")
    node: str
    deadline: int
    deliveries: int
    lease_id: str | None = None
    last_error: str | None = None


class Redriven(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a redrive. ``reason`` is the reason for which the first skipped job was
    skipped.
    """

    topic: str
    moved: int
    remaining: int
    skipped: int
    reason: str | None = None


class DiffPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of records (§3.1)."""

    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int
    caught_up: bool
    lag: int = 0
    tombstone: Tombstone | None = None


class ClaimPage(msgspec.Struct, frozen=True, kw_only=True):
    """The claimed jobs and the number of remaining ready jobs (§10.2)."""

    claimed: list[JobRecord]
    ready: int


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an ack, nack or extend. ``skipped``: the seqs that this node does not hold."""

    skipped: list[int]
    deadlines: dict[str, int] = {}
