"""The error of a request. Its text is one line with the topic, the status, the code and advice."""

from __future__ import annotations

_AGAIN = "run the query or the job again"
ADVICE = {
    "unauthorized": (
        "give a key of the server by the option apiKeyFile or apiToken; TOPICS_API_KEY counts only"
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

    ``status`` is the HTTP status, or 0 without a response. ``code`` is the API's ``error.code``
    (§0.5), or ``unreachable``, ``tls_failed`` or ``bad_answer``. ``topic`` is empty for a request
    that names no topic.
    """

    def __init__(self, topic: str, status: int, code: str, message: str) -> None:
        self.topic, self.status, self.code = topic, status, code
        self.message = " ".join(message.split())
        place = f'topic "{topic}": ' if topic else ""
        advice = f" ({ADVICE[code]})" if code in ADVICE else ""
        super().__init__(f"{place}{status or 'no answer'} {code}: {self.message}{advice}")
