"""HTTP client: the requests of batch jobs. Create a topic, read its state, list names, append a
batch, read a page, ask whether the server is ready.

Every append has an idempotency key, so every request may be sent again: 429, 502, 503, 504 and
broken connections are retried, after ``Retry-After`` where the server gives one, else after a pause
that doubles, with jitter and a maximum. Any other failure is a ``RequestError`` at once.
``decisions/0035`` says why this is urllib3.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import urllib3
from urllib3.util import Retry, Timeout

from topics.spark.client.errors import RequestError

DEFAULT_URL = "http://127.0.0.1:4000"
RETRIED_STATUS = (429, 502, 503, 504)
LIST_SIZE = 1000  # names in a page of a list; no server gives more
EXCERPT_CHARS = 80  # of a value in a message
PAGE_BYTES = 8 << 20  # of records in a page; no server gives more (§11)


class _Patient(Retry):
    """A server that is not ready names the same short time again and again: the pause is that time
    or the one that grows with each try, whichever is longer.
    """

    def get_retry_after(self, response: urllib3.BaseHTTPResponse) -> float | None:
        named = super().get_retry_after(response)
        return named and max(named, self.get_backoff_time())


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where and how to write. Small and plain: it is sent to every executor."""

    url: str
    api_key: str | None = field(default=None, repr=False)  # a secret: never in a log or a plan
    retries: int = 12
    connect_retries: int | None = None  # fewer, for a server that cannot be reached at all
    backoff_s: float = 0.2
    backoff_max_s: float = 10.0
    retry_after_max_s: int = 60  # a server that asks for more is asked again after this
    connect_s: float = 5.0
    read_s: float = 120.0

    def policy(self) -> Retry:
        """urllib3's retry rule: no answer in the list is final before ``retries`` more tries."""
        return _Patient(
            total=self.retries,
            connect=self.connect_retries,
            redirect=0,
            status_forcelist=RETRIED_STATUS,
            allowed_methods=None,
            backoff_factor=self.backoff_s,
            backoff_max=self.backoff_max_s,
            backoff_jitter=self.backoff_s,
            respect_retry_after_header=True,
            retry_after_max=self.retry_after_max_s,
            raise_on_status=False,
            raise_on_redirect=False,
        )


def mistake_in(target: Target) -> str | None:
    """Why no server can have this address or this key, in a line for people; None when it can."""
    url, key = target.url, target.api_key or "key"
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        fits = fits and not parts.query and not parts.fragment
        fits = fits and url.isascii() and url.isprintable() and " " not in url
    except ValueError:  # a port that is no number, brackets without an address
        fits = False
    if not fits:
        return f"the URL {url!r} is no address of a server; it looks like {DEFAULT_URL}"
    if not (key.isascii() and key.isprintable()) or " " in key:
        return "TOPICS_API_KEY holds a character that no key has: keys are visible ASCII"
    return None


class Receipt(msgspec.Struct, frozen=True):
    """The server's answer to an append (§2); unknown fields are ignored."""

    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    deduped: bool


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record of a page (§3). ``data`` and ``meta`` are their JSON as it was written; a record
    without meta, or read without it, has an empty one.
    """

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")  # ms since 1970
    data: msgspec.Raw
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: msgspec.Raw = msgspec.Raw(b"")


class Tombstone(msgspec.Struct, frozen=True):
    """Seqs that are gone, both ends inclusive (§3.2)."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int


class Page(msgspec.Struct, frozen=True):
    """The answer to a diff (§3)."""

    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    epoch: int
    tombstone: Tombstone | None


class Listed(msgspec.Struct, frozen=True):
    """A topic in a list (§1.3). A server of an earlier version gives no epoch and no time."""

    topic: str
    head_seq: int
    earliest_seq: int
    epoch: int | None = None
    last_write_ts: int | None = None


class _List(msgspec.Struct):
    topics: list[Listed]
    next_cursor: str | None = None


class _Detail(msgspec.Struct):
    field: str | None = None
    max: int | None = None


class _Refusal(msgspec.Struct):
    code: str
    message: str = ""
    detail: _Detail | None = None


class _ErrorBody(msgspec.Struct):
    error: _Refusal


_receipts = msgspec.json.Decoder(Receipt)
_pages = msgspec.json.Decoder(Page)
_lists = msgspec.json.Decoder(_List)
_errors = msgspec.json.Decoder(_ErrorBody)


class TopicsClient:
    """One keep-alive connection to one server. Not for use by several threads; not picklable, send
    the ``Target``.

    ``requests`` counts the answered requests, ``retries`` the tries that had to be repeated,
    ``connections`` how often it was connected: each start of a server needs another connection.
    """

    def __init__(self, target: Target) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "topics-client"}
        if target.api_key:
            headers["Authorization"] = f"Bearer {target.api_key}"
        timeout = Timeout(connect=target.connect_s, read=target.read_s)
        self._pool = urllib3.PoolManager(
            num_pools=1, maxsize=1, headers=headers, retries=target.policy(), timeout=timeout
        )
        self._headers = headers
        self._url = target.url.rstrip("/")
        self.requests = 0
        self.retries = 0
        self.connections = 0
        pool = self._pool.connection_from_url(self._url)
        pool.ConnectionCls = self._counting(pool.ConnectionCls)

    def __enter__(self) -> TopicsClient:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()

    def _counting(self, kind: Any) -> Any:
        """The class of connections, which counts how often one of them is opened."""

        def connect(connection: Any) -> None:
            self.connections += 1
            kind.connect(connection)

        return type(kind.__name__, (kind,), {"connect": connect})

    def close(self) -> None:
        """Close the connection."""
        # Clearing runs a finalizer of the pool's, in which a Ctrl-C would be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            self._pool.clear()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def state(self, topic: str) -> dict[str, Any] | None:
        """The topic's state (§1), or None when there is no such topic. Does not count as a read."""
        status, body = self._send("GET", topic, "?touch=false")
        if status == 404 and _error_of(body).code == "topic_not_found":
            return None
        state = _json_object(topic, _success(topic, status, body))
        if type(state.get("head_seq")) is not int or not isinstance(state.get("config"), dict):
            raise RequestError(topic, status, "bad_answer", "it has no head_seq or no config")
        return state

    def put_topic(self, topic: str, config: dict[str, Any]) -> dict[str, Any]:
        """Create the topic, or change the named fields of its config (§1)."""
        status, body = self._send("PUT", topic, "", msgspec.json.encode(config))
        return _json_object(topic, _success(topic, status, body))

    def append(self, topic: str, body: bytes, count: int, key: str) -> Receipt:
        """Append the ``count`` records of a finished JSON body, once for each ``key`` within the
        topic's window (§2).
        """
        status, answer = self._send(
            "POST", topic, "?return_seqs=false", body, {"Idempotency-Key": key}
        )
        if status == 400:
            refusal = _error_of(answer)
            message = refusal.message + _too_long(body, refusal.detail)
            raise RequestError(topic, status, refusal.code, message)
        try:
            receipt = _receipts.decode(_success(topic, status, answer))
        except msgspec.DecodeError as error:
            raise RequestError(topic, status, "bad_answer", str(error)) from error
        if receipt.count != count or receipt.last_seq - receipt.first_seq + 1 != count:
            raise RequestError(
                topic,
                status,
                "bad_answer",
                f"{count} records sent under key {key}, answered with {receipt}",
            )
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
        """Records with a seq above ``from_seq`` (§3), at most ``limit`` or what the server allows.

        ``epoch`` is the incarnation that the caller means. Records whose node is ``node`` are left
        out.
        """
        asked: dict[str, Any] = {
            "from_seq": from_seq,
            "limit": limit,
            "include_tags": tags,
            "include_meta": meta,
            "max_batch_bytes": PAGE_BYTES,
        }
        if epoch is not None:
            asked["epoch"] = epoch
        if node is not None:
            asked["node"] = node
        status, answer = self._send("POST", topic, "/diff", msgspec.json.encode(asked))
        try:
            return _pages.decode(_success(topic, status, answer))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RequestError(topic, status, "bad_answer", str(error)) from error

    def names(self, prefix: str = "") -> Iterator[str]:
        """Names of the topics that begin with ``prefix`` and that this key may see, sorted (§1)."""
        return (found.topic for found in self.listing(prefix))

    def listing(self, prefix: str = "") -> Iterator[Listed]:
        """Those topics with their heads; 1,000 for each request."""
        cursor = ""
        while True:
            query = f"?prefix={quote(prefix, safe=':')}&page_size={LIST_SIZE}"
            query += f"&cursor={cursor}" if cursor else ""
            status, answer = self._send("GET", None, query)
            try:
                page = _lists.decode(_success(prefix, status, answer))
            except msgspec.DecodeError as error:
                raise RequestError(prefix, status, "bad_answer", str(error)) from error
            yield from page.topics
            if page.next_cursor is None:
                return
            cursor = page.next_cursor

    def check_access(self, topic: str, *, configure: bool) -> None:
        """Raise ``RequestError`` unless this key may append, and make or configure if
        ``configure``.

        Nothing is written: both requests are wrong in themselves, and a caller without the right
        to ask is told that first.
        """
        probes = [("POST", b'{"create":false,"records":[]}')]
        if configure:
            probes.append(("PUT", b'{"ttl_ms":-1}'))
        for method, body in probes:
            status, answer = self._send(method, topic, "", body)
            if (code := _error_of(answer).code) not in ("invalid_request", "topic_not_found"):
                raise RequestError(topic, status, code, _error_of(answer).message)

    def ready(self) -> bool:
        """Whether the server takes requests now. One try, no retry: the caller has its own
        patience.
        """
        try:
            response = self._pool.request("GET", f"{self._url}/v0/ready", retries=False)
        except urllib3.exceptions.HTTPError:
            return False
        return response.status == 200

    def _send(
        self,
        method: str,
        topic: str | None,
        rest: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        name = "" if topic is None else "/" + quote(topic, safe=":")
        url = f"{self._url}/v0/topics{name}{rest}"
        try:
            response = self._pool.request(
                method, url, body=body, headers={**self._headers, **(headers or {})}
            )
        except urllib3.exceptions.HTTPError as error:
            reason = f"{self._url}: {_reason(error)}"
            raise RequestError(topic or "", 0, "unreachable", reason) from error
        self.requests += 1
        self.retries += len(response.retries.history) if response.retries else 0
        return response.status, response.data


def _reason(error: urllib3.exceptions.HTTPError) -> str:
    return str(
        error.reason
        if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason
        else error
    )


def _success(topic: str, status: int, body: bytes) -> bytes:
    if status in (200, 201):
        return body
    error = _error_of(body)
    raise RequestError(topic, status, error.code, error.message)


def _error_of(body: bytes) -> _Refusal:
    try:
        return _errors.decode(body).error
    except msgspec.DecodeError:
        return _Refusal("bad_answer", body[:200].decode("utf-8", "replace"))


def _too_long(body: bytes, detail: _Detail | None) -> str:
    """Which record of an append has a tag or node that is too long; empty for another mistake."""
    if detail is None or detail.field not in ("tag", "node") or detail.max is None:
        return ""
    records = msgspec.json.decode(body)["records"]
    for number, record in enumerate(records, 1):
        value = record.get(detail.field) or ""
        if len(value.encode()) > detail.max:
            shown = value if len(value) <= EXCERPT_CHARS else value[:EXCERPT_CHARS] + "..."
            return f": record {number:,} of the {len(records):,} of its request has {shown!r}"
    return ""


def _json_object(topic: str, body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise RequestError(topic, 200, "bad_answer", str(error)) from error
