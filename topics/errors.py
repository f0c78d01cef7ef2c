"""Errors: the tree of all expected failures, and the exit codes of programs.

    TopicsError
        InvalidRequest          invalid_request
        BatchTooLarge           batch_too_large
        RecordTooLarge          record_too_large
        Unauthorized            unauthorized
        Forbidden               forbidden
        NotFound                not_found
        TopicNotFound           topic_not_found
        RouterNotFound          router_not_found
        MethodNotAllowed        method_not_allowed
        TopicExistsIncompatible topic_exists_incompatible
        RouterCycle             router_cycle
        TopicNotEmpty           topic_not_empty
        NotAQueue               not_a_queue
        TopicFull               topic_full
        PayloadTooLarge         payload_too_large
        NotAcceptable           not_acceptable
        UpgradeRequired         upgrade_required
        UnsupportedMediaType    unsupported_media_type
        Throttled               throttled
        Internal                internal
        NotReady                not_ready
        ShuttingDown            shutting_down

A class has the stable ``code`` of the contract (§0.5, §0.6). Its docstring contains the cause and
the remedy, and `topics/docs/reference.md` is generated from it. Only
``topics/front/error_answers.py`` has the HTTP status of each class. Damage on disk
(`topics.storage.disk.Damaged`) and invalid settings are not in this tree: readers get a tombstone,
or the process stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """The exit codes of all programs. Scripts rely on the numbers: never renumber."""

    DONE = 0
    FAILED = 1  # the log or the last line on stderr contains the reason
    USAGE = 2  # wrong arguments, path or settings
    DAMAGED = 3  # corrupt data: a restart would also fail
    NOT_FOUND = 4  # no such topic, router or cursor
    REFUSED = 5  # the API key is missing or unknown, or lacks a scope or a prefix
    UNREACHABLE = 6  # the server does not respond, or is not ready
    DIFFERENT = 7  # `apply --plan` or another comparison found differences
    HUNG_UP = 129  # SIGHUP; a server reloads its keys instead
    INTERRUPTED = 130  # Ctrl-C; a server returns this only after a second one
    TERMINATED = 143  # SIGTERM; a server and `work` finish their work and return 0 instead

    @classmethod
    def summary(cls) -> str:
        """Return the exit codes as a sentence for the help of commands."""
        return (
            "Exit code: 0 done, 1 failed, 2 wrong arguments, path or settings, 3 damaged data,"
            " 4 not found, 5 key refused, 6 unreachable or not ready, 7 differences found,"
            " 129 ended by SIGHUP, 130 interrupted, 143 ended by SIGTERM."
        )


class TopicsError(Exception):
    """An expected failure.

    ``message`` is for people and may change between versions. ``detail`` is optional JSON for
    programs (§0.5).
    """

    code: ClassVar[str]

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail

    @staticmethod
    def restore(kind: type[TopicsError], message: str, detail: dict[str, Any]) -> TopicsError:
        """Return a failure that another process has raised. The constructor of ``kind`` is not
        called.
        """
        found = kind.__new__(kind)
        TopicsError.__init__(found, message, **detail)
        return found


class InvalidRequest(TopicsError):
    """Malformed JSON, a wrong type, a value out of range, a bad name or cursor.

    Action: correct the request; the message names the field.
    """

    code = "invalid_request"


class BatchTooLarge(TopicsError):
    """A write contains more records than ``max_batch_records``.

    Action: send fewer records in one request, or raise TOPICS_MAX_BATCH_RECORDS.
    """

    code = "batch_too_large"


class RecordTooLarge(TopicsError):
    """A record's data and meta together, or its meta alone, exceed their limit.

    Action: store large payloads elsewhere and append their address, or raise
    TOPICS_MAX_RECORD_BYTES or TOPICS_MAX_META_BYTES.
    """

    code = "record_too_large"


class Unauthorized(TopicsError):
    """The request has no bearer token, or no configured key matches it.

    Action: send ``Authorization: Bearer KEY``. The commands read TOPICS_API_KEY.
    """

    code = "unauthorized"


class Forbidden(TopicsError):
    """The key lacks the scope or the prefix, or the request's host or origin is not allowed.

    Action: use a key with the scope and the prefix; add the host to TOPICS_ALLOWED_HOSTS, the
    page's origin to TOPICS_CORS_ORIGINS.
    """

    code = "forbidden"


class NotFound(TopicsError):
    """The path does not exist, or the watch session has expired.

    Action: check the path; create an expired watch session again.
    """

    code = "not_found"


class TopicNotFound(TopicsError):
    """The topic does not exist and this call does not create it.

    Action: create it (PUT, or an append with ``create``), or correct the name.
    """

    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" does not exist', topic=topic)


class RouterNotFound(TopicsError):
    """The router does not exist.

    Action: create it by PUT, or correct the name.
    """

    code = "router_not_found"

    def __init__(self, router: str) -> None:
        super().__init__(f'router "{router}" does not exist', router=router)


class MethodNotAllowed(TopicsError):
    """The path does not support this method.

    Action: use one of the methods in ``detail.allow``.
    """

    code = "method_not_allowed"


class TopicExistsIncompatible(TopicsError):
    """The topic exists with a different ``type``, or is the dest of a router with a
    different source.

    Action: use a different name, or delete the topic or that router first.
    """

    code = "topic_exists_incompatible"


class RouterCycle(TopicsError):
    """The router would close a cycle. ``cycle`` lists its topics and ends with the first one; null
    represents a topic outside of the key's prefixes.

    Action: change the routers, or set ``allow_cycle``.
    """

    code = "router_cycle"

    def __init__(self, cycle: Sequence[str | None]) -> None:
        super().__init__("the router would close a cycle of routers", cycle=[*cycle])


class TopicNotEmpty(TopicsError):
    """The request has ``if_empty`` and the topic contains records.

    Action: delete the records first, or omit ``if_empty``.
    """

    code = "topic_not_empty"


class NotAQueue(TopicsError):
    """The request is a queue call on a topic of type ``log``.

    Action: create a topic with the ``type`` queue; the type of a topic cannot be changed.
    """

    code = "not_a_queue"

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" is not a queue', topic=topic)


class TopicFull(TopicsError):
    """The write does not fit into a topic with ``discard: "reject"``.

    Action: delete or ack records, raise ``cap_records`` or ``cap_bytes``, or set ``discard`` to
    "old".
    """

    code = "topic_full"


class PayloadTooLarge(TopicsError):
    """The body is above the server's hard limit, on the wire or after decompression.

    Action: send less in one request, or raise TOPICS_MAX_BODY_BYTES (for appends).
    """

    code = "payload_too_large"


class NotAcceptable(TopicsError):
    """The Accept header excludes the media type of the route.

    Action: accept ``text/event-stream`` for streams and ``application/json`` for other routes.
    """

    code = "not_acceptable"


class UpgradeRequired(TopicsError):
    """The path requires a different protocol.

    Action: open ``/v0/ws`` as a WebSocket.
    """

    code = "upgrade_required"


class UnsupportedMediaType(TopicsError):
    """The body is not ``application/json``, or its content coding is unknown.

    Action: send ``Content-Type: application/json``, and gzip or no content coding.
    """

    code = "unsupported_media_type"


class Throttled(TopicsError):
    """A limit is reached, or the server is overloaded.

    Action: wait for ``Retry-After``. ``detail.limit`` names the limit, if one is reached.
    """

    code = "throttled"


class Internal(TopicsError):
    """An unexpected error in the server. Its log contains the traceback.

    Action: report it with the traceback. With ``TOPICS_ACCESS_LOG=all``, the log line for the
    request contains the response's ``X-Request-Id``.
    """

    code = "internal"


class NotReady(TopicsError):
    """The topic's shard cannot process the request now. ``detail.reason`` may contain the reason
    (`disk_full`).

    Action: wait for ``Retry-After``. For ``disk_full`` free disk space. /v0/ready has the state.
    """

    code = "not_ready"


class ShuttingDown(TopicsError):
    """The server is draining.

    Action: retry; the restarted server processes the request.
    """

    code = "shutting_down"
