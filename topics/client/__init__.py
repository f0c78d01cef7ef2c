"""The client of a topics server.

    sync.py         Topics, Topic, Queue, Watch, Cursor
    producer.py     many single appends as few requests
    worker.py       jobs of a queue, with their leases kept
    calls.py        the API as values: requests, how answers are read, when to try again
    watching.py     event streams, without I/O
    http.py         requests by httpcore2, streams by httpx2
    values.py       records, tombstones, states
    errors.py       TopicsError, and a class for each thing that a caller can do about it
    settings.py     which server and which key

It imports no module of the server but types of `topics.formats`, and no process of a server imports
it.
"""

from topics.client.calls import Retry
from topics.client.errors import (
    Conflict,
    ConnectionLost,
    Invalid,
    NotFound,
    Refused,
    Throttled,
    TopicsError,
    Unavailable,
)
from topics.client.producer import Producer
from topics.client.sync import Cursor, Queue, Topic, Topics, Watch
from topics.client.values import (
    CaughtUp,
    Deleted,
    Event,
    Receipt,
    Record,
    RouterInfo,
    Tombstone,
    TopicDeleted,
    TopicInfo,
    TopicState,
)
from topics.client.watching import TAIL
from topics.client.worker import Job, Worker

__all__ = [
    "TAIL",
    "CaughtUp",
    "Conflict",
    "ConnectionLost",
    "Cursor",
    "Deleted",
    "Event",
    "Invalid",
    "Job",
    "NotFound",
    "Producer",
    "Queue",
    "Receipt",
    "Record",
    "Refused",
    "Retry",
    "RouterInfo",
    "Throttled",
    "Tombstone",
    "Topic",
    "TopicDeleted",
    "TopicInfo",
    "TopicState",
    "Topics",
    "TopicsError",
    "Unavailable",
    "Watch",
    "Worker",
]
