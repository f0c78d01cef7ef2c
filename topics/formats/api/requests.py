"""JSON request bodies to typed values (§1 to §3). Strict JSON; unknown fields are ignored; payloads
stay raw bytes.

The decoder checks grammar and types but neither UTF-8 inside raw values nor the depth of nesting,
so both are checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from topics.config import Settings
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.formats.api.refusals import refusal
from topics.formats.api.topic_config import U64_MAX, TopicConfigPatch
from topics.formats.buffers import Buffer

KEY_CHARS = 256  # §0.8
META_KEYS = 64  # §2
DEFAULT_LIMIT = 256  # §3
WAIT_MS_MAX = 30_000  # §3
DEFAULT_BATCH_BYTES = 1 << 20  # §11
BATCH_BYTES_MAX = 8 << 20  # §11
_NOTHING = Raw(b"")

Body = TypeVar("Body", bound=msgspec.Struct)


class RecordIn(msgspec.Struct, gc=False):
    """One record of a write. ``data`` and ``meta`` are the exact bytes that were sent; an absent
    ``meta`` is empty.
    """

    data: Raw
    tag: str | None = None
    node: str | None = None
    meta: Raw = _NOTHING


class AppendBody(msgspec.Struct, gc=False):
    """Body of ``POST /v0/topics/:topic`` (§2)."""

    records: list[RecordIn]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfigPatch | None = None
    disable_backpressure: bool = False


class PlainRecordIn(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record that was sent with data alone, as most are."""

    data: Raw
    tag: ClassVar[None] = None
    node: ClassVar[None] = None
    meta: ClassVar[Raw] = _NOTHING


class PlainAppend(AppendBody, gc=False):
    """An append of nothing but such records. Nobody need look at each of them to know it."""

    records: list[PlainRecordIn]  # type: ignore[assignment]  # whoever reads a RecordIn may read one of these


class DiffBody(msgspec.Struct):
    """Body of ``POST /v0/topics/:topic/diff`` (§3), bounds not yet applied."""

    from_seq: int = 0
    limit: int = DEFAULT_LIMIT
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = DEFAULT_BATCH_BYTES
    epoch: int | None = None


class Limits(msgspec.Struct, frozen=True):
    """The configurable bounds of a write and a read (§2, §3)."""

    batch_records: int
    record_bytes: int
    meta_bytes: int
    tag_bytes: int
    node_bytes: int
    limit: int


def limits_of(settings: Settings) -> Limits:
    """As the settings say."""
    return Limits(
        settings.max_batch_records, settings.max_record_bytes, settings.max_meta_bytes, settings.max_tag_bytes,
        settings.max_node_bytes, settings.max_limit,
    )  # fmt: skip


_append = msgspec.json.Decoder(AppendBody)
_plain_append = msgspec.json.Decoder(PlainAppend)
_diff = msgspec.json.Decoder(DiffBody)
_patch = msgspec.json.Decoder(TopicConfigPatch)


@contextmanager
def refusing_bad_bodies() -> Iterator[None]:
    """What decoders raise, as `InvalidRequest`."""
    try:
        yield
    except _BAD_BODY as error:
        raise _refusal(error) from error


_BAD_BODY = (UnicodeDecodeError, msgspec.MsgspecError, RecursionError)


def _refusal(error: Exception, body: Buffer = b"") -> InvalidRequest:
    if isinstance(error, UnicodeDecodeError):
        at = error.start
        return InvalidRequest(f"the body is not valid UTF-8: byte {at}", offset=at)
    if isinstance(error, msgspec.MsgspecError):
        return refusal(error, body)
    return InvalidRequest("the body is nested too deeply")


def decode(parse: Callable[[Buffer], Body], body: Buffer) -> Body:
    """A body as ``parse`` says, and valid UTF-8 wherever it is not looked into. Raises
    `InvalidRequest`.
    """
    try:  # not refusing_bad_bodies(), which would cost as much again
        # Raw values are not looked into by the decoder: one bad byte would poison every reader's
        # JSON.
        if not (isinstance(body, bytes) and body.isascii()):
            str(body, "utf-8")
        return parse(body)
    except _BAD_BODY as error:
        raise _refusal(error, body) from error


def decode_config(body: Buffer) -> TopicConfigPatch:
    """Body of a topic PUT; an empty body means no field."""
    return decode(_patch.decode, body or b"{}")


def decode_append(body: Buffer, header_key: str | None, limits: Limits) -> AppendBody:
    """Body of an append, every limit of §2 checked. The body's idempotency key wins over the
    header's.

    Raises `InvalidRequest`, `BatchTooLarge` or `RecordTooLarge`.
    """
    request = decode(_parse_append, body or b"{}")
    check_append(request, len(body), header_key, limits)
    return request


def _parse_append(body: Buffer) -> AppendBody:
    try:
        return _plain_append.decode(body)
    except (
        msgspec.MsgspecError
    ):  # at the first record that has more, mostly; or what the other one will refuse, too
        return _append.decode(body)


def check_append(
    request: AppendBody, body_len: int, header_key: str | None, limits: Limits
) -> None:
    """The limits of a decoded append; fills in the header's key and drops a null ``meta``. Raises
    as `decode_append` does.
    """
    if request.idempotency_key is None:
        request.idempotency_key = header_key
    _check_key(request.idempotency_key)
    records = request.records
    if not records:
        raise InvalidRequest("records must hold at least one record", field="records")
    if len(records) > limits.batch_records:
        raise BatchTooLarge(
            f"{len(records)} records in one write; at most {limits.batch_records}",
            records=len(records),
            max=limits.batch_records,
        )
    _check_text("node", request.node, limits.node_bytes)
    if not isinstance(request, PlainAppend):
        _check_marks(records, limits)
    if body_len > limits.record_bytes:  # otherwise no record can be over its limit
        _check_sizes(records, limits)


def _check_key(key: str | None) -> None:
    if key is not None and not 1 <= len(key) <= KEY_CHARS:
        raise InvalidRequest(
            f"idempotency_key must have 1 to {KEY_CHARS} characters", field="idempotency_key"
        )


def _check_text(field: str, text: str | None, max_bytes: int) -> None:
    # A text of n characters has at most 4n bytes: most need no encoding to be measured.
    if text is not None and len(text) * 4 > max_bytes and len(text.encode()) > max_bytes:
        raise InvalidRequest(
            f"{field} is longer than {max_bytes} bytes", field=field, max=max_bytes
        )


def check_node(node: str, limits: Limits) -> None:
    """Raises `InvalidRequest` for a node id that is too long."""
    _check_text("node", node, limits.node_bytes)


def _check_sizes(records: Sequence[RecordIn], limits: Limits) -> None:
    sizes = [len(record.data) + len(record.meta) for record in records]
    if max(sizes) > limits.record_bytes:
        index = next(index for index, size in enumerate(sizes) if size > limits.record_bytes)
        raise RecordTooLarge(
            f"record {index}: data and meta are above {limits.record_bytes} bytes",
            index=index,
            max=limits.record_bytes,
        )


def _check_marks(records: Sequence[RecordIn], limits: Limits) -> None:
    count = len(records)
    if [record.tag for record in records].count(None) != count:
        for record in records:
            _check_text("tag", record.tag, limits.tag_bytes)
    if [record.node for record in records].count(None) != count:
        for record in records:
            _check_text("node", record.node, limits.node_bytes)
    if any([record.meta for record in records]):  # noqa: C419 - a list is faster than a generator here
        for index, record in enumerate(records):
            if record.meta:
                _check_meta(index, record, limits)


def _check_meta(index: int, record: RecordIn, limits: Limits) -> None:
    meta = bytes(record.meta)
    if meta == b"null":
        record.meta = _NOTHING
        return
    if len(meta) > limits.meta_bytes:
        raise RecordTooLarge(
            f"record {index}: meta is above {limits.meta_bytes} bytes",
            index=index,
            max=limits.meta_bytes,
        )
    if meta[:1] != b"{":
        raise InvalidRequest(f"record {index}: meta must be an object", index=index, field="meta")
    if (
        meta.count(b":") > META_KEYS
        and len(msgspec.json.decode(meta, type=dict[str, Raw])) > META_KEYS
    ):
        raise RecordTooLarge(
            f"record {index}: meta has more than {META_KEYS} keys", index=index, max_keys=META_KEYS
        )


class Diff(msgspec.Struct, frozen=True):
    """A read with defaults and clamps applied (§3). Nothing past ``until_seq`` is looked at;
    without data there is no meta either.
    """

    from_seq: int = 0
    limit: int = DEFAULT_LIMIT
    nodes: frozenset[str] = frozenset()
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = DEFAULT_BATCH_BYTES
    epoch: int | None = None
    include_data: bool = True
    until_seq: int | None = None


def decode_diff(body: Buffer, limits: Limits) -> Diff:
    """Body of a diff; an empty body means all defaults. Raises `InvalidRequest` for wrong types
    only.
    """
    asked = decode(_diff.decode, body or b"{}")
    for field in ("from_seq", "limit", "wait_ms", "max_batch_bytes", "epoch"):
        value = getattr(asked, field)
        if value is not None and not 0 <= value <= U64_MAX:
            raise InvalidRequest(f"{field} must be an integer from 0 to 2^64 - 1", field=field)
    nodes = [asked.node] if isinstance(asked.node, str) else asked.node or []
    for node in nodes:
        _check_text("node", node, limits.node_bytes)
    return Diff(
        from_seq=asked.from_seq,
        limit=min(asked.limit or DEFAULT_LIMIT, limits.limit),
        nodes=frozenset(nodes),
        include_tags=asked.include_tags,
        include_meta=asked.include_meta,
        wait_ms=min(asked.wait_ms, WAIT_MS_MAX),
        max_batch_bytes=min(asked.max_batch_bytes or DEFAULT_BATCH_BYTES, BATCH_BYTES_MAX),
        epoch=asked.epoch,
    )


class TagMatch(NamedTuple):
    """Which tags a delete is about (§5): ``Eq`` the text itself, ``Glob`` every tag that begins
    with it.
    """

    op: Literal["Eq", "Glob"]
    text: str


class DeleteBody(msgspec.Struct):
    """Body of ``POST /v0/topics/:topic/delete`` (§5), as it was sent."""

    before_seq: int | None = None
    match: Any = None


class DeleteRequest(NamedTuple):
    """A checked delete: what is below ``before_seq`` and matches, each if given."""

    before_seq: int | None
    match: TagMatch | None


_delete = msgspec.json.Decoder(DeleteBody)


def decode_delete(body: Buffer) -> DeleteRequest:
    """Body of a delete. Raises `InvalidRequest`."""
    asked = decode(_delete.decode, body or b"{}")
    if asked.before_seq is not None and not 0 <= asked.before_seq <= U64_MAX:
        raise InvalidRequest("before_seq must be an integer from 0 to 2^64 - 1", field="before_seq")
    match = None if asked.match is None else _match(asked.match)
    if asked.before_seq is None and match is None:
        raise InvalidRequest("before_seq or match is required")
    return DeleteRequest(asked.before_seq, match)


def _match(given: Any) -> TagMatch:
    if isinstance(given, str):
        return TagMatch("Eq", given)
    if (
        not isinstance(given, list)
        or len(given) != 3
        or given[0] != "tag"
        or not isinstance(given[2], str)
    ):
        raise InvalidRequest(
            'match must be a tag, or ["tag", "Eq", tag], or ["tag", "Glob", prefix + "*"]',
            field="match",
        )
    _, op, text = given
    if op == "Eq":
        return TagMatch("Eq", text)
    if op != "Glob":
        raise InvalidRequest("match knows Eq and Glob", field="match")
    if not text.endswith("*") or "*" in text[:-1]:
        raise InvalidRequest("a Glob has one *, at its end", field="match")
    return TagMatch("Glob", text[:-1])
