"""Replies: the JSON and error replies of a shard's handlers, and their conversion for the caller.

An error that the API documents is sent with RPC code 2001, its own error code and its detail.
Damaged data is reported in the same way, as an internal error. Every other error is unexpected and
is sent with RPC code 2000. The shard logs damaged data and unexpected errors.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import structlog

from topics import errors
from topics.actors.rpc.message_router import RpcErrorPayload
from topics.actors.rpc.session import InboundMessage, RemoteError
from topics.errors import Internal, NotReady, TopicsError
from topics.formats.api import answers
from topics.formats.wire.calls import AppendResult
from topics.formats.wire.contract import R
from topics.formats.wire.envelope import ErrorCode
from topics.storage.disk import Damaged

APPLICATION_ERROR: Final = 2000
CONTRACT_ERROR: Final = 2001
log = structlog.get_logger()

_CLASSES: Final[dict[str, type[TopicsError]]] = {
    error.code: error
    for error in vars(errors).values()
    if isinstance(error, type) and hasattr(error, "code")
}


def map_error(error: Exception, message: InboundMessage[Any, Any]) -> RpcErrorPayload:
    """Return the error reply to a request whose handler raised ``error``. Log unexpected errors."""
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


def answer_error(request: InboundMessage[Any, Any], error: Exception) -> None:
    """Reply to the request with `map_error`."""
    request.error(*map_error(error, request))


def total_ms(at: int) -> float:
    """Return the ms since the front received the request. ``at``: that time, in monotonic ns."""
    return (time.monotonic_ns() - at) / 1e6


def reply_json(request: InboundMessage[Any, R], result: R, body: bytes, at: int) -> None:
    """Append the ``performance`` member to an unfinished JSON ``body``, and reply with it."""
    request.reply(result, body + answers.performance(total_ms(at)))


def restored(code: str, message: str, detail: Mapping[str, Any]) -> TopicsError:
    """Create the error that a shard raised, given its code, message and detail."""
    return TopicsError.restore(_CLASSES[code], message, dict(detail))


def failures_of(result: AppendResult) -> list[TopicsError]:
    """Return the errors in the result of an append message, one for each failed request."""
    return [restored(*failure) for failure in result.failures or ()]


def failure_of(error: RemoteError) -> TopicsError:
    """Convert an error reply to an error of the API. An undocumented error becomes `Internal`."""
    if error.code == CONTRACT_ERROR and isinstance(error.data, dict):
        return restored(error.data["code"], error.message, error.data["detail"])
    if error.code == ErrorCode.TIMEOUT:  # a shard sends this code only if it has not begun a change
        return NotReady(
            "the shard was too busy to start in time; the request had no effect", reason="timeout"
        )
    return Internal(error.message)
