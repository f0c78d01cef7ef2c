"""Queue bodies (§10): claim, ack, nack, extend and redrive, with their defaults and clamps."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from topics.errors import BatchTooLarge, InvalidRequest
from topics.formats.api.decoding import decode
from topics.formats.api.diff_body import TagMatch, tag_match
from topics.formats.api.limits import (
    U64_MAX,
    WAIT_MS_MAX,
    Limits,
    check_u64,
    check_worker,
    clamped_delay_ms,
    clamped_lease_ms,
    clamped_max_jobs,
)
from topics.formats.buffers import Buffer
from topics.formats.names import valid_topic_name

ERROR_MAX_BYTES = 1024
REDRIVE_LIMIT = 1000
REDRIVE_LIMIT_MAX = 10_000


class ClaimBody(msgspec.Struct):
    """Body of ``POST /v0/topics/:q/claim`` (§10.2) as it was sent."""

    node: str
    max: int = 1
    lease_ms: int | None = None
    wait_ms: int = 0


class Claim(NamedTuple):
    """A claim with defaults and clamps applied.

    If ``lease_ms`` is None, the topic's config determines the duration of the leases.
    """

    node: str
    max_jobs: int
    lease_ms: int | None
    wait_ms: int


class JobsRequest(msgspec.Struct):
    """Leased jobs, and the node that holds them: the body of ``POST /v0/topics/:q/ack`` (§10.4).

    ``lease_ids`` has one id for each of ``seqs``, or is None.
    """

    node: str
    seqs: list[int]
    lease_ids: list[str] | None = None


class Nack(JobsRequest):
    """Body of ``POST /v0/topics/:q/nack`` (§10.5)."""

    delay_ms: int = 0
    error: str | None = None  # the reason, which the job's next worker receives


class Extend(JobsRequest, kw_only=True):
    """Body of ``POST /v0/topics/:q/extend`` (§10.6)."""

    lease_ms: int


class RedriveBody(msgspec.Struct):
    """Body of ``POST /v0/topics/:dlq/redrive`` as it was sent."""

    to: str | None = None
    match: Any = None
    before_seq: int | None = None
    limit: int = REDRIVE_LIMIT


class Redrive(NamedTuple):
    """A checked redrive of up to ``limit`` records.

    If they are not None, ``before_seq`` and ``match`` select the records. If ``to`` is None, each
    record is moved to its original topic.
    """

    to: str | None
    match: TagMatch | None
    before_seq: int | None
    limit: int


_claim = msgspec.json.Decoder(ClaimBody)
_ack = msgspec.json.Decoder(JobsRequest)
_nack = msgspec.json.Decoder(Nack)
_extend = msgspec.json.Decoder(Extend)
_redrive = msgspec.json.Decoder(RedriveBody)


def decode_claim(body: Buffer, limits: Limits) -> Claim:
    """Decode the body of a claim. Raises `InvalidRequest`."""
    request = decode(_claim.decode, body or b"{}")
    check_worker(request.node, limits)
    check_u64("wait_ms", request.wait_ms)
    return Claim(
        request.node,
        clamped_max_jobs(request.max, limits),
        None if request.lease_ms is None else clamped_lease_ms(request.lease_ms),
        min(request.wait_ms, WAIT_MS_MAX),
    )


def decode_ack(body: Buffer, limits: Limits) -> JobsRequest:
    """Decode the body of an ack. Raises `InvalidRequest` or `BatchTooLarge`."""
    request = decode(_ack.decode, body or b"{}")
    _check_jobs(request, limits)
    return request


def decode_nack(body: Buffer, limits: Limits) -> Nack:
    """Decode the body of a nack. Raises `InvalidRequest` or `BatchTooLarge`."""
    request = decode(_nack.decode, body or b"{}")
    _check_jobs(request, limits)
    request.delay_ms = clamped_delay_ms(request.delay_ms)
    if request.error is not None and len(request.error.encode()) > ERROR_MAX_BYTES:
        raise InvalidRequest(
            f"error is longer than {ERROR_MAX_BYTES} bytes", field="error", max=ERROR_MAX_BYTES
        )
    return request


def decode_extend(body: Buffer, limits: Limits) -> Extend:
    """Decode the body of an extend. Raises `InvalidRequest` or `BatchTooLarge`."""
    request = decode(_extend.decode, body or b"{}")
    _check_jobs(request, limits)
    request.lease_ms = clamped_lease_ms(request.lease_ms)
    return request


def decode_redrive(body: Buffer) -> Redrive:
    """Decode the body of a redrive. An empty body uses all defaults. Raises `InvalidRequest`."""
    request = decode(_redrive.decode, body or b"{}")
    if request.to is not None and not valid_topic_name(request.to):
        raise InvalidRequest("to must be the name of a topic", field="to")
    if request.before_seq is not None:
        check_u64("before_seq", request.before_seq)
    check_u64("limit", request.limit)
    if not request.limit:
        raise InvalidRequest("limit must be at least 1", field="limit")
    match = None if request.match is None else tag_match(request.match)
    return Redrive(request.to, match, request.before_seq, min(request.limit, REDRIVE_LIMIT_MAX))


def _check_jobs(request: JobsRequest, limits: Limits) -> None:
    check_worker(request.node, limits)
    seqs, lease_ids = request.seqs, request.lease_ids
    if not seqs:
        raise InvalidRequest("seqs must contain at least one seq", field="seqs")
    if len(seqs) > limits.claim:
        raise BatchTooLarge(
            f"{len(seqs)} seqs in one call; at most {limits.claim}",
            seqs=len(seqs),
            max=limits.claim,
        )
    if min(seqs) < 0 or max(seqs) > U64_MAX:
        raise InvalidRequest("seqs must be integers from 0 to 2^64 - 1", field="seqs")
    if lease_ids is not None and len(lease_ids) != len(seqs):
        raise InvalidRequest(
            f"lease_ids must contain one for each of the {len(seqs)} seqs, not {len(lease_ids)}",
            field="lease_ids",
        )
