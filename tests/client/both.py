"""The client for asyncio and trio as if it were that for threads, so that one test is for both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Self, cast

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from topics.client import Topics
from topics.client.aio import AsyncTopics

END = object()


class Task:
    """One task of a loop in another thread. Cancel scopes and generators must stay in their task,
    so it runs all functions.
    """

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._send, self._receive = anyio.create_memory_object_stream[Any](1)
        self._generators: list[Any] = []

    async def serve(self) -> None:
        """Run functions until `close`."""
        with self._receive:
            async for function, arguments, options, future in self._receive:
                try:
                    found = function(*arguments, **options)
                    future.set_result(await found if inspect.isawaitable(found) else found)
                except StopAsyncIteration:
                    future.set_result(END)
                except Exception as error:
                    future.set_exception(error)

    def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The result of a function, or of its coroutine."""
        future = Future[Any]()
        plain = [each.inner if isinstance(each, Face) else each for each in arguments]
        for name, each in options.items():
            options[name] = each.inner if isinstance(each, Face) else each
        self._portal.call(self._send.send, (function, plain, options, future))
        return self.shown(future.result(60))

    def shown(self, found: Any) -> Any:
        """What a test is given: objects of the client behind a `Face`."""
        if inspect.isasyncgen(found):
            self._generators.append(found)
        elif not type(found).__module__.startswith("topics.client.aio"):
            return found
        return Face(self, found)

    def close(self) -> None:
        """End, behind generators that a test has left."""
        for generator in self._generators:
            self.run(generator.aclose)
        self._portal.call(self._send.aclose)


class Face:
    """An object of the client, with the methods that it would have in the client for threads."""

    def __init__(self, task: Task, inner: Any) -> None:
        vars(self).update(task=task, inner=inner)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not inspect.isroutine(found):
            return self.task.shown(found)
        return lambda *arguments, **options: self.task.run(found, *arguments, **options)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.inner, name, value)

    def __enter__(self) -> Self:
        self.task.run(self.inner.__aenter__)
        return self

    def __exit__(self, *failure: object) -> Any:
        return self.task.run(self.inner.__aexit__, *failure)

    def __iter__(self) -> Iterator[Any]:
        return cast("Face", self.task.run(self.inner.__aiter__))

    def __next__(self) -> Any:
        found = self.task.run(self.inner.__anext__)
        if found is END:
            raise StopIteration
        return found


@contextmanager
def in_task(backend: str) -> Iterator[Callable[..., Topics]]:
    """What makes clients that look like `Topics`."""
    with start_blocking_portal(backend) as portal:
        task = Task(portal)
        served = portal.start_task_soon(task.serve)
        try:
            yield lambda *arguments, **options: task.run(AsyncTopics, *arguments, **options)
        finally:
            task.close()
            served.result(60)
