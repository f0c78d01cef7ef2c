# Generated from topics/client/aio/__init__.py by tests/client/unasync.py. Change that one.
"""The client for threads.

pool.py      connections to one server, and requests
client.py    Topics, Topic, Queue, Watch, Cursor
worker.py    Worker, Job
"""

from topics.client.sync.client import Cursor, Queue, Topic, Topics, Watch
from topics.client.sync.worker import Job, Worker

__all__ = [
    "Cursor",
    "Job",
    "Queue",
    "Topic",
    "Topics",
    "Watch",
    "Worker",
]
