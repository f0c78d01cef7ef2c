"""Calls: the API as values. Each function says which request to send and how to read its answer;
aio/pool.py sends it.
"""

from __future__ import annotations

import difflib
import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from math import inf
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from topics.client import values
from topics.client.errors import ConnectionLost, TopicsError, error_of
from topics.formats.api.router_json import RouterPatch
from topics.formats.api.topic_config import TopicConfigPatch

T = TypeVar("T")
P = TypeVar("P")

PAGE: Final = 1000  # the most that the server gives
WAIT_S: Final = 25.0  # of one long poll; the server's bound is 30
STATUSES_TO_RETRY: Final = (429, 502, 503, 504)
CHANCE: Final = random.SystemRandom()  # the numbers of a program with a seed stay its own


class Call(NamedTuple, Generic[T]):
    """A request. ``is_repeatable``: sending it twice does no more than sending it once. ``wait_s``:
    how long the server may take on purpose. ``key``: the idempotency key of a body without one.
    """

    method: str
    path: str
    parse: Callable[[bytes], T]
    body: Any = None
    is_repeatable: bool = True
    wait_s: float = 0.0
    key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The header fields of this request alone."""
        headers = {} if self.body is None else {"Content-Type": "application/json"}
        return headers if self.key is None else {**headers, "Idempotency-Key": self.key}

    @property
    def content(self) -> bytes | None:
        """The body as JSON."""
        return None if self.body is None else msgspec.json.encode(self.body)

    def result(self, status: int, headers: Mapping[str, str], body: bytes) -> T:
        """What an answer says. Raises `TopicsError`."""
        if status not in (200, 201):
            raise error_of(status, headers, body)
        try:
            return self.parse(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TopicsError(
                f"not the answer of a topics server: {error}", code="bad_answer", status=status
            ) from None

    def read_by(self, parse: Callable[[bytes], P]) -> Call[P]:
        """The same request with another way to read its answer."""
        return Call(self.method, self.path, parse, *self[3:])


@dataclass(frozen=True, slots=True)
class Retry:
    """How long to try: ``deadline`` s from the first failure. The server's Retry-After is obeyed;
    without one the pause doubles from ``first`` to ``most`` s, less up to a half by chance.

    ``tries`` after the first, and ``connects`` to an address where nobody answers, bound their
    number. With such a bound the pause doubles also where the server names a shorter one, again and
    again: it would be used up in seconds.
    """

    deadline: float = 60.0
    first: float = 0.1
    most: float = 5.0
    tries: float = inf
    connects: float = inf


class Caller(Protocol):
    """A client for threads as its workers and producers use it."""

    node: str | None

    def call(self, call: Call[T]) -> T:
        """Send a call, again if that helps. Raises `TopicsError`."""

    def copy(self, *, timeout: float, retry: Retry) -> AbstractContextManager[Caller, None]:
        """Return a client of the same server with its own connections."""


class AsyncCaller(Protocol):
    """A client for asyncio and trio as its workers use it."""

    async def call(self, call: Call[T]) -> T:
        """See `Caller.call`."""

    def copy(
        self, *, timeout: float, retry: Retry
    ) -> AbstractAsyncContextManager[AsyncCaller, None]:
        """See `Caller.copy`."""


class Tries:
    """The tries of one call, or of one stream that comes back."""

    def __init__(self, retry: Retry) -> None:
        self._retry, self._pause, self._until = retry, retry.first, 0.0
        self._tries = self._connects = 0

    def pause_after(self, failure: TopicsError, *, is_repeatable: bool = True) -> float:
        """How many s to wait before the next try. Raises ``failure`` when there is none."""
        lost = isinstance(failure, ConnectionLost)
        may_be_done = lost and failure.was_sent and not is_repeatable  # type: ignore[attr-defined]
        if may_be_done or not (lost or failure.status in STATUSES_TO_RETRY):
            raise failure
        now, retry, named = monotonic(), self._retry, failure.retry_after_s
        self._until = self._until or now + retry.deadline
        self._tries += 1
        self._connects += lost and not failure.was_sent  # type: ignore[attr-defined]
        pause = named or 0.0
        if named is None or retry.tries < inf:
            pause = max(pause, self._pause * CHANCE.uniform(0.5, 1.0))
            self._pause = min(2 * self._pause, retry.most)
        is_over = self._tries > retry.tries or self._connects > retry.connects
        if is_over or now + pause > self._until:
            raise failure
        return pause

    def succeeded(self) -> None:
        """Contact: the next failure is the first again."""
        self._pause, self._until = self._retry.first, 0.0
        self._tries = self._connects = 0


def _parser(kind: type[T]) -> Callable[[bytes], T]:
    return msgspec.json.Decoder(kind).decode


def _at(name: str, *rest: str, **query: object) -> str:
    path = "/".join(("/v0/topics", quote(name, safe=":"), *rest))
    return path + ("?" + urlencode(query) if query else "")


def _router_at(name: str) -> str:
    return "/v0/routers/" + quote(name, safe=":")


def _named(kind: type[msgspec.Struct], options: Mapping[str, Any]) -> dict[str, Any]:
    """``options``, each a field of ``kind``. Raises `TypeError` with the nearest name."""
    for name in options:
        if name not in kind.__struct_fields__:
            near = difflib.get_close_matches(name, kind.__struct_fields__, 1, 0.0)
            raise TypeError(f"there is no option {name}: {near[0]}?")
    return dict(options)


# Topics


class _Put(msgspec.Struct):
    created: bool


class _Dropped(msgspec.Struct):
    deleted: bool


_created, _dropped = _parser(_Put), _parser(_Dropped)
_topic_put = _parser(values.TopicPut)
_state = _parser(values.TopicState)
_receipt = _parser(values.Receipt)
_page = _parser(values.DiffPage)
_claimed = _parser(values.ClaimPage)
_settled = _parser(values.Settled)
_deleted = _parser(values.Deleted)
_redriven = _parser(values.Redriven)
_router = _parser(values.RouterInfo)


def put_topic(
    name: str, config: Mapping[str, Any], *, dry_run: bool = False
) -> Call[values.TopicPut]:
    """§1.1. With ``dry_run``, the server only reports what it would do. Raise `TypeError` for an
    unknown field.
    """
    body = _named(TopicConfigPatch, config)
    path = _at(name, dry_run="true") if dry_run else _at(name)
    return Call("PUT", path, _topic_put, body)


def get_topic(name: str) -> Call[values.TopicState]:
    """§1.2."""
    return Call("GET", _at(name, touch="false"), _state)


def drop_topic(name: str, *, if_empty: bool = False) -> Call[bool]:
    """§1.4: whether it was there."""
    path = _at(name, if_empty="true") if if_empty else _at(name)
    return Call("DELETE", path, lambda answer: _dropped(answer).deleted)


class Page(msgspec.Struct, Generic[P]):
    """A page of a list; ``next_cursor`` unless it is the last."""

    items: list[P]
    next_cursor: str | None = None


class _Topics(msgspec.Struct):
    topics: list[values.TopicInfo]
    next_cursor: str | None = None


class _Routers(msgspec.Struct):
    routers: list[values.RouterInfo]
    next_cursor: str | None = None


class _Leases(msgspec.Struct):
    leases: list[values.Lease]
    next_cursor: str | None = None


def _paged(kind: type[msgspec.Struct]) -> Callable[[bytes], Page[Any]]:
    decode = _parser(kind)
    return lambda answer: Page(*msgspec.structs.astuple(decode(answer)))


_topics, _routers, _leases = _paged(_Topics), _paged(_Routers), _paged(_Leases)


def _list(path: str, parse: Callable[[bytes], Page[P]], query: Mapping[str, Any]) -> Call[Page[P]]:
    sent = {name: value for name, value in query.items() if value}
    return Call("GET", f"{path}?{urlencode({'page_size': PAGE, **sent})}", parse)


def list_topics(prefix: str, cursor: str | None) -> Call[Page[values.TopicInfo]]:
    """§1.3."""
    return _list("/v0/topics", _topics, {"prefix": prefix, "cursor": cursor})


def list_routers(cursor: str | None, **query: str) -> Call[Page[values.RouterInfo]]:
    """§6: by ``prefix``, ``source``, ``dest``."""
    return _list("/v0/routers", _routers, {**query, "cursor": cursor})


def list_leases(name: str, cursor: str | None, node: str | None) -> Call[Page[values.Lease]]:
    """Who holds which job."""
    return _list(_at(name, "leases"), _leases, {"cursor": cursor, "node": node})


# Records


AUTO: Final = "auto"  # a key of its own for each append


def append(
    name: str, body: Mapping[str, Any], key: str | None = AUTO, node: str | None = None
) -> Call[values.Receipt]:
    """§2: ``body`` without the key. With one, it is appended once, however often it is sent."""
    fields = {"idempotency_key": uuid.uuid4().hex if key == AUTO else key, "node": node}
    sent = {**body, **{field: value for field, value in fields.items() if value}}
    return Call("POST", _at(name, return_seqs="false"), _receipt, sent, is_repeatable=bool(key))


def append_bytes(name: str, body: bytes, key: str) -> Call[values.Receipt]:
    """§2: a finished body, once for each ``key``, which goes beside it."""
    path = _at(name, return_seqs="false")
    return Call("POST", path, _receipt, msgspec.Raw(body), key=key)


def records_of(data: Iterable[Any], records: Iterable[Mapping[str, Any]] | None) -> list[Any]:
    """The records of an append: payloads, and whole records behind them."""
    return [{"data": each} for each in data] + [*(records or ())]


def diff(name: str, from_seq: int, wait_s: float = 0.0, **options: Any) -> Call[values.DiffPage]:
    """§3.1; the topic's name is put into the records."""
    body = {"from_seq": from_seq, "include_tags": True, "wait_ms": int(1000 * wait_s), **options}
    sent = {field: value for field, value in body.items() if value is not None}

    def parse(answer: bytes) -> values.DiffPage:
        page = _page(answer)
        for each in (*page.records, *filter(None, (page.tombstone,))):
            msgspec.structs.force_setattr(each, "topic", name)
        return page

    return Call("POST", _at(name, "diff"), parse, sent, wait_s=wait_s)


def delete_records(
    name: str, *, before: int | None = None, tag: str | None = None
) -> Call[values.Deleted]:
    """§5: ``before`` this seq, with this ``tag``, or tags that begin so if it ends in ``*``."""
    body: dict[str, Any] = {} if before is None else {"before_seq": before}
    if tag is not None:
        body["match"] = match_of(tag)
    return Call("POST", _at(name, "delete"), _deleted, body)


def match_of(tag: str) -> list[str]:
    """This tag, or tags that begin with what stands before a ``*``."""
    return ["tag", "Glob" if tag.endswith("*") else "Eq", tag]


def ms_of(when: datetime | float) -> int:
    """Return a time in ms since 1970."""
    return int(1000 * (when.timestamp() if isinstance(when, datetime) else when))


class Search:
    """The search for ``low``, the seq behind which all records are from a time on."""

    def __init__(self, name: str, state: values.TopicState, from_ms: int) -> None:
        self._name, self._from_ms = name, from_ms
        # All up to low are older, all behind high are not.
        self.low, self._high = state.earliest_seq - 1, state.head_seq

    @property
    def is_done(self) -> bool:
        """It is found."""
        return self.low >= self._high

    def call(self) -> Call[values.DiffPage]:
        """The record in the middle."""
        return diff(self._name, (self.low + self._high) // 2, limit=1)

    def take(self, page: values.DiffPage) -> None:
        """What is there."""
        if page.records and page.records[0].ts < self._from_ms:
            self.low = page.records[0].seq
        else:
            self._high = (self.low + self._high) // 2


class Reading:
    """A read of one topic, page by page: what to ask next, and which events an answer holds."""

    def __init__(
        self, name: str, after: int, limit: int | None, node: str | None, *, follow: bool
    ) -> None:
        self._name, self._left, self._node, self._follow = name, limit, node, follow
        self.seq, self._epoch = after, None
        self._is_caught_up = self.is_done = False

    def call(self) -> Call[values.DiffPage]:
        """The next page."""
        limit = PAGE if self._left is None else min(self._left, PAGE)
        wait_s = WAIT_S if self._follow and self._is_caught_up else 0.0
        options = {"limit": limit, "node": self._node, "epoch": self._epoch}
        return diff(self._name, self.seq, wait_s, max_batch_bytes=8 << 20, **options)

    def take(self, page: values.DiffPage) -> list[values.Event]:
        """What a page has to tell."""
        events: list[values.Event] = [] if page.tombstone is None else [page.tombstone]
        events += page.records
        was_caught_up = self._is_caught_up and not events
        self.seq, self._epoch = page.next_from_seq, page.epoch  # type: ignore[assignment]
        self._is_caught_up = page.caught_up
        if self._left is not None:
            self._left -= len(page.records)
        self.is_done = self._left == 0 or (page.caught_up and not self._follow)
        if page.caught_up and self._follow and not was_caught_up:
            events.append(values.CaughtUp(head_seq=page.head_seq, topic=self._name))
        return events


# Queues


def claim(
    name: str, node: str, most: int, lease_s: float | None, wait_s: float
) -> Call[list[values.JobRecord]]:
    """§10.2, and `wait_ms`."""
    body: dict[str, Any] = {"node": node, "max": most, "wait_ms": int(1000 * wait_s)}
    if lease_s is not None:
        body["lease_ms"] = int(1000 * lease_s)

    def parse(answer: bytes) -> list[values.JobRecord]:
        jobs = _claimed(answer).claimed
        for job in jobs:
            msgspec.structs.force_setattr(job, "topic", name)
        return jobs

    return Call("POST", _at(name, "claim"), parse, body, wait_s=wait_s)


def settle(
    name: str, what: str, node: str, jobs: Iterable[values.JobRecord], **fields: Any
) -> Call[values.Settled]:
    """§10.4 to §10.6: ``what`` is ack, nack or extend. Each job counts only while its lease is the
    one that it was claimed with.
    """
    held = [*jobs]
    body = {
        "node": node,
        "seqs": [job.seq for job in held],
        "lease_ids": [job.lease_id for job in held],
        **fields,
    }
    return Call("POST", _at(name, what), _settled, body)


def nack(
    name: str, node: str, jobs: Iterable[values.JobRecord], delay_s: float, error: str | None
) -> Call[values.Settled]:
    """§10.5."""
    fields = {"delay_ms": int(1000 * delay_s), "error": error}
    sent = {field: value for field, value in fields.items() if value is not None}
    return settle(name, "nack", node, jobs, **sent)


def redrive(
    name: str,
    *,
    to: str | None = None,
    tag: str | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> Call[values.Redriven]:
    """Dead letters back to their queue."""
    match = None if tag is None else match_of(tag)
    options = {"to": to, "match": match, "before_seq": before, "limit": limit}
    body = {field: value for field, value in options.items() if value is not None}
    # Sent again after a lost answer, one with a limit could move more.
    return Call("POST", _at(name, "redrive"), _redriven, body, is_repeatable=limit is None)


# Routers


def put_router(
    name: str, source: str, dest: str, options: Mapping[str, Any]
) -> Call[values.RouterInfo]:
    """§6. Raises `TypeError` for an option that is none."""
    body = {"source": source, "dest": dest, **_named(RouterPatch, options)}
    return Call("PUT", _router_at(name), _router, body)


def get_router(name: str) -> Call[values.RouterInfo]:
    """§6."""
    return Call("GET", _router_at(name), _router)


def drop_router(name: str) -> Call[bool]:
    """§6: whether it was there."""
    return Call("DELETE", _router_at(name), lambda answer: _dropped(answer).deleted)


def ready() -> Call[dict[str, Any]]:
    """§8.2. A server that is not ready is `Unavailable`, with the reasons in its detail."""
    return Call("GET", "/v0/ready", msgspec.json.decode)


def metrics() -> Call[dict[str, Any]]:
    """§8.3, by the names of the metrics: a number, a list of labels with values, or a histogram."""
    decode = _parser(dict[str, Any])

    def parse(answer: bytes) -> dict[str, Any]:
        if "topics_build_info" not in (found := decode(answer)):
            raise msgspec.ValidationError("no metrics")
        return found

    return Call("GET", "/v0/metrics", parse)
