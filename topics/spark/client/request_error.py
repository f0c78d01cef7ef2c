"""Errors of the batch writer: one exception, whose text is one line that says what to do."""

from __future__ import annotations

_AGAIN = "run the job again, it goes on where it stopped"
ADVICE = {
    "unauthorized": (
        "give a key of the server by the option apiKeyFile or apiToken; TOPICS_API_KEY counts only"
        " if it is set before the Spark session starts"
    ),
    "forbidden": (
        "the key needs read and write, admin to create the topic, and a prefix that covers its name"
    ),
    "topic_not_found": "check its name; if it was deleted while the job ran, run the job again",
    "topic_on_two_servers": (
        "a pattern reads both; to have one again, append the records of one to the other"
        " (topics-spark archive, then replay) and delete it"
    ),
    "topic_full": (
        'the topic is full and its discard is "reject"; raise its cap or delete records, then run'
        " the job again"
    ),
    "batch_too_large": "lower --batch-records",
    "payload_too_large": "lower --batch-bytes",
    "record_too_large": (
        "one row is larger than the server's TOPICS_MAX_RECORD_BYTES, or its headers than"
        " TOPICS_MAX_META_BYTES; leave something out or raise the limit"
    ),
    "throttled": f"the server was still busy after every retry; {_AGAIN}",
    "not_ready": (
        "the server was still recovering after every retry; run the job again when /v0/ready"
        " answers 200"
    ),
    "shutting_down": "the server is stopping; run the job again when it is back",
    "unreachable": f"is the server running at this address? Then {_AGAIN}",
    "bad_answer": "is this address a topics server?",
}


class RequestError(Exception):
    """A request that will not succeed by being sent again now.

    ``status`` is the HTTP status, 0 when no answer came; ``code`` is the contract's ``error.code``
    (§0.5), or ``unreachable`` or ``bad_answer``. The text names topic, status, code and what to do,
    in one line. ``topic`` is empty for what is asked of a whole server.
    """

    def __init__(self, topic: str, status: int, code: str, message: str) -> None:
        self.topic, self.status, self.code = topic, status, code
        self.message = " ".join(message.split())
        place = f'topic "{topic}": ' if topic else ""
        advice = f" ({ADVICE[code]})" if code in ADVICE else ""
        super().__init__(f"{place}{status or 'no answer'} {code}: {self.message}{advice}")
