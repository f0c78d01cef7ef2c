"""Append body (§2): decodes the records and fields and checks their limits.

Payloads stay raw bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import ClassVar

import msgspec
from msgspec import Raw

from topics.errors import BatchTooLarge, Forbidden, InvalidRequest, RecordTooLarge
from topics.formats.api.decoding import decode
from topics.formats.api.limits import (
    U64_MAX,
    Limits,
    check_key,
    check_node,
    check_text,
)
from topics.formats.api.nesting import check_nesting
from topics.formats.api.topic_config import TopicConfigPatch
from topics.formats.buffers import Buffer

_NOTHING = Raw(b"")


class RecordIn(msgspec.Struct, gc=False):
    """One record of a write. ``data`` and ``meta`` are the exact bytes that were sent; an absent
    ``meta`` is empty. At most one of ``delay_ms`` and ``deliver_at``, which delay a job, is
    present.
    """

    data: Raw
    tag: str | None = None
    node: str | None = None
    meta: Raw = _NOTHING
    delay_ms: int | None = None
    deliver_at: int | None = None


class AppendBody(msgspec.Struct, gc=False):
    """Body of ``POST /v0/topics/:topic`` (§2)."""

    records: list[RecordIn]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfigPatch | None = None
    disable_backpressure: bool = False


class PlainRecordIn(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A record that has only data, which is the usual case."""

    data: Raw
    tag: ClassVar[None] = None
    node: ClassVar[None] = None
    meta: ClassVar[Raw] = _NOTHING
    delay_ms: ClassVar[None] = None
    deliver_at: ClassVar[None] = None


class PlainAppend(AppendBody, gc=False):
    """An append whose records are all plain. Because of the type, callers need not check each
    record.
    """

    # A PlainRecordIn has all attributes of a RecordIn, so it can be used in its place.
    records: list[PlainRecordIn]  # type: ignore[assignment]


_append = msgspec.json.Decoder(AppendBody)
_plain_append = msgspec.json.Decoder(PlainAppend)


def decode_append(body: Buffer, header_key: str | None, limits: Limits) -> AppendBody:
    """Decode the body of an append and check all limits of §2.

    The idempotency key in the body takes precedence over ``header_key``. Raises `InvalidRequest`,
    `BatchTooLarge` or `RecordTooLarge`.
    """
    is_ascii = type(body) is bytes and body.isascii()
    try:  # `decode` checks UTF-8 and converts errors. Most bodies are ASCII and need neither.
        request = _plain_append.decode(body) if is_ascii else decode(_parse_append, body or b"{}")
    except (msgspec.MsgspecError, RecursionError):
        request = decode(_parse_append, body or b"{}")
    if check_append(request, len(body), header_key, limits) > 2 * limits.nesting:
        for _ in check_nesting(request.records, limits.nesting):
            pass
    return request


def _parse_append(body: Buffer) -> AppendBody:
    try:
        return _plain_append.decode(body)
    except msgspec.MsgspecError:  # Usually because a record has more members than data.
        return _append.decode(body)


def check_append(request: AppendBody, body_len: int, header_key: str | None, limits: Limits) -> int:
    """Check all limits of a decoded append except nesting.

    Also set the key from the header, and drop a null ``meta``. Return the size of the largest
    record, or 0 if the body is too short to contain a record that is too large or nested too
    deeply. Raise the same errors as `decode_append`.
    """
    if request.idempotency_key is None:
        request.idempotency_key = header_key
    if request.idempotency_key is not None:
        check_key(request.idempotency_key, limits)
    records = request.records
    if not records:
        raise InvalidRequest("records must contain at least one record", field="records")
    if len(records) > limits.batch_records:
        raise BatchTooLarge(
            f"{len(records)} records in one write; at most {limits.batch_records}",
            records=len(records),
            max=limits.batch_records,
        )
    if request.node is not None:
        check_node(request.node, limits)
    if not isinstance(request, PlainAppend):
        _check_members(records, limits)
    if body_len <= min(limits.record_bytes, 2 * limits.nesting):
        return 0
    return _check_sizes(records, limits)


def joined(bodies: Sequence[AppendBody]) -> AppendBody:
    """Combine several appends into one with the records of all of them.

    The bodies must have the same ``node`` and no other member that has an effect.
    """
    kinds = {type(body) for body in bodies}
    kind = AppendBody if len(kinds) > 1 else kinds.pop()
    return kind(list(chain.from_iterable([body.records for body in bodies])), bodies[0].node)


def check_may_configure(may_configure: bool) -> None:
    """Raise `Forbidden` for a request with ``config`` if its key lacks the scope admin (§0.2)."""
    if not may_configure:
        raise Forbidden("the key lacks the scope admin, which config requires", scope="admin")


def has_delays(records: Sequence[RecordIn]) -> bool:
    """Return whether any record is a delayed job."""
    return any(
        [record.delay_ms is not None or record.deliver_at is not None for record in records]  # noqa: C419 - a list is faster than a generator here
    )


def _check_sizes(records: Sequence[RecordIn], limits: Limits) -> int:
    sizes = [len(record.data) + len(record.meta) for record in records]
    largest = max(sizes)
    if largest > limits.record_bytes:
        index = next(index for index, size in enumerate(sizes) if size > limits.record_bytes)
        raise RecordTooLarge(
            f"record {index}: data and meta are above {limits.record_bytes} bytes",
            index=index,
            max=limits.record_bytes,
        )
    return largest


def _check_members(records: Sequence[RecordIn], limits: Limits) -> None:
    count = len(records)
    if [record.tag for record in records].count(None) != count:
        for index, record in enumerate(records):
            check_text("tag", record.tag, limits.tag_bytes, index)
    if [record.node for record in records].count(None) != count:
        for index, record in enumerate(records):
            check_node(record.node, limits, index)
    if any([record.meta for record in records]):  # noqa: C419 - a list is faster than a generator here
        for index, record in enumerate(records):
            if record.meta:
                _check_meta(index, record, limits)
    if has_delays(records):
        for index, record in enumerate(records):
            _check_delay(index, record)


def _check_delay(index: int, record: RecordIn) -> None:
    given = [
        (field, value)
        for field, value in (("delay_ms", record.delay_ms), ("deliver_at", record.deliver_at))
        if value is not None
    ]
    if len(given) > 1:
        raise InvalidRequest(
            f"record {index}: only one of delay_ms and deliver_at may be given",
            index=index,
            field="deliver_at",
        )
    for field, value in given:
        if not 0 <= value <= U64_MAX:
            raise InvalidRequest(
                f"record {index}: {field} must be an integer from 0 to 2^64 - 1",
                index=index,
                field=field,
            )


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
        meta.count(b":") > limits.meta_keys
        and len(msgspec.json.decode(meta, type=dict[str, Raw])) > limits.meta_keys
    ):
        raise RecordTooLarge(
            f"record {index}: meta has more than {limits.meta_keys} keys",
            index=index,
            max_keys=limits.meta_keys,
        )
