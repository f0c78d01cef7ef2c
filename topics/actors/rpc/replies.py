"""Replies: how the handlers of a shard answer, with JSON for the client or with an error.

A failure of the contract travels with code 2001, its own code and its detail; the front makes it
again (`topics.actors.rpc.failures`). Every other error is unexpected and travels with code
2000; the shard's log has it.
"""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

import structlog

from topics.actors.rpc.message_router import RpcErrorPayload
from topics.actors.rpc.typed_calls import InboundCall
from topics.errors import Internal, TopicsError
from topics.formats.api import answers
from topics.formats.wire.contract import R
from topics.formats.wire.envelope import Encoded
from topics.storage.disk import Damaged

APPLICATION_ERROR: Final = 2000
CONTRACT_ERROR: Final = 2001
log: Final = structlog.get_logger()


class Inbound(Protocol):
    """What an error was met in."""

    @property
    def subject(self) -> str:
        """The subject of the message."""


def map_error(error: Exception, message: Inbound) -> RpcErrorPayload:
    """The error answer to a request whose handler raised ``error``; logs what is unexpected."""
    if isinstance(error, TopicsError):
        return RpcErrorPayload(
            CONTRACT_ERROR, error.message, {"code": error.code, "detail": error.detail}
        )
    if isinstance(error, Damaged):
        log.error(
            "data damaged",
            subject=message.subject,
            path=str(error.path),
            offset=error.offset,
            reason=error.reason,
        )
        return RpcErrorPayload(
            CONTRACT_ERROR,
            "the requested data is damaged on the disk",
            {"code": Internal.code, "detail": {}},
        )
    log.error("handler failed", subject=message.subject, exc_info=error)
    return RpcErrorPayload(APPLICATION_ERROR, f"{type(error).__name__}: {error}")


def answer_error(request: InboundCall[Any, Any], error: Exception) -> None:
    """Answer the request with `map_error`."""
    request.error(*map_error(error, request))


def total_ms(at: int) -> float:
    """Since ``at``, when the front had the whole request (monotonic ns)."""
    return (time.monotonic_ns() - at) / 1e6


def reply_json(request: InboundCall[Any, R], result: R | Encoded, body: bytes, at: int) -> None:
    """Answer with a JSON body that lacks its ``performance`` member."""
    request.reply(result, body + answers.performance(total_ms(at)))
