"""Held topics: topics that one long operation has for itself, and the requests that wait for them.

    free --take--> held: requests are deferred --give_back--> free: deferred requests are handled

A streamed append holds its topic, and so does a delete by match until its topic has no change under
way, for each of its slices. Reads of a held topic go on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import trio

from topics.actors.rpc.replies import answer_error
from topics.actors.rpc.session import InboundMessage

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
