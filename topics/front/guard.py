"""Who may do what, checked once around all routes of both lanes.

    order     check                              failure
    0         the host's name (`hosts.py`)       403 forbidden
    1         bearer token                       401 unauthorized
    2         path, then method                  404 not_found, 405 method_not_allowed
    3         scope, prefix of the name, origin  403 forbidden
    4         the server is not draining         503 shutting_down
    5         media type, content coding         415 unsupported_media_type
    6         declared length of the body        413 payload_too_large
    7         name, query, header values         400 invalid_request

`admit` sees a request's head only and keeps nothing, so its outcome may be remembered for the next
equal head. What can change between two equal heads (draining, the key's requests in flight) is
checked by `enter`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from topics.config import Settings
from topics.engine.access import ANYONE, Access, Principal
from topics.errors import (
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    ShuttingDown,
    Throttled,
    TopicsError,
    Unauthorized,
    UnsupportedMediaType,
)
from topics.formats.api.fields import list_members
from topics.formats.names import valid_topic_name
from topics.front.answers import wants_gzip
from topics.front.backend import Backend
from topics.front.http.bodies import short_body_max, too_large
from topics.front.http.hosts import AUTHORITY, HostRule, host_of
from topics.front.routes.queries import Query, find_token, parse_query
from topics.front.routes.table import BodyRule, Route, RouteMatch, authority_of, match

BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]+)")
JSON_MEDIA = re.compile(
    rb"application/json[ \t]*(?:;[ \t]*charset[ \t]*=[ \t]*\"?utf-8\"?[ \t]*)?;?", re.IGNORECASE
)
ORIGIN = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://" + AUTHORITY.pattern)
LOOPBACK = (b"localhost", b"127.0.0.1", b"[::1]")
RETRY_MS = 1000
LATE_READ_S = 0.5


@dataclass(frozen=True, slots=True)
class Request:
    """A request that `admit` let through: all that its head says, checked."""

    method: str
    route: Route
    topic: str  # "" where the route has none
    wid: str  # likewise
    shard: int
    principal: Principal
    query: Query
    key: str | None  # Idempotency-Key
    prefixes: tuple[str, ...] | None  # the key's allowlist
    gzip_in: bool
    gzip_out: bool
    wrong_media: UnsupportedMediaType | None  # to be raised if a body follows after all
    head: HeadFields | None  # of a request for a stream


class HeadFields:
    """The header fields that matter, by lower-case name; a repeated one keeps all its values."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Sequence[tuple[bytes, bytes]]) -> None:
        self._fields = fields

    def values(self, name: bytes) -> list[bytes]:
        return [value for field, value in self._fields if field == name]

    def joined(self, name: bytes) -> bytes:
        """Repeated fields as one list (RFC 9110 §5.3); empty when absent."""
        return b",".join(self.values(name))


class Guard:
    """The checks, and the small state they need: the drain flag and each key's requests in flight."""

    def __init__(
        self, settings: Settings, access: Access, backend: Backend, *, probe_auth: bool = False
    ) -> None:
        self.draining = False
        self._settings = settings
        self._access = access
        self._backend = backend
        self._probe_auth = probe_auth
        self._short_body_max = short_body_max(settings)
        self._hosts = HostRule(settings, has_keys=access.enabled)
        self._waiting: set[trio.CancelScope] = set()
        self._may_wait = True
        self._inflight: Counter[bytes] = Counter()
        self._inflight_max = settings.max_inflight_per_key if access.enabled else 0

    def admit(
        self, method: str, target: bytes, head: HeadFields, content_length: int | None
    ) -> Request:
        """Check a head; ``content_length`` None when the body is chunked. Raises `TopicsError`."""
        self._hosts.check([*head.values(b"host"), *authority_of(target)])
        found: TopicsError | None = None
        try:
            matched = match(method, target)
        except (NotFound, MethodNotAllowed) as failure:
            found = failure
        is_open = found is None and matched.route.open and not self._probe_auth
        principal = (
            ANYONE
            if is_open
            else self._authenticate(head, _token(matched) if found is None else None)
        )
        if found is not None:
            raise found
        route, topic = matched.route, matched.topic
        self._authorize(route, topic, principal)
        if route.no_preflight and not self._access.enabled and _is_foreign(head):
            raise Forbidden("without keys, pages of other sites may not open this")
        if self.draining and not route.open:
            raise draining()
        gzip_in, wrong_media = self._check_media(route, head, content_length)
        if content_length is not None and content_length > (most := self.body_max(route)):
            raise too_large(most)
        if topic is not None and not valid_topic_name(topic):
            raise InvalidRequest(
                "not a topic name: 1 to 255 of A-Z a-z 0-9 . _ : -, the first a letter or digit"
            )
        if content_length == 0:
            check_length(route, 0)
        return Request(
            method=method,
            route=route,
            topic=topic or "",
            shard=0 if topic is None else self._backend.shard_of(topic),
            principal=principal,
            query=parse_query(route.name, matched.query),
            key=_idempotency_key(head),
            prefixes=principal.prefixes,
            gzip_in=gzip_in,
            gzip_out=wants_gzip(head.joined(b"accept-encoding")),
            wrong_media=wrong_media,
            wid=matched.wid or "",
            head=head if route.streams else None,
        )

    def body_max(self, route: Route) -> int:
        """How many bytes a body of this route may have."""
        is_short = route.body is not BodyRule.NONE and not route.long_body
        return self._short_body_max if is_short else self._settings.max_body_bytes

    def enter(self, request: Request) -> None:
        """Count the request in; pair it with `leave`. Raises `ShuttingDown`, or `Throttled` above
        the key's cap (§11).
        """
        if self.draining and not request.route.open:
            raise draining()
        if self._inflight_max and not request.route.open:
            digest = request.principal.digest
            if self._inflight[digest] >= self._inflight_max:
                limit = self._inflight_max
                raise Throttled(
                    "this key has too many requests in flight",
                    limit="max_inflight_per_key",
                    max=limit,
                )
            self._inflight[digest] += 1

    def leave(self, request: Request) -> None:
        """The request that was let in by `enter` is over."""
        if self._inflight_max and not request.route.open:
            digest = request.principal.digest
            self._inflight[digest] -= 1
            if not self._inflight[digest]:
                del self._inflight[digest]

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a call that may wait for records. Raises `ShuttingDown` when the server drains."""
        # Whose body comes when the others have been told has time for a page, but not for a wait.
        with trio.CancelScope(
            deadline=math.inf if self._may_wait else trio.current_time() + LATE_READ_S
        ) as scope:
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)
        if scope.cancelled_caught:
            raise draining()

    def stop_waiting(self) -> None:
        """End all waiting calls with `ShuttingDown`, and soon those that still begin."""
        self._may_wait = False
        for scope in self._waiting:
            scope.cancel()

    def _authenticate(self, head: HeadFields, token: bytes | None) -> Principal:
        if not self._access.enabled:
            return ANYONE
        values = head.values(b"authorization")
        if not values and token is not None:
            values = [b"Bearer " + token]
        bearer = BEARER.fullmatch(values[0]) if len(values) == 1 else None
        principal = self._access.authenticate(bearer[1]) if bearer is not None else None
        if principal is None:
            raise Unauthorized("a known bearer token is required")
        return principal

    def _authorize(self, route: Route, topic: str | None, principal: Principal) -> None:
        if route.scope is not None and not principal.allows(route.scope):
            name = str(route.scope.name).lower()
            raise Forbidden(f"the key lacks the scope {name}", scope=name)
        if topic is not None and not principal.covers(topic):
            raise Forbidden("the name is outside the key's prefixes")

    def _check_media(
        self, route: Route, head: HeadFields, content_length: int | None
    ) -> tuple[bool, UnsupportedMediaType | None]:
        if route.body is BodyRule.NONE or content_length == 0:
            return False, None
        wrong = None
        media = head.values(b"content-type")
        if len(media) != 1 or JSON_MEDIA.fullmatch(media[0]) is None:
            wrong = UnsupportedMediaType("Content-Type must be application/json (utf-8)")
        named = list_members(head.joined(b"content-encoding"))
        codings = [coding for coding in named if coding not in (b"", b"identity")]
        if codings not in ([], [b"gzip"], [b"x-gzip"]):
            wrong = wrong or UnsupportedMediaType("Content-Encoding must be gzip or absent")
        if wrong is not None and content_length is not None:
            raise wrong
        return bool(codings), wrong


def _is_foreign(head: HeadFields) -> bool:
    """Whether a browser asks for a page that came neither from this host nor from the machine that
    the browser runs on.

    Origins without a host (``null``) are foreign: any page can have one.
    """
    own = [host for value in head.values(b"host") if (host := host_of(value))]
    return any(_origin_host(value) not in (*own, *LOOPBACK) for value in head.values(b"origin"))


def _origin_host(value: bytes) -> bytes | None:
    found = ORIGIN.fullmatch(value)
    return found[1].lower() if found else None


def _token(matched: RouteMatch) -> bytes | None:
    """``?token=``, for an EventSource, which cannot send a header: on the GETs of event streams
    only (§7.1).
    """
    if matched.wid is None:
        return None
    return find_token(matched.query)


def check_length(route: Route, length: int) -> None:
    """Raises `InvalidRequest` for an empty body where one is needed. Elsewhere an empty body means
    ``{}``.
    """
    if length == 0 and route.body is BodyRule.REQUIRED:
        raise InvalidRequest("a JSON body is required")


def draining() -> ShuttingDown:
    return ShuttingDown("the server is shutting down", retry_after_ms=RETRY_MS)


def _idempotency_key(head: HeadFields) -> str | None:
    values = head.values(b"idempotency-key")
    if not values:
        return None
    if len(values) > 1:
        raise InvalidRequest("more than one Idempotency-Key")
    try:
        return values[0].decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("the Idempotency-Key is not UTF-8") from None
