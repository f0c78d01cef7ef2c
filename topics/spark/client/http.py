"""The requests of sources, sinks and jobs. They are sent by `topics.client`.

This module adds retries that are limited by number (`Target`), records whose JSON is not decoded,
and errors of one line with advice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, TypeVar

import msgspec

from topics.client import ConnectionLost, Retry, Topics, TopicsError, calls
from topics.client.calls import Call
from topics.client.settings import DEFAULT_URL as DEFAULT_URL
from topics.client.values import Receipt as Receipt
from topics.spark.client.request_error import RequestError
from topics.spark.client.servers import without_user_info

T = TypeVar("T")

LIST_SIZE = calls.PAGE  # topics in a page of a list; no server gives more
EXCERPT_CHARS = 80  # of a value in a message
# What OpenSSL reports if one side rejects the other's certificate, or the server has no TLS.
TLS_FAILURE = re.compile(r"\[SSL: \w*(CERTIFICATE|UNKNOWN_CA|WRONG_VERSION)\w*\]")
PAGE_BYTES = 8 << 20  # of records in a page; no server gives more (§11)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server and how to send requests to it. It is sent to every executor. ``retries`` limits the
    attempts after the first, ``connect_retries`` the attempts after failed connections.
    """

    url: str = field(repr=False)  # its user info is a secret: never in a log or a plan
    api_key: str | None = field(default=None, repr=False)  # a secret, too
    retries: int = 12
    connect_retries: int | None = None  # as many as ``retries``
    backoff_s: float = 0.2
    backoff_max_s: float = 14.0  # 10 s on average
    retry_after_max_s: int = 60  # on average; a request fails if the server requires more
    connect_s: float = 5.0
    read_s: float = 120.0

    def retry(self) -> Retry:
        """Return the retries as `topics.client` defines them."""
        connects = self.retries if self.connect_retries is None else self.connect_retries
        deadline = self.retries * self.retry_after_max_s
        return Retry(deadline, self.backoff_s, self.backoff_max_s, self.retries, connects)


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of a page (§3). ``data`` and ``meta`` contain the JSON as it was written. ``meta``
    is empty if the record has none, or if it was not requested.
    """

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")  # ms since 1970
    data: msgspec.Raw
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: msgspec.Raw = msgspec.Raw(b"")


class Tombstone(msgspec.Struct, frozen=True):
    """Seqs of lost records, both ends inclusive (§3.2)."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int


class Page(msgspec.Struct, frozen=True):
    """The response to a diff (§3)."""

    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    epoch: int
    tombstone: Tombstone | None


class Listed(msgspec.Struct, frozen=True):
    """A topic in a list (§1.3)."""

    topic: str
    head_seq: int
    earliest_seq: int
    epoch: int
    last_write_ts: int | None = None


class _List(msgspec.Struct):
    topics: list[Listed]
    next_cursor: str | None = None


class _State(msgspec.Struct):
    """The required fields of a topic's state."""

    head_seq: int
    earliest_seq: int
    epoch: int
    config: dict[str, Any]


_page = msgspec.json.Decoder(Page).decode
_list = msgspec.json.Decoder(_List).decode
_checked_state = msgspec.json.Decoder(_State).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode


def _state(body: bytes) -> dict[str, Any]:
    _checked_state(body)
    return _object(body)


class TopicsClient:
    """A client of one server. It is not picklable, but its `Target` is. All requests, including
    appends, are retried, and raise `RequestError` if they fail.

    ``requests`` counts the requests with a response, ``retries`` the repeated attempts.
    """

    def __init__(self, target: Target, ssl_context: SSLContext | None = None) -> None:
        self.requests = self.retries = 0
        self._client = Topics(
            target.url,
            key=target.api_key or "",
            timeout=target.read_s,
            connect_timeout=target.connect_s,
            retry=target.retry(),
            on_pause=self._count_retry,
            ssl_context=ssl_context,
        )
        self.close = self._client.close

    def __enter__(self) -> TopicsClient:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()

    @property
    def connections(self) -> int:
        """The number of connections that were opened (`topics.client.sync.pool.Pool`)."""
        return self._client.pool.connections

    def state(self, topic: str) -> dict[str, Any] | None:
        """Return the topic's state (§1), or None if it does not exist. Not counted as a read."""
        try:
            return self._send(topic, calls.get_topic(topic).read_by(_state))
        except RequestError as error:
            if error.code != "topic_not_found":
                raise
            return None

    def put_topic(self, topic: str, config: dict[str, Any]) -> dict[str, Any]:
        """Create the topic, or change the given fields of its config (§1)."""
        return self._send(topic, calls.put_topic(topic, config).read_by(_object))

    def append(self, topic: str, body: bytes, count: int, key: str) -> Receipt:
        """Append the ``count`` records of an encoded body, once for each ``key`` within the topic's
        idempotency window (§2).
        """
        receipt = self._send(topic, calls.append_bytes(topic, body, key))
        if receipt.count != count or receipt.last_seq - receipt.first_seq + 1 != count:
            message = f"{count} records sent with key {key}, but the response is {receipt}"
            raise RequestError(topic, 200, "bad_answer", message)
        return receipt

    def diff(
        self,
        topic: str,
        *,
        from_seq: int,
        limit: int,
        epoch: int | None = None,
        tags: bool = True,
        meta: bool = True,
        node: str | None = None,
    ) -> Page:
        """Return records with a seq above ``from_seq`` (§3), at most ``limit`` or as many as the
        server allows. ``epoch`` is the expected incarnation. Records of the node ``node`` are left
        out.
        """
        fields: dict[str, Any] = {"limit": limit, "epoch": epoch, "node": node}
        fields |= {"include_tags": tags, "include_meta": meta, "max_batch_bytes": PAGE_BYTES}
        return self._send(topic, calls.diff(topic, from_seq, **fields).read_by(_page))

    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield the sorted names that start with ``prefix`` and that the key may see (§1)."""
        return (each.topic for each in self.listing(prefix))

    def listing(self, prefix: str = "") -> Iterator[Listed]:
        """Yield these topics with their heads. A request returns 1,000 of them."""
        cursor = None
        while True:
            page = self._send(prefix, calls.list_topics(prefix, cursor).read_by(_list))
            yield from page.topics
            cursor = page.next_cursor
            if cursor is None:
                return

    def check_access(self, topic: str) -> None:
        """Raise `RequestError` unless the key may append. The request is invalid, so nothing is
        appended; the server checks the scope of the key first.
        """
        try:
            self._send(topic, calls.append(topic, {"create": False, "records": []}))
        except RequestError as error:
            if error.code not in ("invalid_request", "topic_not_found"):
                raise

    def _send(self, topic: str, call: Call[T]) -> T:
        try:
            found = self._client.call(call)
        except ConnectionLost as error:
            message = without_user_info(error.message)
            code = "tls_failed" if TLS_FAILURE.search(message) else "unreachable"
            raise RequestError(topic, 0, code, message) from None
        except TopicsError as error:
            self.requests += 1
            code = "bad_answer" if error.code.startswith("http_") else error.code
            message = error.message + _too_long(call.body, error.detail)
            raise RequestError(topic, error.status, code, message) from error
        self.requests += 1
        return found

    def _count_retry(self, failure: TopicsError, _pause_s: float) -> None:
        if TLS_FAILURE.search(failure.message):
            raise failure  # a retry would fail too
        self.retries += 1


def _too_long(body: Any, detail: dict[str, Any]) -> str:
    """Return which record of an append has a tag or node that is too long, or an empty text."""
    name, most = detail.get("field"), detail.get("max")
    if name not in ("tag", "node") or most is None or not isinstance(body, msgspec.Raw):
        return ""
    records = msgspec.json.decode(body)["records"]
    for number, record in enumerate(records, 1):
        value = record.get(name) or ""
        if len(value.encode()) > most:
            shown = value if len(value) <= EXCERPT_CHARS else value[:EXCERPT_CHARS] + "..."
            return f": record {number:,} of the {len(records):,} of its request has {shown!r}"
    return ""
