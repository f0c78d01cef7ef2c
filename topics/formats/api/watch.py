"""Watch requests (§7): decodes and checks bodies of ``POST /v0/watch``, and encodes event ids.

Some functions are also used for the WebSocket command ``subscribe``. Decoding has two steps:
msgspec checks the types, then this module checks and clamps the values. Unknown fields are ignored.
An invalid value raises `InvalidRequest` with the name of the field.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from topics.errors import InvalidRequest
from topics.formats.api.decoding import decode
from topics.formats.api.limits import (
    DEFAULT_LIMIT,
    Limits,
    check_count,
    check_u64,
    checked_nodes,
    clamped_batch_bytes,
    clamped_limit,
)
from topics.formats.buffers import Buffer
from topics.formats.names import valid_topic_name

DEFAULT_EVENT_BYTES = 256 << 10  # default of max_batch_bytes
HEARTBEAT_MS, HEARTBEAT_MIN_MS, HEARTBEAT_MAX_MS = 15_000, 1000, 60_000


class View(NamedTuple):
    """The options that determine which records and members a reader receives.

    Readers with equal views share rendered pages. ``nodes`` are sorted.
    """

    nodes: tuple[str, ...] = ()
    tags: bool = False
    meta: bool = True
    data: bool = True
    limit: int = DEFAULT_LIMIT
    bytes: int = DEFAULT_EVENT_BYTES
    strong: bool = False


class Start(msgspec.Struct):
    """The start position of a reader in a topic: after ``from_seq``, or with ``tail`` at the
    current head.
    """

    from_seq: int = 0
    tail: bool = False
    epoch: int | None = None


class ViewOptions(msgspec.Struct, kw_only=True):
    """The members of a request that determine a `View`. Their values are not checked yet."""

    node: str | list[str] | None = None
    limit: int = DEFAULT_LIMIT
    max_batch_bytes: int = DEFAULT_EVENT_BYTES
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    consistency: str = "eventual"


class WatchBody(ViewOptions, kw_only=True):
    """Body of ``POST /v0/watch``. The bounds of its values are not checked yet."""

    topics: dict[str, Start]
    heartbeat_ms: int = HEARTBEAT_MS
    cursor: str | None = None


class WatchRequest(NamedTuple):
    """A checked watch request: the start position in each topic, and the view of the records."""

    starts: dict[str, Start]
    view: View
    heartbeat_ms: int


_watch = msgspec.json.Decoder(WatchBody)


def decode_watch(body: Buffer, limits: Limits, max_topics: int) -> WatchRequest:
    """Decode the body of ``POST /v0/watch``. Raises `InvalidRequest`.

    If the body has a ``cursor``, each topic in it starts at its seq.
    """
    request = decode(_watch.decode, body or b"{}")
    checked = _checked(request, limits, max_topics)
    if request.cursor is not None:
        checked.starts.update(_starts_at(request.cursor, tuple(checked.starts)))
    return checked


def watch_of(
    topics: Iterable[str], start: Start, options: Mapping[str, Any], limits: Limits, max_topics: int
) -> WatchRequest:
    """Build a request from the query of ``GET /v0/watch``. Raises `InvalidRequest`.

    ``options`` are the members of a `WatchBody` that the query contains.
    """
    request = WatchBody(topics=dict.fromkeys(topics, start), **options)
    return _checked(request, limits, min(max_topics, MAP_MAX_TOPICS))


def _checked(request: WatchBody, limits: Limits, max_topics: int) -> WatchRequest:
    check_starts(request.topics, max_topics)
    check_u64("heartbeat_ms", request.heartbeat_ms)
    heartbeat_ms = min(max(request.heartbeat_ms, HEARTBEAT_MIN_MS), HEARTBEAT_MAX_MS)
    return WatchRequest(request.topics, view_of(request, limits), heartbeat_ms)


def check_starts(starts: dict[str, Start], max_topics: int) -> None:
    """Check the names, the cursors and the number of topics. Raises `InvalidRequest`."""
    if not starts:
        raise InvalidRequest("topics must contain at least one topic", field="topics")
    check_count("topics", starts, max_topics)
    for name, start in starts.items():
        if not valid_topic_name(name):
            raise InvalidRequest(
                "not a topic name: 1 to 255 of A-Z a-z 0-9 . _ : -, the first a letter or digit",
                field="topics",
            )
        check_u64("from_seq", start.from_seq)
        if start.epoch is not None:
            check_u64("epoch", start.epoch)


def view_of(request: ViewOptions, limits: Limits) -> View:
    """Return the view that a request specifies, clamped to the limits. Raises `InvalidRequest`."""
    for field in ("limit", "max_batch_bytes"):
        check_u64(field, getattr(request, field))
    if request.consistency not in ("eventual", "strong"):
        raise InvalidRequest("consistency must be eventual or strong", field="consistency")
    return View(
        nodes=tuple(checked_nodes(request.node, limits)),
        tags=request.include_tags,
        meta=request.include_meta and request.include_data,
        data=request.include_data,
        limit=clamped_limit(request.limit, limits),
        bytes=clamped_batch_bytes(request.max_batch_bytes),
        strong=request.consistency == "strong",
    )


MAP_MAX_TOPICS = 64
Cursor = tuple[int, int]
"""A seq and an epoch."""

ID_MAX_BYTES = 4096
CHECKPOINT_MAX_DIGITS = 19

_map = msgspec.json.Decoder(dict[str, int])
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def encode_id(cursors: dict[str, int]) -> bytes | None:
    """Encode an event id that contains a map of cursors.

    Return None if the map is too large. In that case, the id must be the number of a checkpoint.
    """
    if len(cursors) > MAP_MAX_TOPICS:
        return None
    packed = _base64(msgspec.json.encode(cursors))
    return packed if len(packed) <= ID_MAX_BYTES else None


def encode_checkpoint(number: int) -> bytes:
    """Encode an event id that is the number of a checkpoint."""
    return _base64(b"%d" % number)


def decode_id(text: bytes) -> dict[str, int] | int:
    """Decode an event id: a map of cursors or the number of a checkpoint.

    Returns an empty map if the text is neither.
    """
    packed = _packed(text)
    try:
        is_number = packed.isdigit() and len(packed) <= CHECKPOINT_MAX_DIGITS
        return int(packed) if is_number else _map.decode(packed)
    except (msgspec.MsgspecError, ValueError):
        return {}


class CursorsId:
    """The event id of a watch in one request (§7.4): the cursors of its topics, encoded in
    base64url.

    offset     bytes
    0          1      ID_VERSION
    1 + 24 n   8      BLAKE2b of the name of topic n; the URL contains the name itself
    9 + 24 n   16     seq and epoch of topic n; 0 is an unknown epoch; big-endian
    last       4      CRC-32 of all earlier bytes
    """

    def __init__(self, cursors: Mapping[str, Cursor]) -> None:
        rows = [ROW.pack(_digest(topic), *cursor) for topic, cursor in cursors.items()]
        self._packed = bytearray((ID_VERSION,)) + b"".join(rows)
        self._at = {topic: 9 + ROW.size * number for number, topic in enumerate(cursors)}

    def move(self, topic: str, seq: int, epoch: int) -> None:
        """Set the cursor of a topic to ``seq`` and ``epoch``."""
        CURSOR.pack_into(self._packed, self._at[topic], seq, epoch)

    def text(self) -> bytes:
        """Return the current id."""
        return _base64(bytes(self._packed) + zlib.crc32(self._packed).to_bytes(4, "big"))


ID_VERSION = 1
ROW, CURSOR = struct.Struct(">8sQQ"), struct.Struct(">QQ")


def decode_cursors(
    text: bytes, topics: Iterable[str], name: str = "Last-Event-ID"
) -> dict[str, Cursor]:
    """Return the cursors of those ``topics`` that a `CursorsId` contains.

    Raises `InvalidRequest` if the text is not such an id, because a stream must not silently start
    at another seq. ``name`` is the field or parameter that contains the text.
    """
    known = _cursors_by_digest(text)
    if known is None:
        raise InvalidRequest(f"{name} is not an id of this stream", field=name)
    return {topic: known[digest] for topic in topics if (digest := _digest(topic)) in known}


def _cursors_by_digest(text: bytes) -> dict[bytes, Cursor] | None:
    packed = _packed(text)
    body, check = packed[:-4], packed[-4:]
    if (
        len(body) % ROW.size != 1
        or body[0] != ID_VERSION
        or zlib.crc32(body).to_bytes(4, "big") != check
    ):
        return None
    return {digest: (seq, epoch) for digest, seq, epoch in ROW.iter_unpack(body[1:])}


def _starts_at(cursor: str, topics: Iterable[str]) -> dict[str, Start]:
    """Return the start positions of those ``topics`` that a cursor (§0.7) contains.

    The cursor is the id of an event, either of a watch session or of a watch in one request. Raise
    `InvalidRequest` for any other text.
    """
    text = cursor.encode("utf-8", "surrogatepass")
    known = _cursors_by_digest(text)
    if known is not None:
        at = {topic: known[digest] for topic in topics if (digest := _digest(topic)) in known}
        return {topic: Start(seq, epoch=epoch or None) for topic, (seq, epoch) in at.items()}
    seqs = decode_id(text)
    if isinstance(seqs, int):
        message = "cursor is an id of a session of many topics; it is valid only in that session"
        raise InvalidRequest(message, field="cursor")
    if not seqs:
        raise InvalidRequest("cursor is not the id of an event", field="cursor")
    for seq in seqs.values():
        check_u64("cursor", seq)
    return {topic: Start(seqs[topic]) for topic in topics if topic in seqs}


def _digest(topic: str) -> bytes:
    return hashlib.blake2b(topic.encode(), digest_size=8).digest()


def _packed(text: bytes) -> bytes:
    """Decode base64url text. Returns b"" if it is invalid."""
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        return b""


def _base64(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False).rstrip(b"=").translate(_URL_SAFE)
