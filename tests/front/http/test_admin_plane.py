"""The admin plane is loaded with its first request, and serves requests received before that."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import trio.testing

from tests.front.admin.test_application import call_of
from topics.front.answers import Answer
from topics.front.http.admin_plane import SWITCH_S, AdminCall, AdminPlane

LOADED_LATER = ("quart", "quart_trio", "hypercorn", "werkzeug", "flask", "h11", "h2", "jinja2")


class Echo:
    """An application that responds with the name of the router."""

    def __init__(self) -> None:
        self.serves = trio.Event()
        self.has_ended = False

    async def call(self, call: AdminCall) -> Answer:
        assert self.serves.is_set()
        return Answer(200, call.request.router.encode())

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.serves.set()
        yield
        self.has_ended = True


async def call_plane(plane: AdminPlane, call: AdminCall) -> Answer:
    """Send a call to the admin plane like a connection."""
    await plane.loaded()
    return await plane.call(call)


@contextmanager
def gate() -> Iterator[threading.Event]:
    """Yield an event for which a thread waits, and set it at the end in any case."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


@pytest.mark.slow
def test_a_front_is_imported_without_the_admin_plane() -> None:
    listed = f"[name for name in {LOADED_LATER} if name in sys.modules]"
    code = f"import sys, topics.process.front; print({listed})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == "[]"


async def test_requests_before_the_load_wait_and_are_answered() -> None:
    echo, answers = Echo(), list[bytes]()
    with gate() as opened:

        def load() -> Echo:
            assert opened.wait(10)
            return echo

        plane = AdminPlane(load)

        async def call_router(name: bytes) -> None:
            answer = await call_plane(plane, call_of(b"/v0/routers/%b" % name, b""))
            answers.append(bytes(answer.body))

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(plane.run)
                async with trio.open_nursery() as callers:
                    callers.start_soon(call_router, b"a")
                    callers.start_soon(call_router, b"b")
                    await trio.testing.wait_all_tasks_blocked()
                    assert answers == []
                    opened.set()
                await call_router(b"c")
                assert sorted(answers) == [b"a", b"b", b"c"]
                plane.end()
    assert echo.has_ended


async def test_the_admin_plane_is_loaded_in_a_thread_with_its_first_request(
    mock_clock: trio.testing.MockClock,
) -> None:
    threads, echo = list[int](), Echo()

    def load() -> Echo:
        threads.append(threading.get_ident())
        return echo

    plane = AdminPlane(load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plane.run)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(3600.0)
        await trio.testing.wait_all_tasks_blocked()
        assert not threads
        await call_plane(plane, call_of(b"/v0/routers/a", b""))
        plane.end()
    assert threads != [threading.get_ident()]


async def test_a_stop_of_the_front_does_not_wait_for_the_import() -> None:
    with gate() as opened:
        has_begun = threading.Event()

        def load() -> Echo:
            has_begun.set()
            assert opened.wait(10)
            return Echo()

        plane = AdminPlane(load)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(plane.run)
                async with trio.open_nursery() as callers:
                    callers.start_soon(plane.loaded)
                    await trio.to_thread.run_sync(has_begun.wait)
                    callers.cancel_scope.cancel()
                plane.end()


async def test_a_failed_load_of_the_admin_plane_ends_the_front() -> None:
    def load() -> Echo:
        raise ImportError("no quart")

    plane = AdminPlane(load)
    failure = pytest.RaisesExc(ImportError, match="no quart")
    with pytest.RaisesGroup(failure, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(plane.run)
            await call_plane(plane, call_of(b"/v0/routers/a", b""))


async def test_the_load_uses_a_short_switch_interval_and_no_garbage_collector() -> None:
    before, during = sys.getswitchinterval(), list[tuple[float, bool]]()

    def load() -> Echo:
        during.append((sys.getswitchinterval(), gc.isenabled()))
        return Echo()

    plane = AdminPlane(load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plane.run)
        await call_plane(plane, call_of(b"/v0/routers/a", b""))
        plane.end()
    assert [found for found, _ in during] == [pytest.approx(SWITCH_S, abs=1e-6)]
    assert [collects for _, collects in during] == [False]
    assert gc.isenabled()
    assert sys.getswitchinterval() == before
