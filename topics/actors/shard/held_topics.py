"""Requests that are handled later: those of held topics, and those that are tried once more.

Held topics are topics that one long operation has for itself:

    free --take--> held: requests are deferred --give_back--> free: deferred requests are handled

A streamed append holds its topic, and so does a delete by match until its topic has no change under
way, for each of its slices. Reads of a held topic go on.

A change that makes room may use the log's reserve when all frames of its group make room (decision
0015). One that shares its group with an append may not, and the log refuses both; its request is
then handled once more, in a group without appends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import trio

from topics.actors.rpc.replies import answer_error
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.room import unwritable
from topics.actors.shard.service import Service
from topics.storage.wal.file import NoRoom

Request: TypeAlias = InboundMessage[Any, Any]
Handler: TypeAlias = Callable[[Request], None]


class HeldTopics:
    """The topics of a shard that are held, by name; ``waiting``: what was deferred."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], object]]] = {}

    def defer_if_held(self, topic: str, handler: Handler, request: Request) -> bool:
        """Defer the request if ``topic`` is held; whether it was deferred."""
        waiting = self.waiting.get(topic)
        if waiting is None:
            return False
        waiting.append(partial(handle_late, handler, request))
        return True

    def defer_call_if_held(self, topic: str, call: Callable[[], object]) -> bool:
        """As `defer_if_held`, for work of the shard itself."""
        waiting = self.waiting.get(topic)
        if waiting is None:
            return False
        waiting.append(call)
        return True

    async def wait_free(self, topic: str) -> None:
        """Wait until ``topic`` is free. The caller goes on before anyone else can hold it."""
        while self.is_held(topic):
            freed = trio.Event()
            self.waiting[topic].append(freed.set)
            await freed.wait()

    def is_held(self, topic: str) -> bool:
        """Whether ``topic`` is held."""
        return topic in self.waiting

    def take(self, topic: str) -> None:
        """Hold ``topic`` from now on."""
        assert topic not in self.waiting, "a topic is held once at a time"
        self.waiting[topic] = []

    def give_back(self, topic: str) -> list[Callable[[], object]]:
        """Free ``topic``; what was deferred, to be called now."""
        return self.waiting.pop(topic)


def handle_late(handler: Handler, request: Request) -> None:
    """Handle a request that was deferred, as the router would have.

    A request whose caller was told of a time-out is dropped. So is one whose front has gone: that
    front's successor waits for its memory.
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
    """The requests that are handled once more. No hook of a turn submits changes before it."""

    def __init__(self, commits: GroupCommit) -> None:
        self._commits = commits
        self._waiting: list[tuple[Handler, Request]] = []

    def refuse(
        self, handler: Callable[..., None], request: Request, error: OSError, *, again: bool
    ) -> None:
        """The log has refused the change of ``request`` with ``error``: call ``handler`` once more,
        with ``again=True``, or answer if that was done or does not help.
        """
        if isinstance(error, NoRoom) and not again:
            self._waiting.append((partial(handler, again=True), request))
            self.is_due = True
        else:
            answer_error(request, unwritable(error))

    def on_due(self) -> None:
        """Handle them; the log goes on by now."""
        waiting, self._waiting = self._waiting, []
        for handler, request in waiting:
            handle_late(handler, request)
        self._commits.flush(at_once=False)
