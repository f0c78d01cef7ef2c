"""HTTP client: the requests made by sources, sinks and jobs, which `topics.client` sends.

This module adds pages whose records are cheap to decode, and one-line errors with advice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from topics.client import ConnectionLost, Topics, TopicsError, calls
from topics.client.calls import Call
from topics.client.settings import DEFAULT_URL as DEFAULT_URL
from topics.client.values import Receipt, Tombstone, TopicInfo, TopicPut, TopicState
from topics.spark.client.servers import without_user_info

T = TypeVar("T")

LIST_SIZE = calls.PAGE  # number of topics in a list page; no server returns more
EXCERPT_CHARS = 80  # maximum length of a value in a message
# The errors of OpenSSL if one side rejects the other's certificate, or the server has no TLS.
TLS_FAILURE = re.compile(r"\[SSL: \w*(CERTIFICATE|UNKNOWN_CA|WRONG_VERSION)\w*\]")
PAGE_BYTES = 8 << 20  # size of the records in a page; no server returns more (§11)
_AGAIN = "run the query or the job again"
ADVICE = {
    "unauthorized": (
        "set a key of the server in the option apiKeyFile or apiToken; TOPICS_API_KEY counts only"
        " if it is set before the Spark session starts"
    ),
    "forbidden": (
        "the key needs the scope read for reads, write for writes, admin to create a topic, and a"
        " prefix that covers the topic's name"
    ),
    "topic_not_found": f"check its name; if it was deleted in the meantime, {_AGAIN}",
    "topic_on_two_servers": (
        "subscribePattern reads both topics; to merge them, append the records of one to the other"
        " (topics-spark archive, then replay) and delete it"
    ),
    "topic_full": (
        'the topic is full and its discard is "reject"; raise its cap or delete records,'
        f" then {_AGAIN}"
    ),
    "batch_too_large": "lower the option batchRecords, or --batch-records of backfill",
    "payload_too_large": "lower the option batchBytes, or --batch-bytes of backfill",
    "record_too_large": (
        "one row is larger than the server's TOPICS_MAX_RECORD_BYTES, or its headers than"
        " TOPICS_MAX_META_BYTES; shorten the row or raise the limit"
    ),
    "throttled": f"the server was still busy after every retry; reduce its load, then {_AGAIN}",
    "not_ready": (
        "the server was still recovering after every retry; wait until /v0/ready returns 200,"
        f" then {_AGAIN}"
    ),
    "shutting_down": f"the server is stopping; start it, then {_AGAIN}",
    "unreachable": f"is the server running at this address? Start it, then {_AGAIN}",
    "tls_failed": (
        "set the option caFile or SSL_CERT_FILE to the certificate of the server's CA, and certFile"
        " if the server requires a certificate of the client; the host name of the address must be"
        " in the server's certificate; a server without TLS has an address with http://"
    ),
    "bad_answer": (
        "check that a topics server is running at this address, and the proxy in front of it if"
        " there is one"
    ),
}


class RequestError(Exception):
    """A failed request that must not be repeated immediately.

    ``status`` is the HTTP status, or 0 if there was no response. ``code`` is the API's
    ``error.code`` (§0.5), or ``unreachable``, ``tls_failed`` or ``bad_answer``. ``topic`` is empty
    for a request without a topic.
    """

    def __init__(self, topic: str, status: int, code: str, message: str) -> None:
        self.topic, self.status, self.code = topic, status, code
        self.message = " ".join(message.split())
        place = f'topic "{topic}": ' if topic else ""
        advice = f" ({ADVICE[code]})" if code in ADVICE else ""
        super().__init__(f"{place}{status or 'no answer'} {code}: {self.message}{advice}")


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record in a page (§3). ``data`` and ``meta`` contain the JSON text as it was written.
    ``meta`` is empty if the record has none, or if it was not requested. With ``gc=False``, the
    garbage collector does not scan the thousands of records of a page.
    """

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")  # ms since 1970
    data: msgspec.Raw
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: msgspec.Raw = msgspec.Raw(b"")


class Page(msgspec.Struct, frozen=True):
    """The response to a diff (§3)."""

    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    epoch: int
    tombstone: Tombstone | None


_page = msgspec.json.Decoder(Page).decode


class TopicsClient:
    """A client for one server. All requests, including appends, are retried, and raise
    `RequestError` if they fail. ``retries`` counts the repeated attempts.

    ``options`` are options of `topics.client.Topics`. Unlike there, the environment does not set
    the key, because only the driver reads the environment.
    """

    def __init__(self, url: str, *, key: str = "", **options: Any) -> None:
        self.retries = 0
        self._client = Topics(url, key=key, on_pause=self._count_retry, **options)
        self.close = self._client.close

    def __enter__(self) -> TopicsClient:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()

    @property
    def connections(self) -> int:
        """The number of connections that have been opened (`topics.client.sync.pool.Pool`)."""
        return self._client.pool.connections

    def state(self, topic: str) -> TopicState | None:
        """Return the topic's state (§1), or None if it does not exist. This is not a read."""
        try:
            return self._send(topic, calls.get_topic(topic))
        except RequestError as error:
            if error.code != "topic_not_found":
                raise
            return None

    def put_topic(self, topic: str, config: dict[str, Any]) -> TopicPut:
        """Create the topic, or change the given fields of its config (§1)."""
        return self._send(topic, calls.put_topic(topic, config))

    def append(self, topic: str, body: bytes, count: int, key: str) -> Receipt:
        """Append the ``count`` records of an encoded body, once for each ``key`` within the topic's
        idempotency window (§2).
        """
        receipt = self._send(topic, calls.append_bytes(topic, body, key))
        if receipt.count != count or receipt.last_seq - receipt.first_seq + 1 != count:
            message = f"{count} records sent with key {key}, but the response is {receipt}"
            raise RequestError(topic, 200, "bad_answer", message)
        return receipt

    def diff(self, topic: str, *, from_seq: int, limit: int, **fields: Any) -> Page:
        """Return records with a seq above ``from_seq``, at most ``limit`` records or the server's
        maximum. ``fields`` are other fields of the request (§3), such as ``epoch``, the expected
        incarnation. A field that is None is omitted.
        """
        fields |= {"limit": limit, "max_batch_bytes": PAGE_BYTES}
        return self._send(topic, calls.diff(topic, from_seq, **fields).read_by(_page))

    def listing(self, prefix: str) -> Iterator[TopicInfo]:
        """Yield the topics whose names start with ``prefix`` and that the key may see (§1), sorted
        by name. Each request returns up to 1,000 topics.
        """
        cursor = None
        while True:
            page = self._send(prefix, calls.list_topics(prefix, cursor))
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def check_access(self, topic: str) -> None:
        """Raise `RequestError` unless the key may append. The request is invalid, so nothing is
        appended, but the server checks the key's scope first.
        """
        try:
            self._send(topic, calls.append(topic, {"create": False, "records": []}))
        except RequestError as error:
            if error.code not in ("invalid_request", "topic_not_found"):
                raise

    def _send(self, topic: str, call: Call[T]) -> T:
        try:
            return self._client.call(call)
        except ConnectionLost as error:
            message = without_user_info(error.message)
            code = "tls_failed" if TLS_FAILURE.search(message) else "unreachable"
            raise RequestError(topic, 0, code, message) from None
        except TopicsError as error:
            code = "bad_answer" if error.code.startswith("http_") else error.code
            message = error.message + _too_long(call.body, error.detail)
            raise RequestError(topic, error.status, code, message) from error

    def _count_retry(self, failure: TopicsError, _pause_s: float) -> None:
        if TLS_FAILURE.search(failure.message):
            raise failure  # a retry would fail too
        self.retries += 1


def _too_long(body: Any, detail: dict[str, Any]) -> str:
    """Return a text that identifies the record whose tag or node is too long, or ``""``."""
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
