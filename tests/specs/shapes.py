"""The bodies of requests and responses as msgspec structs, from which the schemas are generated.

Requests use the structs with which the server decodes them (`topics.formats.api`), responses the
structs with which the client decodes them (`topics.client.values`). Both are narrowed here, because
the server checks bounds after decoding and the client accepts responses with absent members. Bodies
without a struct are described only in this module.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from topics.client import values
from topics.formats.api import (
    append_body,
    backup_body,
    diff_body,
    queue_bodies,
    router_json,
    topic_config,
    watch,
)
from topics.formats.api.limits import KEY_MAX_CHARS, NODES_MAX, U64_MAX
from topics.formats.names import ROUTER_NAME, TOPIC_NAME

Shape: TypeAlias = type[msgspec.Struct]
Members: TypeAlias = dict[str, Any]
U64 = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": U64_MAX})]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1, extra_json_schema={"maximum": U64_MAX})]
Topic = Annotated[str, Meta(pattern=f"^{TOPIC_NAME.pattern}$")]
Router = Annotated[str, Meta(pattern=f"^{ROUTER_NAME.pattern}$")]
Name = Annotated[str, Meta(min_length=1)]
Key = Annotated[str, Meta(min_length=1, max_length=KEY_MAX_CHARS)]
Nodes = str | Annotated[list[str], Meta(max_length=NODES_MAX)] | None
TAGS: Final = {
    "description": 'A tag, or `["tag", "Eq", tag]`, or `["tag", "Glob", prefix + "*"]`.',
    "oneOf": [
        {"type": "string"},
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Eq"}, {"type": "string"}],
            "minItems": 3,
            "maxItems": 3,
        },
        {
            "type": "array",
            "prefixItems": [
                {"const": "tag"},
                {"const": "Glob"},
                {"type": "string", "pattern": r"^[^*]*\*$"},
            ],
            "minItems": 3,
            "maxItems": 3,
        },
    ],
}
Tags = Annotated[Any, Meta(extra_json_schema=TAGS)]
TagsOrNull = Annotated[Any, Meta(extra_json_schema={"oneOf": [*TAGS["oneOf"], {"type": "null"}]})]


def array(item: Any, *, least: int = 0) -> Any:
    """Return the type of a list of ``item`` with at least ``least`` elements."""
    return Annotated[list[item], Meta(min_length=least)] if least else list[item]


def by_name(item: Any, *, least: int = 0) -> Any:
    """Return the type of an object whose keys are names of topics and whose values are ``item``."""
    found = dict[Topic, item]
    return Annotated[found, Meta(min_length=least)] if least else found


def sent(base: Shape, name: str = "", /, **types: Any) -> Shape:
    """Return the body of a request: the fields of ``base``, with the given types. Integers are
    narrowed to the range that the server accepts. Fields of ``types`` that ``base`` lacks are
    added.
    """
    fields = [
        (field.encode_name, types.pop(field.encode_name, _narrowed(field.type, U64)), field.default)
        for field in msgspec.structs.fields(base)
    ]
    added = [
        (field, type_, UNSET if UnsetType in get_args(type_) else msgspec.NODEFAULT)
        for field, type_ in types.items()
    ]
    return _struct(name or base.__name__, base, _defaulted([*added, *fields]))


def response_shape(
    name: str, base: Shape | None = None, /, *, absent: str = "", drop: str = "", **types: Any
) -> Shape:
    """Return the body of a response: the members of ``base`` and ``types``, except those in
    ``drop``. All members are required except those in ``absent``.
    """
    found = {
        field.encode_name: _narrowed(field.type, Count)
        for field in (msgspec.structs.fields(base) if base is not None else ())
        if field.encode_name not in drop.split()
    }
    optional = absent.split()
    fields = [
        (field, type_ | UnsetType, UNSET)
        if field in optional
        else (field, type_, msgspec.NODEFAULT)
        for field, type_ in (found | types).items()
    ]
    assert {*optional} <= {*found, *types}, f"{name}: {absent}"
    return _struct(name, base, _defaulted(fields))


def _defaulted(fields: list[tuple[str, Any, Any]]) -> Iterator[tuple[Any, ...]]:
    for number, (name, type_, default) in enumerate(fields):
        field = msgspec.field(name=name) if default is msgspec.NODEFAULT else None
        if default is not msgspec.NODEFAULT:
            field = msgspec.field(name=name, default=UNSET if isinstance(default, Raw) else default)
        yield f"m{number}", type_, field  # "$seq" is no valid name in Python


def _struct(name: str, base: Shape | None, fields: Iterator[tuple[Any, ...]]) -> Shape:
    doc = "" if base is None else sentence(base)
    namespace = {"__doc__": "" if doc.startswith("Body of") else doc}
    return msgspec.defstruct(name, list(fields), namespace=namespace, kw_only=True)


def sentence(documented: type) -> str:
    """Return the first sentence of a docstring as Markdown, without its section number."""
    doc = re.split(r"\.\s|\.$", inspect.getdoc(documented) or "")[0]
    return re.sub(r" \(§[^)]*\)", "", " ".join(doc.split())).replace("``", "`") + "."


def _narrowed(type_: Any, integer: Any) -> Any:
    if type_ is int:
        return integer
    if type_ is Raw:
        return Any
    parts = get_args(type_)
    if int in parts and get_origin(type_) in (Union, UnionType):
        found = integer
        for part in parts:
            found = found if part is int else found | part
        return found
    return type_


# Requests

RecordIn = sent(append_body.RecordIn, meta=dict[str, Any] | None, delay_ms=U64 | None)
Records = array(RecordIn, least=1)
Config = sent(topic_config.TopicConfigPatch, priority=int | None | UnsetType)
APPENDED: Final[Members] = {
    "records": Records,
    "idempotency_key": Key | None,
    "config": Config | None,
}
Append = sent(append_body.AppendBody, **APPENDED)
Start = sent(watch.Start)
Starts = by_name(Start, least=1)
VIEWED: Final[Members] = {"node": Nodes}
Watch = sent(
    *(watch.WatchBody,), **VIEWED, topics=Starts, consistency=Literal["eventual", "strong"]
)
Seqs = array(U64, least=1)
HELD: Final[Members] = {"node": Name, "seqs": Seqs}
Diff = sent(diff_body.DiffBody, node=Nodes)
Delete = sent(diff_body.DeleteBody, match=TagsOrNull)
Claim = sent(queue_bodies.ClaimBody, node=Name, max=Positive)
Ack = sent(queue_bodies.JobsRequest, "Ack", **HELD)
Nack = sent(queue_bodies.Nack, **HELD)
Extend = sent(queue_bodies.Extend, **HELD)
Redrive = sent(queue_bodies.RedriveBody, to=Topic | None, match=TagsOrNull, limit=Positive)
BackupRequest = sent(backup_body.BackupRequest)
RouterConfig = sent(
    *(router_json.RouterPatch, "RouterConfig"),
    source=Topic,
    dest=Topic,
    filter=TagsOrNull | UnsetType,
    guarantee=router_json.Guarantee | UnsetType,
)

# Responses

Performance = response_shape(
    "Performance",
    absent="throttle_wait_ms wal_append_ms fsync_ms records_scanned",
    server_total_ms=float,
    throttle_wait_ms=float,
    wal_append_ms=float,
    fsync_ms=float,
    records_scanned=Count,
)


def answer(name: str, base: Shape | None = None, /, **more: Any) -> Shape:
    """Return the body of a complete response, with the `performance` member."""
    return response_shape(name, base, **more, performance=Performance)


Failure = response_shape("Failure", absent="detail", code=str, message=str, detail=dict[str, Any])
Error = response_shape("Error", absent="performance", error=Failure, performance=Performance)
RECORD: Final[Members] = {
    "$ts": int,
    "$node": str,
    "$tag": str,
    "data": Any,
    "meta": dict[str, Any],
}
Record = response_shape("Record", values.Record, drop="topic", absent="$node $tag meta", **RECORD)
# A watch may omit `data`.
WatchedRecord = response_shape(
    "WatchedRecord", values.Record, drop="topic", absent="$node $tag data meta", **RECORD
)
Reason = Literal["cap", "ttl", "mixed", "damaged", "source_trim", "recreated"]
Tombstone = response_shape("Tombstone", values.Tombstone, drop="topic", reason=Reason)
JOB: Final[Members] = RECORD | {"last_error": str}
Job = response_shape(
    "Job", values.JobRecord, drop="topic", absent="$node $tag meta last_error", **JOB
)
Lease = response_shape(
    "Lease", values.Lease, absent="lease_id last_error", lease_id=str, last_error=str
)
StoredConfig = response_shape(
    "StoredConfig", topic_config.TopicConfig, priority=int | None, durable=bool
)
StartedAt = response_shape(
    *("StartedAt",), from_seq=Count, head_seq=Count, earliest_seq=Count, epoch=Count
)
TopicInfo = response_shape("TopicInfo", values.TopicInfo, effective_priority=int)
QueueCounts = response_shape("QueueCounts", values.QueueCounts)
RouterEnds = response_shape(
    "RouterInfo",
    values.RouterInfo,
    drop="preserve_node preserve_tag filter allow_cycle lag_records lag_ms",
    guarantee=router_json.Guarantee,
)
Filter = Annotated[list[str], Meta(min_length=3, max_length=3)] | None
ROUTED: Final[Members] = {"guarantee": router_json.Guarantee, "filter": Filter} | dict.fromkeys(
    ("preserve_node", "preserve_tag", "allow_cycle"), bool
)
LimitedShard = response_shape(
    "LimitedShard", shard=Count, state=Literal["read_only", "no_room", "directory_lost"]
)
Receipt = answer("Receipt", values.Receipt, absent="seqs", seqs=list[Count])
