"""Guard: admits or refuses every request of both planes, with these checks in this order.

    order     check                              failure                        module
    0         the host's name                    403 forbidden                  hosts
    1         bearer token                       401 unauthorized               authorization
    2         path, then method                  404 not_found, 405 …           table
    3         scope, prefix, foreign page        403 forbidden                  authorization, hosts
    4         the server is not draining         503 shutting_down              drain
    5         media type, content coding         415 unsupported_media_type     media
    6         declared length of the body        413 payload_too_large          body_limits
    7         name, query, header values         400 invalid_request

`admit` reads only the request head and stores nothing. So its result may be cached for equal heads
until the keys change. Conditions that can change between two equal heads (the drain, the number of
the key's requests in flight) are checked by `enter`. The key is checked again by `renewed`, right
before the operation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from msgspec.structs import replace

from topics.config import Settings
from topics.engine.access import ANYONE, Principal
from topics.errors import (
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    TopicsError,
    Unauthorized,
    UnsupportedMediaType,
)
from topics.formats.api.request_heads import Head, HeadFields, authority_of
from topics.front.access_log import Subject
from topics.front.authorization import (
    authenticate,
    authorize,
    check_router_name,
    check_topic_name,
)
from topics.front.body_limits import BodyLimits, too_large
from topics.front.cors import Cors
from topics.front.drain import Drain, shutting_down
from topics.front.hosts import HostRule, is_from_foreign_page
from topics.front.keys import Keys, key_removed_error
from topics.front.limits import Slots
from topics.front.media import accepts_gzip, check_body_media
from topics.front.queries import find_token, parse_query
from topics.front.request import Request
from topics.front.route import BodyRule, Route, RouteMatch
from topics.front.server_timing import is_requested, parameters_of

Match = Callable[[str, bytes], RouteMatch]


class Guard:
    """Checks requests.

    ``match`` returns the route for a method and target, and ``shard_of`` returns the shard of a
    topic.
    """

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        match: Match,
        shard_of: Callable[[str], int],
        requests: Slots,
        *,
        probe_auth: bool = False,
    ) -> None:
        self.drain = Drain()
        self.body_limits = BodyLimits(settings)
        self._keys = keys
        self._match = match
        self._shard_of = shard_of
        self._requests = requests
        self._probe_auth = probe_auth
        self.cors = Cors(settings.cors_origins)
        self._hosts = HostRule(settings, has_keys=keys.access.enabled)

    def admit(self, head: Head) -> Request:
        """Check a head. Return the admitted request, or raise `TopicsError`.

        The checks run in the order of the table above. The result depends only on the head and on
        the keys, so that the caller can cache it. Nothing is counted and nothing is stored.
        """
        # The host is checked first, because a request for another host may come from a page that an
        # attacker has pointed to this server (DNS rebinding).
        fields = head.fields
        self._hosts.check([*fields.values(b"host"), *authority_of(head.target)])
        # The key is checked before the path is used. Without a valid key, a client gets no
        # information.
        matched, principal = self._identify(head)
        route, topic = matched.route, matched.topic
        # The key must cover the name in the path: a topic or a router.
        authorize(principal, route.scope, matched.router if topic is None else topic)
        if not route.is_document:
            self._check_page(fields)
        # Health checks and similar routes respond during the drain.
        if self.drain.is_draining and not route.answers_in_drain:
            raise shutting_down()
        # The error for the media type of a chunked body is kept for later, because only the end of
        # the body shows whether it is empty.
        gzip_in, wrong_media = _check_media(route, head)
        self._check_length(route, head.length)
        _check_name(matched)
        if route.is_chunked and not head.is_1_1:
            raise InvalidRequest("the response is chunked and requires HTTP/1.1")
        if head.length == 0:
            route.check_length(0)
        query = parse_query(parameters_of(route, matched.query), matched.query)
        # All checks have passed. Only the fields that operations need are taken from the head.
        return Request(
            method=head.method,
            route=route,
            topic=topic or "",
            wid=matched.wid or "",
            router=matched.router or "",
            shard=0 if topic is None else self._shard_of(topic),
            principal=principal,
            query=query,
            key=_idempotency_key(fields),
            gzip_in=gzip_in,
            gzip_out=accepts_gzip(fields.joined(b"accept-encoding")),
            wrong_media=wrong_media,
            head=_kept_fields(fields) if route.streams or route.negotiates else None,
            is_timed=is_requested(query),
        )

    def renamed(self, request: Request, topic: str) -> Request | None:
        """Return the result that `admit` would return for the head of ``request`` if its topic were
        ``topic``, which must be a valid name. Return None if `admit` would refuse that topic.
        """
        # Everything else was checked with the head.
        if not request.principal.covers(topic):
            return None
        return replace(request, topic=topic, shard=self._shard_of(topic))

    def admit_preflight(self, head: Head) -> None:
        """Check the head of a preflight, which has no key. Raise `Forbidden` or `NotFound`."""
        self._hosts.check([*head.fields.values(b"host"), *authority_of(head.target)])
        # No route has the method OPTIONS, but the path exists.
        with contextlib.suppress(MethodNotAllowed):
            self._match(head.method, head.target)

    def route_of(self, head: Head) -> Route | None:
        """Return the route of a head that was not admitted, or None."""
        try:
            return self._match(head.method, head.target).route
        except TopicsError:
            return None

    def subject_of(self, head: Head) -> Subject:
        """Return the access log's `Subject` for a head that was not admitted. Never raises."""
        try:
            matched = self._match(head.method, head.target)
        except TopicsError:
            return Subject(head.method)
        token = find_token(matched.query) if matched.route.query_token else None
        try:
            principal = authenticate(self._keys.access, head.fields, token)
        except Unauthorized:
            principal = ANYONE
        topic, router = matched.topic or "", matched.router or ""
        return Subject(head.method, matched.route, topic, router, principal)

    def enter(self, request: Request) -> None:
        """Count the request as in flight. The caller must call `leave` afterwards.

        Raise `ShuttingDown` during the drain, or `Throttled` above the key's cap (§11).
        """
        route = request.route
        # Open routes need no key. They are not counted, so that a health check works under any
        # load.
        if not route.is_open:
            if self.drain.is_draining and not route.answers_in_drain:
                raise shutting_down()
            if request.principal is not ANYONE:  # ANYONE has no cap
                self._requests.acquire(request.principal)

    def renewed(self, request: Request) -> Request:
        """Return the request with the current rights of its key.

        The keys may have changed since `admit`, and the names in the body are checked against these
        rights. Raise `Unauthorized` if the key was removed, and `Forbidden` if its rights no longer
        cover the request.
        """
        # The same object means that the keys have not changed. This is the usual case.
        principal = self._keys.access.current(request.principal)
        if principal is request.principal or request.principal is ANYONE:
            return request
        if principal is None:
            raise key_removed_error()
        authorize(principal, request.route.scope, request.topic or request.router or None)
        return replace(request, principal=principal)

    def leave(self, request: Request) -> None:
        """Stop counting a request that `enter` has counted."""
        if not request.route.is_open and request.principal is not ANYONE:
            self._requests.release(request.principal)

    def _identify(self, head: Head) -> tuple[RouteMatch, Principal]:
        """Return the route of the request, and its principal.

        A client without a key gets 401 for any path, so that it cannot find out which paths exist.
        """
        try:
            matched = self._match(head.method, head.target)
        # Authenticate before the error is raised, so that a client without a key also gets 401 for
        # unknown paths.
        except (NotFound, MethodNotAllowed):
            authenticate(self._keys.access, head.fields, None)
            raise
        # An open route accepts anyone. With ``probe_auth``, only public routes do.
        if matched.route.is_open and (matched.route.is_public or not self._probe_auth):
            return matched, ANYONE
        token = find_token(matched.query) if matched.route.query_token else None
        return matched, authenticate(self._keys.access, head.fields, token)

    def _check_page(self, fields: HeadFields) -> None:
        """Raise `Forbidden` if a browser sent the request on behalf of a page from another site."""
        if is_from_foreign_page(fields) and not self.cors.allows(fields):
            rule = "requests from pages of other origins are refused"
            raise Forbidden(f"{rule}; add the origin to TOPICS_CORS_ORIGINS")

    def _check_length(self, route: Route, length: int | None) -> None:
        """Raise `PayloadTooLarge` if the declared length is above the limit of the route."""
        most = self.body_limits.max_bytes(route)
        # A chunked body has no declared length. It is counted while it is read.
        if length is not None and length > most:
            raise too_large(most)


def _kept_fields(fields: HeadFields) -> HeadFields:
    """Return the fields that a request keeps.

    A stream may last for days and must not keep the token.
    """
    return fields.without(b"authorization")


def _check_name(matched: RouteMatch) -> None:
    """Raise `InvalidRequest` if a name in the path is not valid."""
    if matched.topic is not None:
        check_topic_name(matched.topic)
    if matched.router is not None:
        check_router_name(matched.router)


def _check_media(route: Route, head: Head) -> tuple[bool, UnsupportedMediaType | None]:
    """Return whether the body is gzipped, and the error for its media type, or None.

    A wrong type is raised immediately, except for a chunked body, because it may be empty.
    """
    if route.body is BodyRule.NONE or head.length == 0:
        return False, None
    gzip_in, wrong = check_body_media(head.fields)
    # An empty chunked body has no type, so the error is returned and raised only if there are
    # bytes.
    if wrong is not None and head.length is not None:
        raise wrong
    return gzip_in, wrong


def _idempotency_key(fields: HeadFields) -> str | None:
    """Return the value of Idempotency-Key, or None. Raise `InvalidRequest`."""
    values = fields.values(b"idempotency-key")
    if not values:
        return None
    if len(values) > 1:
        raise InvalidRequest("more than one Idempotency-Key")
    try:
        return values[0].decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("the Idempotency-Key is not UTF-8") from None
