"""Head reader: lets the guard admit or refuse request heads, and caches its decisions.

    raw head --blake2b--> cached? --yes--> AdmittedHead
          without trace fields --no--'
                     |--blake2b--> cached? --yes--> AdmittedHead
             without its topic --no--'
                     |--blake2b--> cached? --yes--> Guard.renamed --> AdmittedHead
                                      '--no--> parse --> Guard.admit --> AdmittedHead, RefusedHead
                                                                     '-> PreflightHead

A keep-alive client sends the same head repeatedly. The decision is cached under the digest of the
exact bytes, excluding the trace fields. A head with trace fields costs a second digest; other heads
have no additional cost. A client that uses many topics sends heads that differ only in the topic's
name, so the decision is also cached under the digest that excludes the name (``decisions/0045``).
The cache must not keep the bytes themselves, because they contain a token.
"""

from __future__ import annotations

from collections.abc import Container
from hashlib import blake2b
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import structs

from topics.errors import TopicsError
from topics.formats.api.request_heads import (
    Head,
    Headers,
    TraceFields,
    cut_topic_name,
    cut_trace_fields,
    parse_head,
)
from topics.formats.api.route_names import OTHER_ROUTE, ROUTE_INDEXES
from topics.front.guard import Guard
from topics.front.request import Request
from topics.front.route import BodyRule, Route

YOUNG_MAX: Final = 4096  # maximum number of entries in a generation

T = TypeVar("T")


class HeadCache(Generic[T]):
    """Cache of decisions about heads, keyed by the digest of their bytes. It has two generations of
    at most ``young_max`` entries each.

        young --full--> old --full again--> dropped
          ^--- found -----'

    A head that is used repeatedly stays in the cache, even if many other heads are used only once,
    for example while topics are created or appends go to a hundred thousand topics. Unlike an LRU
    list, the two generations need no order of the entries and no search for the oldest one.
    """

    def __init__(self, young_max: int = YOUNG_MAX) -> None:
        self._young_max = young_max
        self.young: dict[bytes, T] = {}
        self._old: dict[bytes, T] = {}

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def entries(self) -> dict[bytes, T]:
        """All entries, in a new dict."""
        return {**self._old, **self.young}

    def get(self, digest: bytes) -> T | None:
        """Return the value of the digest, or None.

        An entry of the old generation becomes young again.
        """
        found = self.young.get(digest)
        if found is None and (found := self._old.get(digest)) is not None:
            self.put(digest, found)
        return found

    def put(self, digest: bytes, value: T) -> None:
        """Store a value. If the young generation is full, drop the old one first."""
        young = self.young
        if len(young) >= self._young_max:
            self._old, self.young = young, (young := {})
        young[digest] = value

    def clear(self) -> None:
        """Drop all entries."""
        self.young, self._old = {}, {}


class DecidedHead(msgspec.Struct, frozen=True, eq=False):
    """A decision about a head, with the data that any response to it needs.

    ``cors`` contains header lines. ``route_index`` is an index of `ROUTE_NAMES`.
    """

    method: str
    cors: bytes
    route_index: int


class AdmittedHead(DecidedHead, frozen=True, eq=False):
    """A head that the guard has admitted, and the form of its body.

    ``uses_body``: the route reads the body. ``plain``: the body is neither chunked, gzipped nor
    long. ``is_admin``: the admin plane serves the request.
    """

    request: Request
    is_admin: bool
    uses_body: bool
    length: int | None
    plain: bool
    close: bool
    expects_continue: bool
    is_1_1: bool = True


class RefusedHead(DecidedHead, frozen=True, eq=False):
    """A well-formed head that the guard has refused."""

    head: Head
    failure: TopicsError


class PreflightHead(DecidedHead, frozen=True, eq=False):
    """A preflight: a browser checks what a page is permitted to send (`topics.front.cors`)."""

    head: Head
    allowed: Headers


AnyHead = AdmittedHead | RefusedHead | PreflightHead


class HeadReader:
    """Makes the decisions about the heads from all connections to a front."""

    def __init__(self, guard: Guard, operations: Container[Route], *, inline_bytes: int) -> None:
        """``operations`` contains the routes of the data plane."""
        self._guard, self._operations = guard, operations
        self._inline_bytes = inline_bytes
        self.cache: HeadCache[AdmittedHead] = HeadCache()
        # Each entry is valid for all topics.
        self.topic_cache: HeadCache[AdmittedHead] = HeadCache()

    def clear(self) -> None:
        """Clear the caches. Called when the keys have changed."""
        self.cache.clear()
        self.topic_cache.clear()

    def decide(self, raw: bytes) -> tuple[AnyHead, TraceFields | None]:
        """Return the decision about a complete head, and its trace fields.

        Raise `InvalidRequest` if the head is not well-formed.
        """
        digest = blake2b(raw, digest_size=16).digest()
        # The direct look-up in `young` saves a function call in the usual case.
        known = self.cache.young.get(digest) or self.cache.get(digest)
        if known is not None:
            return known, None
        trace, without = None, raw
        if (found := cut_trace_fields(raw)) is not None:
            without, trace = found
            digest = _digest_of(without)
            known = self.cache.get(digest)
        return known or self._decide_by_topic(raw, without, digest), trace

    def _decide_by_topic(self, raw: bytes, without: bytes, digest: bytes) -> AnyHead:
        """Decide about a head that is not cached. If possible, reuse the decision about the same
        head with another topic.

        ``without`` is the head excluding its trace fields, and ``digest`` is the digest of these
        bytes.
        """
        cut = cut_topic_name(without)
        if cut is None:
            return self._decide(parse_head(raw), digest, None)
        nameless, topic = _digest_of(cut[0]), cut[1]
        known = self.topic_cache.get(nameless)
        request = None if known is None else self._guard.renamed(known.request, topic)
        if known is None or request is None:
            # No decision is cached, or the key does not cover this topic: let the guard decide.
            return self._decide(parse_head(raw), digest, nameless)
        head = structs.replace(known, request=request)
        self.cache.put(digest, head)
        return head

    def _decide(self, head: Head, digest: bytes, nameless: bytes | None) -> AnyHead:
        """Decide about a parsed head, and cache an admission under both digests.

        ``nameless`` is the digest of the head excluding the topic's name, or None.
        """
        cors = self._guard.cors
        lines = cors.lines(head.fields)
        try:
            if cors.is_preflight(head):
                self._guard.admit_preflight(head)
                return PreflightHead(
                    head.method, lines, OTHER_ROUTE, head, cors.allowed(head.fields)
                )
            request = self._guard.admit(head)
        except TopicsError as failure:
            index = _index_of(self._guard.route_of(head))
            return RefusedHead(head.method, lines, index, head, failure)
        admitted = self._admitted(head, lines, request)
        # An idempotency key belongs to one request, so its head is not sent again. A request that
        # keeps its header fields is not cached either, because they may be as long as the head.
        if not admitted.is_admin and request.head is None and request.key is None:
            self.cache.put(digest, admitted)
            if nameless is not None:
                self.topic_cache.put(nameless, admitted)
        return admitted

    def _admitted(self, head: Head, cors: bytes, request: Request) -> AdmittedHead:
        """Return the admission of a head, with the form of its body."""
        route = request.route
        is_short = head.length is not None and head.length <= self._inline_bytes
        return AdmittedHead(
            head.method,
            cors,
            _index_of(route),
            request,
            is_admin=route not in self._operations,
            uses_body=route.body is not BodyRule.NONE,
            length=head.length,
            plain=is_short and not request.gzip_in,
            close=head.close,
            expects_continue=head.expects_continue,
            is_1_1=head.is_1_1,
        )


def _digest_of(raw: bytes) -> bytes:
    """Return the cache key of a head. It does not reveal the token."""
    return blake2b(raw, digest_size=16).digest()


def _index_of(route: Route | None) -> int:
    """Return the index of a route in `ROUTE_NAMES`."""
    return OTHER_ROUTE if route is None else ROUTE_INDEXES[route.name]
