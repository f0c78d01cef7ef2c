"""Error responses: the only table from error class to HTTP status (§0.6), the error envelope (§0.5)
and the header fields that a status requires.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from topics import errors
from topics.formats.api.request_heads import Headers
from topics.front.answers import Answer, elapsed_ms

STATUS: dict[type[errors.TopicsError], int] = {
    errors.InvalidRequest: 400,
    errors.BatchTooLarge: 400,
    errors.RecordTooLarge: 400,
    errors.Unauthorized: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.TopicNotFound: 404,
    errors.RouterNotFound: 404,
    errors.MethodNotAllowed: 405,
    errors.NotAcceptable: 406,
    errors.TopicExistsIncompatible: 409,
    errors.RouterCycle: 409,
    errors.TopicNotEmpty: 409,
    errors.NotAQueue: 409,
    errors.PayloadTooLarge: 413,
    errors.UnsupportedMediaType: 415,
    errors.TopicFull: 422,
    errors.UpgradeRequired: 426,
    errors.Throttled: 429,
    errors.Internal: 500,
    errors.NotReady: 503,
    errors.ShuttingDown: 503,
}
RETRY_AFTER_MS = 1000  # used if the server cannot estimate the delay


def status_of(failure: errors.TopicsError) -> int:
    """Return the status of the failure's class, or of its nearest base class in the table."""
    for cls in type(failure).__mro__:
        if cls in STATUS:
            return STATUS[cls]
    raise AssertionError(f"{type(failure).__name__} has no HTTP status")


def error_answer(failure: errors.TopicsError, at: int = 0) -> Answer:
    """Return the error envelope as a response.

    The body has the member ``performance`` if the start of the request, ``at`` (monotonic ns), is
    not 0. The traceback of the failure is removed, because its frames may refer to the failure,
    which would be a reference cycle.
    """
    failure.__traceback__ = None
    error: dict[str, Any] = {"code": failure.code, "message": failure.message}
    if failure.detail:
        error["detail"] = failure.detail
    body: dict[str, Any] = {"error": error}
    if at:
        body["performance"] = {"server_total_ms": elapsed_ms(at)}
    status = status_of(failure)
    return Answer(status, msgspec.json.encode(body), headers=_headers(status, failure))


def _headers(status: int, failure: errors.TopicsError) -> Headers:
    """Return the header fields that the status requires."""
    detail = failure.detail
    if status in (429, 503):
        seconds = retry_after_s(detail.get("retry_after_ms", RETRY_AFTER_MS))
        return ((b"retry-after", b"%d" % seconds),)
    if status == 401:
        return ((b"www-authenticate", b"Bearer"),)
    if status == 405:
        return ((b"allow", ", ".join(detail.get("allow", ())).encode("ascii")),)
    if status == 426:
        upgrade = ((b"connection", b"Upgrade"), (b"upgrade", b"websocket"))  # RFC 9110 §7.8
        return (*upgrade, (b"sec-websocket-version", b"13"))
    return ()


def retry_after_s(retry_after_ms: float) -> int:
    """Return the value of Retry-After in seconds, rounded up, at least 1.

    With 0, a client would retry in a tight loop.
    """
    return max(1, math.ceil(retry_after_ms / 1000))
