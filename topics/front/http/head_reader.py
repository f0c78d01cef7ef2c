"""Heads: judged by the guard, and remembered.

    raw head --blake2b--> remembered? --yes--> AdmittedHead
          without trace fields --no--'
                     |--blake2b--> remembered? --yes--> AdmittedHead
             without its topic --no--'
                     |--blake2b--> remembered? --yes--> Guard.renamed --> AdmittedHead
                                       '--no--> parse --> Guard.admit --> AdmittedHead, RefusedHead
                                                                      '-> PreflightHead

A keep-alive client sends the same head again and again. The decision is remembered under the digest
of the exact bytes, trace fields left out: clients that send these cost a second digest, and others
nothing. A client of many topics sends heads that differ in the topic's name: the decision is
remembered without it, too (``decisions/0045``). The bytes hold a token and must not be kept.
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

YOUNG_MAX: Final = 4096  # entries of a generation

T = TypeVar("T")


class HeadMemory(Generic[T]):
    """What was decided about heads, by the digests of their bytes: at most ``2 * young_max``.

        young --full--> old --full again--> forgotten
          ^--- found -----'

    A head that comes again stays, however many others come only once (topics that are made, appends
    to a hundred thousand topics). No entries are sorted, or searched for the oldest one.
    """

    def __init__(self, young_max: int = YOUNG_MAX) -> None:
        self._young_max = young_max
        self.young: dict[bytes, T] = {}
        self._old: dict[bytes, T] = {}

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def entries(self) -> dict[bytes, T]:
        """All of them."""
        return {**self._old, **self.young}

    def get(self, digest: bytes) -> T | None:
        """What is known under the digest, which counts as young again."""
        found = self.young.get(digest)
        if found is None and (found := self._old.get(digest)) is not None:
            self.put(digest, found)
        return found

    def put(self, digest: bytes, value: T) -> None:
        """Keep it. When the young generation is full, the old one is forgotten."""
        young = self.young
        if len(young) >= self._young_max:
            self._old, self.young = young, (young := {})
        young[digest] = value

    def clear(self) -> None:
        """Forget everything."""
        self.young, self._old = {}, {}


class JudgedHead(msgspec.Struct, frozen=True, eq=False):
    """A head, and what an answer to it needs. ``cors``: field lines. ``route_index``: of
    `ROUTE_NAMES`.
    """

    method: str
    cors: bytes
    route_index: int


class AdmittedHead(JudgedHead, frozen=True, eq=False):
    """A head that the guard admitted, and the form of its body. ``uses_body``: the route reads the
    body. ``plain``: the body is neither chunked, gzipped nor long. ``is_admin``: the admin plane
    answers it.
    """

    request: Request
    is_admin: bool
    uses_body: bool
    length: int | None
    plain: bool
    close: bool
    expects_continue: bool
    is_1_1: bool = True


class RefusedHead(JudgedHead, frozen=True, eq=False):
    """A well-formed head that the guard refused."""

    head: Head
    failure: TopicsError


class PreflightHead(JudgedHead, frozen=True, eq=False):
    """A browser asks what a page may send (`topics.front.cors`)."""

    head: Head
    allowed: Headers


AnyHead = AdmittedHead | RefusedHead | PreflightHead


class HeadReader:
    """Decides about the heads of all connections of a front."""

    def __init__(self, guard: Guard, operations: Container[Route], *, inline_bytes: int) -> None:
        """``operations``: the rows of the data plane."""
        self._guard, self._operations = guard, operations
        self._inline_bytes = inline_bytes
        self.remembered: HeadMemory[AdmittedHead] = HeadMemory()
        self.of_topics: HeadMemory[AdmittedHead] = HeadMemory()  # each stands for those of all

    def forget(self) -> None:
        """Decide about every head anew: the keys have changed."""
        self.remembered.clear()
        self.of_topics.clear()

    def decide(self, raw: bytes) -> tuple[AnyHead, TraceFields | None]:
        """What becomes of a whole head, and the fields that trace it. Raises `InvalidRequest` when
        it is not well-formed.
        """
        digest = blake2b(raw, digest_size=16).digest()
        known = self.remembered.young.get(digest) or self.remembered.get(digest)
        if known is not None:
            return known, None
        trace, without = None, raw
        if (found := cut_trace_fields(raw)) is not None:
            without, trace = found
            digest = _digest_of(without)
            known = self.remembered.get(digest)
        return known or self._judge_by_topic(raw, without, digest), trace

    def _judge_by_topic(self, raw: bytes, without: bytes, digest: bytes) -> AnyHead:
        """``without``: the head without its trace fields, ``digest``: of that."""
        cut = cut_topic_name(without)
        if cut is None:
            return self._judge(parse_head(raw), digest, None)
        nameless, topic = _digest_of(cut[0]), cut[1]
        known = self.of_topics.get(nameless)
        request = None if known is None else self._guard.renamed(known.request, topic)
        if known is None or request is None:
            return self._judge(parse_head(raw), digest, nameless)
        head = structs.replace(known, request=request)
        self.remembered.put(digest, head)
        return head

    def _judge(self, head: Head, digest: bytes, nameless: bytes | None) -> AnyHead:
        """Decide, and remember it under the digest of the head, and under that without a topic."""
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
        # A key belongs to one request: its head does not come again. What keeps its fields is as
        # long as they are.
        if not admitted.is_admin and request.head is None and request.key is None:
            self.remembered.put(digest, admitted)
            if nameless is not None:
                self.of_topics.put(nameless, admitted)
        return admitted

    def _admitted(self, head: Head, cors: bytes, request: Request) -> AdmittedHead:
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
    return blake2b(raw, digest_size=16).digest()


def _index_of(route: Route | None) -> int:
    return OTHER_ROUTE if route is None else ROUTE_INDEXES[route.name]
