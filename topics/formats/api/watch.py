"""What readers of live records ask for: bodies of ``POST /v0/watch`` and commands of ``/v0/ws``
(§7), to typed values.

Also the ids of a watch stream: base64url, without padding, of a JSON map from topic to cursor; with
more than `MAP_TOPICS` topics of the number of a checkpoint that the session keeps.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from topics.errors import InvalidRequest
from topics.formats.api.requests import (
    BATCH_BYTES_MAX,
    DEFAULT_BATCH_BYTES,
    DEFAULT_LIMIT,
    Limits,
    check_node,
    decode,
)
from topics.formats.buffers import Buffer
from topics.formats.names import valid_topic_name

FRAME_BYTES = 256 << 10  # default of max_batch_bytes
HEARTBEAT_MS, HEARTBEAT_MIN_MS, HEARTBEAT_MAX_MS = 15_000, 1000, 60_000
MAP_TOPICS = 64  # an id holds a map of so many topics at most
U64_MAX = (1 << 64) - 1


class View(NamedTuple):
    """What decides how a topic looks to a reader; equal views share what is rendered. ``nodes`` are
    sorted.
    """

    nodes: tuple[str, ...] = ()
    tags: bool = False
    meta: bool = True
    data: bool = True
    limit: int = DEFAULT_LIMIT
    bytes: int = FRAME_BYTES
    strong: bool = False

    def as_map(self) -> dict[str, Any]:
        """As a shard is told."""
        return {**self._asdict(), "nodes": list(self.nodes)}


class Start(msgspec.Struct):
    """Where a reader begins in a topic: after ``from_seq``, or with ``tail`` at the head of now."""

    from_seq: int = 0
    tail: bool = False
    epoch: int | None = None


class _Options(msgspec.Struct, kw_only=True):
    node: str | list[str] | None = None
    limit: int = DEFAULT_LIMIT
    max_batch_bytes: int = FRAME_BYTES
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    consistency: str = "eventual"


class WatchBody(_Options, kw_only=True):
    """Body of ``POST /v0/watch``, bounds not yet applied."""

    topics: dict[str, Start]
    heartbeat_ms: int = HEARTBEAT_MS


class CommandHead(msgspec.Struct):
    """What every WebSocket command has."""

    op: str
    topic: str | None = None
    return_seqs: bool = True
    config: Raw = Raw(b"")
    request_id: Raw = Raw(b"null")


class _RequestId(msgspec.Struct):
    request_id: Raw = Raw(b"null")


class SubscribeBody(_Options, kw_only=True):
    """The ``subscribe`` command."""

    topic: str | None = None
    topics: dict[str, Start] | None = None
    from_seq: int = 0
    tail: bool = False
    epoch: int | None = None


class Watch(NamedTuple):
    """A checked wish: where to begin in each topic, and how it shall look."""

    starts: dict[str, Start]
    view: View
    heartbeat_ms: int


_watch = msgspec.json.Decoder(WatchBody)
_subscribe = msgspec.json.Decoder(SubscribeBody)
_head = msgspec.json.Decoder(CommandHead)
_request_id = msgspec.json.Decoder(_RequestId)
_map = msgspec.json.Decoder(dict[str, int])


def decode_watch(body: Buffer, limits: Limits, max_topics: int) -> Watch:
    """Body of ``POST /v0/watch``. Raises `InvalidRequest`."""
    asked = decode(_watch.decode, body or b"{}")
    _check_starts(asked.topics, max_topics)
    _check_integer("heartbeat_ms", asked.heartbeat_ms)
    heartbeat_ms = min(max(asked.heartbeat_ms, HEARTBEAT_MIN_MS), HEARTBEAT_MAX_MS)
    return Watch(asked.topics, _view(asked, limits), heartbeat_ms)


def request_id_of(message: bytes) -> bytes:
    """The ``request_id`` of a command, as it came, whatever else is wrong with it; ``null`` when it
    has none.
    """
    try:
        return bytes(_request_id.decode(message).request_id)
    except (msgspec.MsgspecError, RecursionError):
        return b"null"


def decode_command(message: bytes) -> CommandHead:
    """The head of a WebSocket command. Raises `InvalidRequest`."""
    return decode(_head.decode, message)


def decode_subscribe(message: bytes, limits: Limits, max_topics: int) -> Watch:
    """The ``subscribe`` command. Raises `InvalidRequest`."""
    asked = decode(_subscribe.decode, message)
    if (asked.topic is None) == (asked.topics is None):
        raise InvalidRequest("subscribe names either a topic or topics")
    starts = (
        asked.topics
        if asked.topic is None
        else {asked.topic: Start(asked.from_seq, asked.tail, asked.epoch)}
    )
    assert starts is not None, "one of the two is there"
    _check_starts(starts, max_topics)
    return Watch(starts, _view(asked, limits), HEARTBEAT_MS)


def _check_starts(starts: dict[str, Start], max_topics: int) -> None:
    if not starts:
        raise InvalidRequest("topics must name at least one topic", field="topics")
    if len(starts) > max_topics:
        raise InvalidRequest(
            f"{len(starts)} topics; at most {max_topics}", field="topics", max=max_topics
        )
    for name, start in starts.items():
        if not valid_topic_name(name):
            raise InvalidRequest(
                "not a topic name: 1 to 255 of A-Z a-z 0-9 . _ : -, the first a letter or digit",
                field="topics",
            )
        _check_integer("from_seq", start.from_seq)
        if start.epoch is not None:
            _check_integer("epoch", start.epoch)


def _check_integer(field: str, value: int) -> None:
    if not 0 <= value <= U64_MAX:
        raise InvalidRequest(f"{field} must be an integer from 0 to 2^64 - 1", field=field)


def _view(asked: _Options, limits: Limits) -> View:
    for field in ("limit", "max_batch_bytes"):
        _check_integer(field, getattr(asked, field))
    nodes = [asked.node] if isinstance(asked.node, str) else asked.node or []
    for node in nodes:
        check_node(node, limits)
    if asked.consistency not in ("eventual", "strong"):
        raise InvalidRequest("consistency is eventual or strong", field="consistency")
    return View(
        nodes=tuple(sorted(set(nodes))),
        tags=asked.include_tags,
        meta=asked.include_meta and asked.include_data,
        data=asked.include_data,
        limit=min(asked.limit or DEFAULT_LIMIT, limits.limit),
        bytes=min(asked.max_batch_bytes or DEFAULT_BATCH_BYTES, BATCH_BYTES_MAX),
        strong=asked.consistency == "strong",
    )


def encode_id(cursors: dict[str, int]) -> bytes:
    """The id of a stream of a few topics."""
    return _base64(msgspec.json.encode(cursors))


def encode_checkpoint(number: int) -> bytes:
    """The id of a stream of many topics."""
    return _base64(b"%d" % number)


def decode_id(text: bytes) -> dict[str, int] | int:
    """A map, or the number of a checkpoint; an empty map for what is neither."""
    try:
        packed = base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return int(packed) if packed.isdigit() and len(packed) < 20 else _map.decode(packed)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        return {}


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
