"""The client for asyncio and trio.

pool.py       connections to one server
caller.py     requests and their retries
sender.py     the base of producer.py and publisher.py
worker.py     AsyncWorker, AsyncJob
watcher.py    AsyncWatch, AsyncCursor
client.py     AsyncTopics, AsyncTopic, AsyncQueue
"""

from topics.client.aio.client import AsyncQueue, AsyncTopic, AsyncTopics
from topics.client.aio.producer import AsyncProducer
from topics.client.aio.publisher import AsyncPublisher
from topics.client.aio.watcher import AsyncCursor, AsyncWatch
from topics.client.aio.worker import AsyncJob, AsyncWorker

__all__ = [
    "AsyncCursor",
    "AsyncJob",
    "AsyncProducer",
    "AsyncPublisher",
    "AsyncQueue",
    "AsyncTopic",
    "AsyncTopics",
    "AsyncWatch",
    "AsyncWorker",
]
