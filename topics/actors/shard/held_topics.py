"""Deferred requests: requests for held topics, and requests that are retried.

A held topic is reserved for one long operation:

    free --hold--> held: requests are deferred --release--> free: deferred requests are handled

A streamed append holds its topic. A delete by match holds its topic for each of its slices, until
the topic has no pending change. A delete of a topic with routers holds the topic until the routers
are removed. Reads from a held topic are served.

A change that frees space may use the log's reserve if all frames of its group free space (decision
0015). If it shares a group with an append, the log refuses both. The request for the change is then
handled once more, in a group that contains no appends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import trio

from topics.actors.rpc.replies import answer_error
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.disk_space import unwritable
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.service import Service
from topics.storage.wal.log_file import NoSpace

Request: TypeAlias = InboundMessage[Any, Any]
Handler: TypeAlias = Callable[[Request], None]


class HeldTopics:
    """The held topics of a shard, by name. ``waiting``: their deferred calls."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], object]]] = {}

    def defer_if_held(self, topic: str, handler: Handler, request: Request) -> bool:
        """Defer the request if ``topic`` is held. Return whether it was deferred."""
        waiting = self.waiting.get(topic)
        if waiting is None:
            return False
        waiting.append(partial(handle_late, handler, request))
        return True

    def defer_call_if_held(self, topic: str, call: Callable[[], object]) -> bool:
        """Defer a call of the shard itself if ``topic`` is held. Return whether it was deferred."""
        waiting = self.waiting.get(topic)
        if waiting is None:
            return False
        waiting.append(call)
        return True

    async def wait_free(self, topic: str) -> None:
        """Wait until ``topic`` is free. The caller continues before another task can hold it."""
        while self.is_held(topic):
            freed = trio.Event()
            self.waiting[topic].append(freed.set)
            await freed.wait()

    def is_held(self, topic: str) -> bool:
        """Return whether ``topic`` is held."""
        return topic in self.waiting

    def hold(self, topic: str) -> None:
        """Hold ``topic`` until `release`."""
        assert topic not in self.waiting, "a topic is held once at a time"
        self.waiting[topic] = []

    def release(self, topic: str) -> list[Callable[[], object]]:
        """Release ``topic``. Return the deferred calls, which the caller must run now."""
        return self.waiting.pop(topic)


def handle_late(handler: Handler, request: Request) -> None:
    """Handle a deferred request in the same way as the message router.

    A request that has timed out is dropped. A request from a disconnected front is also dropped,
    because the front's next process waits for the memory of the request.
    """
    if not request.is_open or request.session.closed:
        request.release()
        return
    try:
        handler(request)
    except Exception as error:
        answer_error(request, error)
        request.release()


class Retries(Service):
    """Requests that are handled a second time.

    Its `on_due` runs before all other hooks that submit changes, so retries get a group of their
    own.
    """

    def __init__(self, commits: GroupCommit) -> None:
        self._commits = commits
        self._waiting: list[tuple[Handler, Request]] = []

    def refuse(
        self, handler: Callable[..., None], request: Request, error: OSError, *, is_retry: bool
    ) -> None:
        """Handle a request whose change the log has refused with ``error``.

        Call ``handler`` once more with ``is_retry=True``. Reply with the error if this was already
        the retry, or if a retry cannot help.
        """
        if isinstance(error, NoSpace) and not is_retry:
            self._waiting.append((partial(handler, is_retry=True), request))
            self.is_due = True
        else:
            answer_error(request, unwritable(error))

    def on_due(self) -> None:
        """Handle the requests once more, because the log accepts changes again."""
        waiting, self._waiting = self._waiting, []
        for handler, request in waiting:
            handle_late(handler, request)
        self._commits.flush(immediate=False)
