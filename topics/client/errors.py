"""What goes wrong with a request: one class for each thing that a caller can do about it.

Invalid          400 405 406 413 415   mend the request
Refused          401 403               use another key
NotFound         404                   make it first
Conflict         409 422               what is there does not fit, or is full
Throttled        429                   later; the client has tried until its deadline
Unavailable      5xx                   likewise
ConnectionLost   no answer             likewise
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class TopicsError(Exception):
    """A request that failed. ``code`` is the contract's ``error.code`` (§0.5), ``status`` the HTTP
    status, 0 without an answer; ``detail`` and ``request_id`` are the server's words for its log.
    """

    retry_after_s: float | None = None  # how long the server asks to wait

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

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else self.message


class Invalid(TopicsError):
    """The request is wrong."""


class Refused(TopicsError):
    """The key is missing, unknown, or may not do this."""


class NotFound(TopicsError):
    """There is no such topic, router or path."""


class Conflict(TopicsError):
    """What is there does not fit the request, or is full."""


class Throttled(TopicsError):
    """The server is busy, or a cap is reached."""


class Unavailable(TopicsError):
    """The server, or the shard of this topic, does not serve now; or it has a defect (500)."""


class ConnectionLost(TopicsError):
    """No answer came. ``was_sent``: the server may have done what was asked all the same."""

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message, code="connection_lost")
        self.was_sent = was_sent


_CLASSES = {401: Refused, 403: Refused, 404: NotFound, 409: Conflict, 422: Conflict, 429: Throttled}


class _Error(msgspec.Struct):
    code: str
    message: str
    detail: dict[str, Any] = {}


class _Envelope(msgspec.Struct):
    error: _Error


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> TopicsError:
    """What an answer that is no success says; also one that comes from a proxy."""
    try:
        error = msgspec.json.decode(body, type=_Envelope).error
    except msgspec.MsgspecError:
        text = " ".join(body[:200].decode("utf-8", "replace").split())
        error = _Error(f"http_{status}", text or "an answer that is not the server's")
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
