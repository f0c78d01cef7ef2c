"""The cold loader: the fast lane serves without the cold one, which answers who came before it."""

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

from tests.front.http.test_cold_lane import call_of
from topics.front.answers import Answer
from topics.front.http.cold_loader import SWITCH_S, ColdCall, ColdLoader

LOADED_LATER = ("quart", "quart_trio", "hypercorn", "werkzeug", "flask", "h11", "h2", "jinja2")


class Echo:
    """A stack that answers with the topic."""

    def __init__(self) -> None:
        self.serves = trio.Event()
        self.has_ended = False

    async def ask(self, call: ColdCall) -> Answer:
        assert self.serves.is_set()
        return Answer(200, call.request.topic.encode())

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.serves.set()
        yield
        self.has_ended = True


async def ask(loader: ColdLoader, call: ColdCall) -> Answer:
    """As a connection does it."""
    await loader.loaded()
    return await loader.ask(call)


@contextmanager
def gate() -> Iterator[threading.Event]:
    """An event that a thread waits for; set in any case."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


def test_a_front_is_imported_without_the_cold_lane() -> None:
    listed = f"[name for name in {LOADED_LATER} if name in sys.modules]"
    code = f"import sys, topics.process.front; print({listed})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == "[]"


async def test_requests_that_come_early_wait_and_are_answered() -> None:
    echo, answers = Echo(), list[bytes]()
    with gate() as opened:

        def load() -> Echo:
            assert opened.wait(10)
            return echo

        loader = ColdLoader(load)

        async def ask_for(name: bytes) -> None:
            answer = await ask(loader, call_of(b"/v0/topics/%b" % name, b""))
            answers.append(bytes(answer.body))

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(loader.run)
                async with trio.open_nursery() as asking:
                    asking.start_soon(ask_for, b"a")
                    asking.start_soon(ask_for, b"b")
                    await trio.testing.wait_all_tasks_blocked()
                    assert answers == []
                    opened.set()
                await ask_for(b"c")
                assert sorted(answers) == [b"a", b"b", b"c"]
                loader.end()
    assert echo.has_ended


async def test_it_is_loaded_in_a_thread_and_only_when_somebody_asks_for_it(
    mock_clock: trio.testing.MockClock,
) -> None:
    threads, echo = list[int](), Echo()

    def load() -> Echo:
        threads.append(threading.get_ident())
        return echo

    loader = ColdLoader(load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loader.run)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(3600.0)
        await trio.testing.wait_all_tasks_blocked()
        assert not threads
        await ask(loader, call_of(b"/v0/topics/a", b""))
        loader.end()
    assert threads != [threading.get_ident()]


async def test_a_front_that_ends_waits_for_no_import() -> None:
    with gate() as opened:
        has_begun = threading.Event()

        def load() -> Echo:
            has_begun.set()
            assert opened.wait(10)
            return Echo()

        loader = ColdLoader(load)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(loader.run)
                async with trio.open_nursery() as asking:
                    asking.start_soon(loader.loaded)
                    await trio.to_thread.run_sync(has_begun.wait)
                    asking.cancel_scope.cancel()
                loader.end()


async def test_a_lane_that_cannot_be_loaded_ends_the_front() -> None:
    def load() -> Echo:
        raise ImportError("no quart")

    loader = ColdLoader(load)
    failure = pytest.RaisesExc(ImportError, match="no quart")
    with pytest.RaisesGroup(failure, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loader.run)
            await ask(loader, call_of(b"/v0/topics/a", b""))


async def test_while_it_loads_the_interpreter_is_given_up_often() -> None:
    before, during = sys.getswitchinterval(), list[tuple[float, bool]]()

    def load() -> Echo:
        during.append((sys.getswitchinterval(), gc.isenabled()))
        return Echo()

    loader = ColdLoader(load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loader.run)
        await ask(loader, call_of(b"/v0/topics/a", b""))
        loader.end()
    assert [found for found, _ in during] == [pytest.approx(SWITCH_S, abs=1e-6)]
    assert [collects for _, collects in during] == [False]
    assert gc.isenabled()
    assert sys.getswitchinterval() == before
