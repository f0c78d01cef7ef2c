"""How handlers of a shard answer."""

from __future__ import annotations

import time
from typing import Any

import structlog

from topics.actors.rpc.message_router import InboundMessage, RpcContext, RpcErrorPayload
from topics.errors import Internal, TopicsError
from topics.formats.api import answers
from topics.storage.disk import Damaged

APPLICATION_ERROR = 2000
CONTRACT_ERROR = 2001
log = structlog.get_logger()


def map_error(error: Exception, message: InboundMessage) -> RpcErrorPayload:
    """Failures of the contract travel with their code and detail; anything else is a bug."""
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
            "what was asked for is damaged on the disk",
            {"code": Internal.code, "detail": {}},
        )
    log.error("handler_failed", subject=message.subject, exc_info=error)
    return RpcErrorPayload(APPLICATION_ERROR, f"{type(error).__name__}: {error}")


def request_of(message: InboundMessage) -> tuple[RpcContext, dict[str, Any]]:
    """The request that a message is, and its params."""
    assert message.rpc is not None, "rpc/ subjects come with an envelope"
    return message.rpc, message.rpc.params


def total_ms(params: dict[str, Any]) -> float:
    """Since the front had the whole request."""
    began: int = params["at"]
    return (time.monotonic_ns() - began) / 1e6


def reply(rpc: RpcContext, params: dict[str, Any], body: bytes, status: int = 200) -> None:
    """Answer with a body that lacks its end."""
    rpc.reply({"status": status}, body + answers.performance(total_ms(params)))
