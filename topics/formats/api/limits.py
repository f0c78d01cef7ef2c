"""Request limits and clamps (§2, §3, §10, §11). Each of them is defined only here.

A value above a limit is rejected. A value above a clamp is reduced to it. In a read, zero
means the default. The following limits on lists and strings apply to HTTP and WebSockets. The error
detail gives the limit as ``max``:

    field                   of                          at most                    code
    records                 append, publish             TOPICS_MAX_BATCH_RECORDS   batch_too_large
    seqs                    ack, nack, extend           TOPICS_MAX_CLAIM           batch_too_large
    lease_ids               ack, nack, extend           one for each seq           invalid_request
    topics                  watch, subscribe            TOPICS_MAX_WATCH_TOPICS    invalid_request
    node, as a list         diff, watch, subscribe      NODES_MAX                  invalid_request
    node                    all                         TOPICS_MAX_NODE_BYTES      invalid_request
    tag, filter             append, publish, router     TOPICS_MAX_TAG_BYTES       invalid_request
    match                   delete, redrive             MATCH_MAX_BYTES            invalid_request
    idempotency_key         append, publish             KEY_MAX_CHARS              invalid_request
    request_id              WebSocket commands          REQUEST_ID_MAX_BYTES       invalid_request

A WebSocket message has at most WEBSOCKET_MESSAGE_MAX_BYTES and at most TOPICS_MAX_BODY_BYTES. If it
is longer, the socket is closed with the code 1009.

Topic names are checked with their pattern. The complete query string also has a length limit
(`topics.front.queries`).
"""

from __future__ import annotations

from collections.abc import Sized
from sys import intern

import msgspec

from topics.config import Settings
from topics.errors import InvalidRequest
from topics.formats.api.nesting import NESTING_MAX

KEY_MAX_CHARS = 256  # §0.8
META_MAX_KEYS = 64  # §2
NODES_MAX = 64  # node ids per reader (§4)
MATCH_MAX_BYTES = 65_535  # No stored tag is longer.
WEBSOCKET_MESSAGE_MAX_BYTES = 16 << 20  # The library unmasks such a message in one step of 3 ms.
REQUEST_ID_MAX_BYTES = 256  # as JSON text, including quotes and escapes
DEFAULT_LIMIT = 256  # §3
WAIT_MS_MAX = 30_000  # §3
DEFAULT_BATCH_BYTES = 1 << 20  # §11
BATCH_BYTES_MAX = 8 << 20  # §11
CLAIM_BYTES_MAX = 32 << 20  # the approximate size of the jobs that one claim returns
LEASE_MS_BOUNDS = (100, 86_400_000)  # §0.10, §10.2
NACK_DELAY_MS_MAX = 86_400_000  # §10.5
DELAY_MS_MAX = 30 * 86_400_000  # A job can be delayed by at most 30 days.
U64_MAX = 2**64 - 1


class Limits(msgspec.Struct, frozen=True):
    """The configurable bounds of a write, a read and a queue call (§2, §3, §10)."""

    batch_records: int
    record_bytes: int
    meta_bytes: int
    tag_bytes: int
    node_bytes: int
    limit: int
    claim: int
    # Server-wide limits; 0 means no limit.
    routers: int = 0
    topics: int = 0
    total_bytes: int = 0
    meta_keys: int = META_MAX_KEYS
    nesting: int = NESTING_MAX
    key_chars: int = KEY_MAX_CHARS


def limits_of(settings: Settings) -> Limits:
    """Return the limits that the settings specify."""
    return Limits(
        batch_records=settings.max_batch_records,
        record_bytes=settings.max_record_bytes,
        meta_bytes=settings.max_meta_bytes,
        tag_bytes=settings.max_tag_bytes,
        node_bytes=settings.max_node_bytes,
        limit=settings.max_limit,
        claim=settings.max_claim,
        routers=settings.max_routers,
        topics=settings.max_topics,
        total_bytes=settings.max_total_bytes,
    )


# A record that is moved between topics has no limits. It was within the limits when it was
# appended. Neither its stamp (`queue_answers`) nor a limit that is lower now may cause a rejection.
MOVE_LIMITS = Limits(*[U64_MAX] * len(Limits.__struct_fields__))


# Limits


def check_u64(field: str, value: int) -> None:
    """Raise `InvalidRequest` for a number that is negative or has more than 64 bits."""
    if not 0 <= value <= U64_MAX:
        raise InvalidRequest(f"{field} must be an integer from 0 to 2^64 - 1", field=field)


def check_text(field: str, text: str | None, max_bytes: int, index: int | None = None) -> None:
    """Raise `InvalidRequest` for a text of more than ``max_bytes`` in UTF-8. ``index`` is the index
    of the record that contains the field.
    """
    # A text of n characters has at most 4n bytes, so most texts need not be encoded here.
    if text is not None and len(text) * 4 > max_bytes and len(text.encode()) > max_bytes:
        what = f"{field} is longer than {max_bytes} bytes"
        if index is None:
            raise InvalidRequest(what, field=field, max=max_bytes)
        raise InvalidRequest(f"record {index}: {what}", index=index, field=field, max=max_bytes)


def check_node(node: str | None, limits: Limits, index: int | None = None) -> None:
    """Raise `InvalidRequest` for a node id that is too long."""
    check_text("node", node, limits.node_bytes, index)


def checked_nodes(node: str | list[str] | None, limits: Limits) -> list[str]:
    """Return the node ids of a reader (§4), sorted and without duplicates.

    The strings are interned, so that equal ids of many readers share memory. Raises
    `InvalidRequest`.
    """
    nodes = [node] if isinstance(node, str) else node or []
    check_count("node", nodes, NODES_MAX)
    for each in nodes:
        check_node(each, limits)
    return [intern(each) for each in sorted({*nodes})]


def check_count(field: str, items: Sized, most: int) -> None:
    """Raise `InvalidRequest` for more than ``most`` items."""
    if len(items) > most:
        raise InvalidRequest(f"{len(items)} in {field}; at most {most}", field=field, max=most)


def check_worker(node: str, limits: Limits) -> None:
    """Raise `InvalidRequest` if the node id of a worker is empty or too long (§10)."""
    if not node:
        raise InvalidRequest("node must not be empty", field="node")
    if len(node) * 4 > limits.node_bytes:
        check_node(node, limits)


def check_key(key: str | None, limits: Limits) -> None:
    """Raise `InvalidRequest` if an idempotency key is empty or too long."""
    if key is not None and not 1 <= len(key) <= limits.key_chars:
        raise InvalidRequest(
            f"idempotency_key must have 1 to {KEY_MAX_CHARS} characters", field="idempotency_key"
        )


# Clamps


def clamped_limit(limit: int | None, limits: Limits) -> int:
    """Return the maximum number of records of a page."""
    return min(limit or DEFAULT_LIMIT, limits.limit)


def clamped_batch_bytes(max_batch_bytes: int | None) -> int:
    """Return the approximate maximum size of the records of a page in bytes."""
    return min(max_batch_bytes or DEFAULT_BATCH_BYTES, BATCH_BYTES_MAX)


def clamped_wait_ms(wait_ms: int) -> int:
    """Return the maximum time for which a read waits for records."""
    return min(wait_ms, WAIT_MS_MAX)


def clamped_max_jobs(max_jobs: int, limits: Limits) -> int:
    """Return the maximum number of jobs of one claim or work stream (§10.2, §10.8).

    Raises `InvalidRequest` if ``max_jobs`` is 0 or not a u64.
    """
    if max_jobs < 1 or max_jobs > U64_MAX:
        check_u64("max", max_jobs)
        raise InvalidRequest("max must be at least 1", field="max")
    return min(max_jobs, limits.claim)


def clamped_lease_ms(lease_ms: int) -> int:
    """Return the duration of a lease (§10.2). Raises `InvalidRequest` if it is not a u64."""
    check_u64("lease_ms", lease_ms)
    low, high = LEASE_MS_BOUNDS
    return max(low, min(lease_ms, high))


def clamped_delay_ms(delay_ms: int) -> int:
    """Return the delay of a nacked job (§10.5). Raises `InvalidRequest` if it is not a u64."""
    check_u64("delay_ms", delay_ms)
    return min(delay_ms, NACK_DELAY_MS_MAX)
