"""What the server says, as values: frozen structs, to be used with ``match``.

    Event = Record | Tombstone | CaughtUp | TopicDeleted

A gap is a value among the records, in its place: a reader that ignores it has chosen to.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, TypeAlias

import msgspec
from msgspec import field


def decoded(raw: bytes | msgspec.Raw) -> Any:
    """JSON as Python has it. Numbers beyond a double, which msgspec refuses, are those of the
    standard library.
    """
    try:
        return msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return json.loads(bytes(raw))


class Record(msgspec.Struct, frozen=True, dict=True, kw_only=True, omit_defaults=True):
    """One record (§3.1). ``raw_data`` and ``raw_meta`` are the bytes that were sent; ``ts`` is ms
    since 1970.
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
        """The payload."""
        return decoded(self.raw_data)

    @cached_property
    def meta(self) -> dict[str, Any] | None:
        """The headers; None when there are none."""
        meta: dict[str, Any] | None = decoded(self.raw_meta)
        return meta

    def __repr__(self) -> str:
        tag = "" if self.tag is None else f" {self.tag}"
        return f"<{type(self).__name__} {self.topic}#{self.seq}{tag} {self.data!r:.100}>"


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """Records that were lost before they were read: ``gap_from`` to ``gap_to``, both lost. With
    ``reason`` "recreated" the topic is another one by the same name.
    """

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int
    topic: str = ""


class CaughtUp(msgspec.Struct, frozen=True, kw_only=True):
    """There are no more records now."""

    head_seq: int
    topic: str = ""


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """The topic is gone; a watch goes on with its other topics, and ends with the last one."""

    head_seq: int
    topic: str = ""
    reason: str = "deleted"


Event: TypeAlias = Record | Tombstone | CaughtUp | TopicDeleted


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What an append got. ``deduped``: its key was known, and nothing was appended again."""

    topic: str = ""
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool = False
    deduped: bool


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What a delete of records did, and how the topic stands after it."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of a queue by what may happen to them (§10.7)."""

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
    """A topic with its config (§1.2); ``queue`` of a queue alone."""

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
    """The effect of a PUT of a topic, or of its dry run (§1.1). ``dropped`` is the number of
    records that a lower cap or age removes. ``epoch`` is 0 if a dry run would create the topic.
    """

    created: bool
    config: dict[str, Any]
    epoch: int = 0
    dropped: int = 0


class RouterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A router (§6). The list has no more than name, ends, guarantee and total; None stands for the
    rest.
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
    """A job as a claim gives it (§10.2). ``deadline`` is ms since 1970; ``last_error`` is what the
    nack of an earlier delivery said.
    """

    lease_id: str
    deadline: int
    deliveries: int
    last_error: str | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a job; ``lease_id`` for keys that may write."""

    seq: int = field(name="$seq")
    node: str
    deadline: int
    deliveries: int
    lease_id: str | None = None
    last_error: str | None = None


class Redriven(msgspec.Struct, frozen=True, kw_only=True):
    """What a redrive of dead letters moved; ``reason``: why the first skipped one was skipped."""

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
    """Jobs that were claimed, and how many are left."""

    claimed: list[JobRecord]
    ready: int


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What an ack, nack or extend did. ``skipped``: jobs that this node does not hold."""

    skipped: list[int]
    deadlines: dict[str, int] = {}
