"""Request bodies for reading (diff, §3) and deleting records (§5), with defaults and clamps."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from topics.errors import InvalidRequest
from topics.formats.api.decoding import decode
from topics.formats.api.limits import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_LIMIT,
    MATCH_MAX_BYTES,
    Limits,
    check_text,
    check_u64,
    checked_nodes,
    clamped_batch_bytes,
    clamped_limit,
    clamped_wait_ms,
)
from topics.formats.buffers import Buffer


class DiffBody(msgspec.Struct):
    """Body of ``POST /v0/topics/:topic/diff`` (§3) as it was sent."""

    from_seq: int = 0
    limit: int = DEFAULT_LIMIT
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = DEFAULT_BATCH_BYTES
    epoch: int | None = None


class Diff(msgspec.Struct, frozen=True):
    """A read with defaults and clamps applied (§3). ``until_seq`` is the last seq to read. If data
    is excluded, meta is excluded as well.
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


_diff = msgspec.json.Decoder(DiffBody)


def decode_diff(body: Buffer, limits: Limits) -> Diff:
    """Decode the body of a diff. An empty body uses all defaults. Raises `InvalidRequest`."""
    request = decode(_diff.decode, body or b"{}")
    for field in ("from_seq", "limit", "wait_ms", "max_batch_bytes", "epoch"):
        value = getattr(request, field)
        if value is not None:
            check_u64(field, value)
    return Diff(
        from_seq=request.from_seq,
        limit=clamped_limit(request.limit, limits),
        nodes=frozenset(checked_nodes(request.node, limits)),
        include_tags=request.include_tags,
        include_meta=request.include_meta,
        wait_ms=clamped_wait_ms(request.wait_ms),
        max_batch_bytes=clamped_batch_bytes(request.max_batch_bytes),
        epoch=request.epoch,
    )


class TagMatch(NamedTuple):
    """The tags that a delete (§5) or a router (§6) matches: with ``Eq`` the tag ``text``, with
    ``Glob`` every tag that begins with it.
    """

    op: Literal["Eq", "Glob"]
    text: str


class DeleteBody(msgspec.Struct):
    """Body of ``POST /v0/topics/:topic/delete`` (§5), as it was sent."""

    before_seq: int | None = None
    match: Any = None


class DeleteRequest(NamedTuple):
    """A checked delete. The deleted records are below ``before_seq`` and match ``match``.

    A condition that is None does not apply. At least one is given.
    """

    before_seq: int | None
    match: TagMatch | None


_delete = msgspec.json.Decoder(DeleteBody)


def decode_delete(body: Buffer) -> DeleteRequest:
    """Decode the body of a delete. Raises `InvalidRequest`."""
    request = decode(_delete.decode, body or b"{}")
    if request.before_seq is not None:
        check_u64("before_seq", request.before_seq)
    match = None if request.match is None else tag_match(request.match)
    if request.before_seq is None and match is None:
        raise InvalidRequest("before_seq or match is required")
    return DeleteRequest(request.before_seq, match)


def tag_match(given: Any, field: str = "match", max_bytes: int = MATCH_MAX_BYTES) -> TagMatch:
    """Parse a ``match`` that is not None, or another ``field`` with the same syntax.

    Raises `InvalidRequest`, also for a text of more than ``max_bytes``.
    """
    match = _tag_match(given, field)
    check_text(field, match.text, max_bytes)
    return match


def _tag_match(given: Any, field: str) -> TagMatch:
    if isinstance(given, str):
        return TagMatch("Eq", given)
    if (
        not isinstance(given, list)
        or len(given) != 3
        or given[0] != "tag"
        or not isinstance(given[2], str)
    ):
        raise InvalidRequest(
            f'{field} must be a tag, or ["tag", "Eq", tag], or ["tag", "Glob", prefix + "*"]',
            field=field,
        )
    _, op, text = given
    if op == "Eq":
        return TagMatch("Eq", text)
    if op != "Glob":
        raise InvalidRequest(f"{field} supports only Eq and Glob", field=field)
    if not text.endswith("*") or "*" in text[:-1]:
        raise InvalidRequest("a Glob must end with its only *", field=field)
    return TagMatch("Glob", text[:-1])
