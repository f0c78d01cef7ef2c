"""Diff body (§3): a read, with its defaults and clamps."""

from __future__ import annotations

import msgspec

from topics.formats.api.decoding import decode
from topics.formats.api.limits import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_LIMIT,
    Limits,
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
    """A read with defaults and clamps applied (§3). It ends at ``until_seq``; without data there is
    no meta either.
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
    """Body of a diff; an empty body means all defaults. Raises `InvalidRequest` for wrong types
    only.
    """
    asked = decode(_diff.decode, body or b"{}")
    for field in ("from_seq", "limit", "wait_ms", "max_batch_bytes", "epoch"):
        value = getattr(asked, field)
        if value is not None:
            check_u64(field, value)
    return Diff(
        from_seq=asked.from_seq,
        limit=clamped_limit(asked.limit, limits),
        nodes=frozenset(checked_nodes(asked.node, limits)),
        include_tags=asked.include_tags,
        include_meta=asked.include_meta,
        wait_ms=clamped_wait_ms(asked.wait_ms),
        max_batch_bytes=clamped_batch_bytes(asked.max_batch_bytes),
        epoch=asked.epoch,
    )
