"""The client for a topics server.

    aio/            the client for asyncio and trio
    sync/           the client for threads, generated from aio/ by tests/client/unasync.py
    tasks.py        the parts of aio/ that differ for threads: asyncio and trio tasks
    threads.py      the corresponding parts of sync/, which are not generated: threads and signals
    jobs.py         a job that a worker holds, without I/O
    http.py         header fields, timeouts, certificates, failures
    watching.py     event streams, without I/O
    chunks.py       divides many records into appends of a bounded size, and makes their keys
    calls.py        the API as values: requests, how to parse responses, when to retry
    values.py       records, tombstones, states
    settings.py     the server and the key
    errors.py       TopicsError, and a subclass for each way to handle a failure

A module imports only modules that are listed below it. The client imports no server modules except
types from `topics.formats` and `topics.errors`, and no server process imports the client.
"""

from topics.client.calls import Retry
from topics.client.errors import (
    ClientClosed,
    Conflict,
    ConnectionLost,
    Invalid,
    NotFound,
    Refused,
    Throttled,
    TopicsError,
    Unavailable,
)
from topics.client.sync import (
    Cursor,
    Job,
    Producer,
    Publisher,
    Queue,
    Topic,
    Topics,
    Watch,
    Worker,
)
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
    "ClientClosed",
    "Conflict",
    "ConnectionLost",
    "Cursor",
    "Deleted",
    "Event",
    "Invalid",
    "Job",
    "NotFound",
    "Producer",
    "Publisher",
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
