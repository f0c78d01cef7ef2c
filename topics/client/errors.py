"""Request errors: one class for each way to handle a failure.

Invalid          400 405 406 413 415   correct the request
Refused          401 403               use another key
NotFound         404                   create the topic or router first
Conflict         409 422               change the existing topic, or free space in it
Throttled        429                   try later; the client has retried until its deadline
Unavailable      5xx                   same as Throttled; only 502, 503 and 504 are retried
ConnectionLost   no response           same as Throttled
ClientClosed     no response           the program has closed the client
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class TopicsError(Exception):
    """A request that failed. ``code`` is the contract's ``error.code`` (§0.5), and ``status`` is
    the HTTP status, or 0 if there was no response. ``detail`` is the contract's ``error.detail``.
    ``request_id`` identifies the request in the server's log.
    """

    retry_after_s: float | None = None  # the pause that the server requests

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        status: int = 0,
        detail: Mapping[str, Any] | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.status = message, code, status
        self.detail, self.request_id = dict(detail or {}), request_id

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (429, 502, 503, 504)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else self.message


class Invalid(TopicsError):
    """The request is invalid."""


class Refused(TopicsError):
    """The key is missing or unknown, or lacks a scope or a prefix."""


class NotFound(TopicsError):
    """The topic, router or path does not exist."""


class Conflict(TopicsError):
    """The existing topic or router does not permit the request, or the topic is full."""


class Throttled(TopicsError):
    """The server is busy, or a limit is reached."""


class Unavailable(TopicsError):
    """The server or the shard of the topic is not ready, or the server has a defect (500)."""


class ConnectionLost(TopicsError):
    """There was no response. ``was_sent``: the server may have executed the request."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message, code="connection_lost")
        self.was_sent = was_sent


class ClientClosed(TopicsError):
    """The client was closed before or during the call. The server may have executed the request."""

    def __init__(self) -> None:
        super().__init__("the client is closed", code="client_closed")


_CLASSES = {401: Refused, 403: Refused, 404: NotFound, 409: Conflict, 422: Conflict, 429: Throttled}


class _Error(msgspec.Struct):
    code: str
    message: str
    detail: dict[str, Any] = {}


class _Envelope(msgspec.Struct):
    error: _Error


# The codes that a WebSocket reply may have (§7.3); all other codes have the status 400.
_STATUS_OF = {
    "unauthorized": 401,
    "forbidden": 403,
    "topic_not_found": 404,
    "topic_exists_incompatible": 409,
    "topic_full": 422,
    "throttled": 429,
    "internal": 500,
    "not_ready": 503,
    "shutting_down": 503,
}


def command_error(code: str, message: str, detail: dict[str, Any]) -> TopicsError:
    """Return the error for a WebSocket reply, which has no status."""
    envelope = _Envelope(_Error(code, message, detail))
    return error_of(_STATUS_OF.get(code, 400), {}, msgspec.json.encode(envelope))


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> TopicsError:
    """Return the error for a response, which a proxy may have sent."""
    try:
        error = msgspec.json.decode(body, type=_Envelope).error
    except msgspec.MsgspecError:
        first, *_ = body[:200].decode("utf-8", "replace").strip().splitlines() or [""]
        text = "the response is not from a topics server" + (first and f": {first}")
        error = _Error(f"http_{status}", text)
    kind = Unavailable if status >= 500 else _CLASSES.get(status, Invalid)
    failure = kind(
        error.message,
        code=error.code,
        status=status,
        detail=error.detail,
        request_id=headers.get("x-request-id", ""),
    )
    if (after := headers.get("retry-after", "")).isdigit():
        failure.retry_after_s = float(after)
    if isinstance(pause_ms := error.detail.get("retry_after_ms"), int):
        failure.retry_after_s = pause_ms / 1000
    return failure
