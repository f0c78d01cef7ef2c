"""Calls: the API as values. Each function returns the request of an operation and the way to parse
its response. `topics.client.aio.pool` sends it.
"""

from __future__ import annotations

import difflib
import logging
import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from time import monotonic
from typing import Any, Final, Generic, Literal, NamedTuple, TypedDict, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from topics.client import values
from topics.client.errors import ConnectionLost, TopicsError, error_of

LOG = logging.getLogger("topics.client")

T = TypeVar("T")
P = TypeVar("P")

PAGE: Final = 1000  # the server's maximum
WAIT_S: Final = 25.0  # the duration of a long poll; the server's maximum is 30
SHUTDOWN_S: Final = 0.8  # the timeout of a request after Ctrl-C, a cancellation or an exception
ATTEMPT_MIN_S: Final = 0.2  # the minimum timeout of a request, even after its deadline
RANDOM: Final = random.SystemRandom()  # independent of `random`, which a program may seed


class Call(NamedTuple, Generic[T]):
    """A request. ``is_repeatable``: sending it twice has the effect of sending it once. ``wait_s``:
    the time for which the server may delay the response on purpose. ``key``: the idempotency key,
    for a body that does not contain one.
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
        """The header fields that only this request has."""
        headers = {} if self.body is None else {"Content-Type": "application/json"}
        return headers if self.key is None else {**headers, "Idempotency-Key": self.key}

    @property
    def content(self) -> bytes | None:
        """The body as JSON. Raises `ValueError` for NaN and the infinities."""
        return None if self.body is None else values.encoded(self.body)

    def result(self, status: int, headers: Mapping[str, str], body: bytes) -> T:
        """Parse a response. Raises `TopicsError` for an error response or an invalid one."""
        if status not in (200, 201):
            raise error_of(status, headers, body)
        try:
            return self.parse(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TopicsError(
                f"not a response from a topics server: {error}", code="bad_answer", status=status
            ) from None

    def read_by(self, parse: Callable[[bytes], P]) -> Call[P]:
        """Return the same request with a different way to parse its response."""
        return Call(self.method, self.path, parse, *self[3:])


@dataclass(frozen=True, slots=True)
class Retry:
    """The retry policy. Retries end ``deadline`` s after the first failure. The pause between
    attempts is the server's Retry-After. If there is none, the pause doubles from ``first`` to
    ``most`` s. A random share of up to half is subtracted from each pause.

    ``tries`` bounds the number of attempts after the first, and ``connects`` bounds the number of
    attempts that could not connect. With ``tries``, the pause doubles even if the server requests a
    shorter one. Otherwise, a short Retry-After would use up all attempts within seconds.
    """

    deadline: float = 60.0
    first: float = 0.1
    most: float = 5.0
    tries: float = inf
    connects: float = inf


# The default of streams and workers, which wait until the server has restarted.
FOREVER: Final = Retry(deadline=inf)


class Attempts:
    """The attempts of one call, stream or worker. No attempt begins after ``until`` (monotonic
    clock).
    """

    def __init__(self, retry: Retry, until: float = inf) -> None:
        self._retry, self._pause, self._last = retry, retry.first, until
        self._until = 0.0
        self._tries = self._connects = 0

    def pause_after(self, failure: TopicsError, *, is_repeatable: bool = True) -> float:
        """Return the pause in s before the next attempt. Raise ``failure`` if there must be no
        further attempt.
        """
        lost = isinstance(failure, ConnectionLost)
        may_be_done = lost and failure.was_sent and not is_repeatable  # type: ignore[attr-defined]
        if may_be_done or not (lost or failure.is_temporary):
            raise failure
        now, retry, named = monotonic(), self._retry, failure.retry_after_s
        self._until = self._until or now + retry.deadline
        self._tries += 1
        self._connects += lost and not failure.was_sent  # type: ignore[attr-defined]
        pause = named or 0.0
        if named is None or retry.tries < inf:
            pause = max(pause, self._pause * RANDOM.uniform(0.5, 1.0))
            self._pause = min(2 * self._pause, retry.most)
        is_over = self._tries > retry.tries or self._connects > retry.connects
        if is_over or now + pause > min(self._until, self._last):
            raise failure
        return pause

    def succeeded(self) -> None:
        """Treat the next failure as the first one."""
        self._pause, self._until = self._retry.first, 0.0
        self._tries = self._connects = 0


def _parser(kind: type[T]) -> Callable[[bytes], T]:
    return msgspec.json.Decoder(kind).decode


def _at(name: str, *rest: str, **query: object) -> str:
    path = "/".join(("/v0/topics", quote(name, safe=":"), *rest))
    return path + ("?" + urlencode(query) if query else "")


def _router_at(name: str) -> str:
    return "/v0/routers/" + quote(name, safe=":")


def _check_names(kind: type, options: Mapping[str, Any]) -> None:
    """Raise `TypeError` with the nearest name for an option that ``kind``, a `TypedDict`, lacks."""
    names = list(kind.__annotations__)
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1, 0.0)
            raise TypeError(f"there is no option {name!r}; did you mean {near[0]!r}?")


class TopicConfig(TypedDict, total=False):
    """The fields of a topic's config (§0.10)."""

    type: Literal["log", "queue"]
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Literal["old", "reject"]
    durable: bool
    durability: Literal["ephemeral", "memory", "disk", "fsync"]
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool


class RouterOptions(TypedDict, total=False):
    """The fields of a router other than its source and dest (§6)."""

    create_dest: bool
    preserve_node: bool
    preserve_tag: bool
    filter: list[Any] | None
    allow_cycle: bool
    guarantee: Literal["at_least_once", "exactly_once"]


class RecordFields(TypedDict, total=False):
    """The fields of a record other than its payload (§2). ``delay`` in s and ``deliver_at``, a
    datetime or s since 1970, delay a job; a record has at most one of them.
    """

    tag: str | None
    meta: Mapping[str, Any] | None
    node: str | None
    delay: float | None
    deliver_at: datetime | float | None


class AppendFields(RecordFields, total=False):
    """The options of an append (§2): the fields of its records, and ``create``, ``config`` and
    ``disable_backpressure`` of the request.
    """

    create: bool | None
    config: TopicConfig | None
    disable_backpressure: bool


def record_of(data: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of an append. Raise `TypeError` for an unknown field."""
    _check_names(RecordFields, fields)
    record = {"data": data, **{name: value for name, value in fields.items() if value is not None}}
    if "delay" in record:
        record["delay_ms"] = round(1000 * record.pop("delay"))
    if "deliver_at" in record:
        record["deliver_at"] = ms_of(record["deliver_at"])
    return record


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
    """Create or configure a topic (§1.1). With ``dry_run``, the server only reports what it would
    do. Raise `TypeError` for an unknown field.
    """
    _check_names(TopicConfig, config)
    path = _at(name, dry_run="true") if dry_run else _at(name)
    return Call("PUT", path, _topic_put, dict(config))


def get_topic(name: str) -> Call[values.TopicState]:
    """Return the state of a topic (§1.2)."""
    return Call("GET", _at(name, touch="false"), _state)


def drop_topic(name: str, *, if_empty: bool = False) -> Call[bool]:
    """Delete a topic (§1.4). The result is true if the topic existed."""
    path = _at(name, if_empty="true") if if_empty else _at(name)
    return Call("DELETE", path, lambda answer: _dropped(answer).deleted)


class Page(msgspec.Struct, Generic[P]):
    """A page of a list. The last one has no ``next_cursor``."""

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
    """List topics (§1.3)."""
    return _list("/v0/topics", _topics, {"prefix": prefix, "cursor": cursor})


def list_routers(cursor: str | None, **query: str) -> Call[Page[values.RouterInfo]]:
    """List routers (§6.3). ``query`` may contain ``prefix``, ``source`` and ``dest``."""
    return _list("/v0/routers", _routers, {**query, "cursor": cursor})


def list_leases(name: str, cursor: str | None, node: str | None) -> Call[Page[values.Lease]]:
    """List the leases of a queue (§10.7)."""
    return _list(_at(name, "leases"), _leases, {"cursor": cursor, "node": node})


# Records


AUTO: Final = "auto"  # a new key for each append


def append(
    name: str, body: Mapping[str, Any], key: str | None = AUTO, node: str | None = None
) -> Call[values.Receipt]:
    """Append records (§2). ``body`` has no key. With a key the records are appended once, even if
    the request is sent several times. Raise `ValueError` for an empty key.
    """
    if key == "":
        raise ValueError("a key has at least one character; None means no key")
    fields = {"idempotency_key": uuid.uuid4().hex if key == AUTO else key, "node": node}
    sent = {**body, **{field: value for field, value in fields.items() if value}}
    return Call("POST", _at(name, return_seqs="false"), _receipt, sent, is_repeatable=bool(key))


def append_bytes(name: str, body: bytes, key: str) -> Call[values.Receipt]:
    """Append an encoded body (§2), once for each ``key``, which is sent as a header field."""
    path = _at(name, return_seqs="false")
    return Call("POST", path, _receipt, msgspec.Raw(body), key=key)


def append_body(
    data: Sequence[Any], records: Iterable[Mapping[str, Any]] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the body of an append: the payloads ``data``, each with the same fields, and then
    complete ``records``. Raise `TypeError` for an unknown option, and for fields without a payload.
    """
    _check_names(AppendFields, options)
    of_request = {"create", "config", "disable_backpressure"}
    body = {name: options[name] for name in of_request & options.keys()}
    fields = {name: value for name, value in options.items() if name not in of_request}
    if fields and not data:
        raise TypeError(f"{', '.join(fields)}: valid only with payloads; set them in the records")
    body["records"] = [record_of(each, fields) for each in data] + [*(records or ())]
    return body


def diff(name: str, from_seq: int, wait_s: float = 0.0, **options: Any) -> Call[values.DiffPage]:
    """Read a page of records (§3.1). The records of the result have the topic's name."""
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
    """Delete the records ``before`` a seq, the records with a ``tag``, or the records that match
    both (§5). A ``*`` at the end of the tag matches any characters.
    """
    body: dict[str, Any] = {} if before is None else {"before_seq": before}
    if tag is not None:
        body["match"] = match_of(tag)
    return Call("POST", _at(name, "delete"), _deleted, body)


def match_of(tag: str) -> list[str]:
    """Return the match expression (§5) of a tag. A ``*`` at its end matches any characters."""
    return ["tag", "Glob" if tag.endswith("*") else "Eq", tag]


def ms_of(when: datetime | float) -> int:
    """Return a time in ms since 1970."""
    return int(1000 * (when.timestamp() if isinstance(when, datetime) else when))


class Search:
    """A binary search for ``low``, the seq after which all records have the time ``from_ms`` or a
    later one.
    """

    def __init__(self, name: str, state: values.TopicState, from_ms: int) -> None:
        self._name, self._from_ms = name, from_ms
        # All records up to `low` are older than the time, and all records after `_high` are not.
        self.low, self._high = state.earliest_seq - 1, state.head_seq

    @property
    def is_done(self) -> bool:
        """Whether the seq has been found."""
        return self.low >= self._high

    def call(self) -> Call[values.DiffPage]:
        """Read the record in the middle."""
        return diff(self._name, (self.low + self._high) // 2, limit=1)

    def take(self, page: values.DiffPage) -> None:
        """Continue with the half that this page selects."""
        if page.records and page.records[0].ts < self._from_ms:
            self.low = page.records[0].seq
        else:
            self._high = (self.low + self._high) // 2


class Reading:
    """A read of one topic by pages. Raises `ValueError` for a negative limit."""

    def __init__(
        self, name: str, after: int, limit: int | None, node: str | None, *, follow: bool
    ) -> None:
        if limit is not None and limit < 0:
            raise ValueError(f"the limit {limit} is negative")
        self._name, self._left, self._node, self._follow = name, limit, node, follow
        self.seq, self._epoch = after, None
        self._is_caught_up, self.is_done = False, limit == 0

    def call(self) -> Call[values.DiffPage]:
        """Return the request for the next page."""
        limit = PAGE if self._left is None else min(self._left, PAGE)
        wait_s = WAIT_S if self._follow and self._is_caught_up else 0.0
        options = {"limit": limit, "node": self._node, "epoch": self._epoch}
        return diff(self._name, self.seq, wait_s, max_batch_bytes=8 << 20, **options)

    def take(self, page: values.DiffPage) -> list[values.Event]:
        """Return the events of a page."""
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
    """Lease up to ``most`` jobs to ``node`` for ``lease_s`` s (§10.2). If no job is ready, the
    server waits for one for up to ``wait_s`` s.
    """
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
    """Ack, nack or extend jobs, as ``what`` specifies (§10.4 to §10.6). The server skips jobs that
    have lost the lease with which they were claimed.
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
    """Release jobs, which can be claimed again after ``delay_s`` s (§10.5)."""
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
    """Move dead letters back to their queues, or to the topic ``to`` (§10.6)."""
    match = None if tag is None else match_of(tag)
    options = {"to": to, "match": match, "before_seq": before, "limit": limit}
    body = {field: value for field, value in options.items() if value is not None}
    # If a redrive with a limit were sent again after a lost response, it could move more jobs.
    return Call("POST", _at(name, "redrive"), _redriven, body, is_repeatable=limit is None)


# Routers


def put_router(
    name: str, source: str, dest: str, options: Mapping[str, Any]
) -> Call[values.RouterInfo]:
    """Create or configure a router (§6.1). Raise `TypeError` for an unknown option."""
    _check_names(RouterOptions, options)
    body = {"source": source, "dest": dest, **options}
    return Call("PUT", _router_at(name), _router, body)


def get_router(name: str) -> Call[values.RouterInfo]:
    """Return the state of a router (§6.2)."""
    return Call("GET", _router_at(name), _router)


def drop_router(name: str) -> Call[bool]:
    """Delete a router (§6.4). The result is true if the router existed."""
    return Call("DELETE", _router_at(name), lambda answer: _dropped(answer).deleted)


def ready() -> Call[dict[str, Any]]:
    """Check the readiness of the server (§8.2). The call raises `Unavailable`, with the reasons in
    its detail, if the server is not ready.
    """
    return Call("GET", "/v0/ready", msgspec.json.decode)


def metrics() -> Call[dict[str, Any]]:
    """Return the metrics (§8.3): each is a number, a list of labels with values, or a histogram."""
    decode = _parser(dict[str, Any])

    def parse(answer: bytes) -> dict[str, Any]:
        if "topics_build_info" not in (found := decode(answer)):
            raise msgspec.ValidationError("no metrics")
        return found

    return Call("GET", "/v0/metrics", parse)
