"""Failures: every one that a caller may expect, as one tree; and how a program ends (`ExitCode`).

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

The class has the stable ``code`` of the contract (§0.5, §0.6); its docstring names the cause and
the cure. The HTTP status of each is in ``topics/front/error_answers.py`` and nowhere else. Damage
on disk (`topics.storage.disk.Damaged`) and wrong settings are not in this tree: readers get a
tombstone, or the process stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """How every program of the project ends. Scripts rely on the numbers: never renumber."""

    DONE = 0
    FAILED = 1  # the log, or the last line on stderr, says why
    USAGE = 2  # wrong arguments, path or settings
    DAMAGED = 3  # data that cannot be trusted: another start would not help
    NOT_FOUND = 4  # no such topic, router or cursor
    REFUSED = 5  # the API key is missing, unknown, or may not do this
    UNREACHABLE = 6  # no server answers, or it is not ready
    DIFFERENT = 7  # `apply --plan` and others that compare have found differences
    HUNG_UP = 129  # SIGHUP; not for a server, which reloads its keys
    INTERRUPTED = 130  # Ctrl-C; of a server only the second one
    TERMINATED = 143  # SIGTERM; not for a server or `work`, which finish their work

    @classmethod
    def sentence(cls) -> str:
        """For the help of commands."""
        return (
            "Exit code: 0 done, 1 failed, 2 wrong arguments, path or settings, 3 damaged data,"
            " 4 not found, 5 refused by key, 6 unreachable or not ready, 7 differences found,"
            " 129 ended by SIGHUP, 130 interrupted, 143 ended by SIGTERM."
        )


class TopicsError(Exception):
    """An expected failure.

    ``message`` is for humans and may change between versions; ``detail`` is optional JSON for
    programs (§0.5).
    """

    code: ClassVar[str]

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail

    @staticmethod
    def restore(kind: type[TopicsError], message: str, detail: dict[str, Any]) -> TopicsError:
        """A failure that another process has raised, whatever its own constructor takes."""
        found = kind.__new__(kind)
        TopicsError.__init__(found, message, **detail)
        return found


class InvalidRequest(TopicsError):
    """Malformed JSON, a wrong type, a value out of range, a bad name or cursor.

    Cure: mend the request; the message names the field.
    """

    code = "invalid_request"


class BatchTooLarge(TopicsError):
    """More records in one write than ``max_batch_records``.

    Cure: send fewer records in one request, or raise TOPICS_MAX_BATCH_RECORDS.
    """

    code = "batch_too_large"


class RecordTooLarge(TopicsError):
    """A record's data and meta, or its meta alone, above its limit.

    Cure: keep large payloads elsewhere and append their address, or raise
    TOPICS_MAX_RECORD_BYTES or TOPICS_MAX_META_BYTES.
    """

    code = "record_too_large"


class Unauthorized(TopicsError):
    """No bearer token, or one that no configured key matches.

    Cure: send ``Authorization: Bearer KEY``; TOPICS_API_KEY has the key of the commands.
    """

    code = "unauthorized"


class Forbidden(TopicsError):
    """The key lacks the scope or the prefix, or the request's host or origin is not allowed.

    Cure: use a key with the scope and the prefix; add the host to TOPICS_ALLOWED_HOSTS, the
    page's origin to TOPICS_CORS_ORIGINS.
    """

    code = "forbidden"


class NotFound(TopicsError):
    """No such path, or a watch session that has expired.

    Cure: look at the path; begin an expired watch anew.
    """

    code = "not_found"


class TopicNotFound(TopicsError):
    """The topic does not exist and this call does not make it.

    Cure: make it (PUT, or an append with ``create``), or mend the name.
    """

    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" does not exist', topic=topic)


class RouterNotFound(TopicsError):
    """The router does not exist.

    Cure: make it by PUT, or mend the name.
    """

    code = "router_not_found"

    def __init__(self, router: str) -> None:
        super().__init__(f'router "{router}" does not exist', router=router)


class MethodNotAllowed(TopicsError):
    """The path exists with other methods (``detail.allow``).

    Cure: use one of those methods.
    """

    code = "method_not_allowed"


class TopicExistsIncompatible(TopicsError):
    """The topic exists with another ``type``, or is the dest of a router with another source.

    Cure: take another name, or delete the topic or that router first.
    """

    code = "topic_exists_incompatible"


class RouterCycle(TopicsError):
    """The router would close a cycle. ``cycle``: its topics, the first one again at the end; None
    stands for one that the caller's key may not see.

    Cure: route another way, or set ``allow_cycle``.
    """

    code = "router_cycle"

    def __init__(self, cycle: Sequence[str | None]) -> None:
        super().__init__("the router would close a cycle of routers", cycle=[*cycle])


class TopicNotEmpty(TopicsError):
    """``if_empty`` was asked for and the topic holds records.

    Cure: delete the records first, or leave ``if_empty`` out.
    """

    code = "topic_not_empty"


class NotAQueue(TopicsError):
    """A queue call on a topic of type ``log``.

    Cure: make a topic with ``type`` queue; the type of a topic does not change.
    """

    code = "not_a_queue"

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" is not a queue', topic=topic)


class TopicFull(TopicsError):
    """A write that does not fit into a topic with ``discard: "reject"``.

    Cure: delete or ack records, raise ``cap_records`` or ``cap_bytes``, or set ``discard`` to
    "old".
    """

    code = "topic_full"


class PayloadTooLarge(TopicsError):
    """The body is above the server's hard limit, on the wire or after decompression.

    Cure: send less in one request, or raise TOPICS_MAX_BODY_BYTES (of appends).
    """

    code = "payload_too_large"


class NotAcceptable(TopicsError):
    """The client's Accept header excludes what the route gives.

    Cure: accept ``text/event-stream`` of streams, ``application/json`` of all else.
    """

    code = "not_acceptable"


class UpgradeRequired(TopicsError):
    """The path speaks another protocol than the request.

    Cure: open ``/v0/ws`` as a WebSocket.
    """

    code = "upgrade_required"


class UnsupportedMediaType(TopicsError):
    """A body that is not ``application/json``, or an unknown content coding.

    Cure: send ``Content-Type: application/json``; as content coding gzip or none.
    """

    code = "unsupported_media_type"


class Throttled(TopicsError):
    """A cap is reached, or more is asked than the server can do now.

    Cure: wait for ``Retry-After``; ``detail.limit`` names the cap that was reached, if one was.
    """

    code = "throttled"


class Internal(TopicsError):
    """An unexpected error of the server; its log has the traceback.

    Cure: report it with that traceback; ``X-Request-Id`` finds it.
    """

    code = "internal"


class NotReady(TopicsError):
    """The topic's shard cannot do it now; ``detail.reason`` may say why (`disk_full`).

    Cure: wait for ``Retry-After``; for ``disk_full`` make room; look at /v0/ready.
    """

    code = "not_ready"


class ShuttingDown(TopicsError):
    """The server is draining.

    Cure: try again; the next start serves it.
    """

    code = "shutting_down"
