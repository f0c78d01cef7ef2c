"""The client for asyncio and trio.

pool.py      connections to one server, and requests
client.py    AsyncTopics, AsyncTopic, AsyncQueue, AsyncWatch, AsyncCursor
worker.py    AsyncWorker, AsyncJob
"""

from topics.client.aio.client import AsyncCursor, AsyncQueue, AsyncTopic, AsyncTopics, AsyncWatch
from topics.client.aio.worker import AsyncJob, AsyncWorker

__all__ = [
    "AsyncCursor",
    "AsyncJob",
    "AsyncQueue",
    "AsyncTopic",
    "AsyncTopics",
    "AsyncWatch",
    "AsyncWorker",
]
