"""The client of a topics server.

    aio/            the client for asyncio and trio
    sync/           the client for threads: Topics, Topic, Queue, Watch, Cursor, Worker, Job;
                    generated from aio/ by tests/client/unasync.py
    tasks.py        the parts of both that are not generated: tasks of asyncio and trio,
    threads.py      threads and signals
    chunks.py       divides many records into appends of a bounded size, and makes their keys
    producer.py     many single appends as few requests
    calls.py        the API as values: requests, how answers are read, when to try again
    watching.py     event streams, without I/O
    jobs.py         a job that a worker holds, without I/O
    http.py         header fields, timeouts, certificates, failures
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
from topics.client.sync import Cursor, Job, Queue, Topic, Topics, Watch, Worker
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
