"""Stepping: commands reach the driver if there is one; inside a task it is asked for steps only."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from topics.actors.rpc.stepping import NOW, Command, in_steps, in_task, wait_readable


class Hand:
    """A driver that does nothing by itself."""

    def answered(self, answer: Any) -> None:
        raise AssertionError("nobody calls")

    def failed(self, error: Exception) -> None:
        raise AssertionError("nobody calls")


@pytest.fixture
def stepped() -> Iterator[None]:
    """The test plays the driver."""
    NOW.driver = Hand()
    yield
    NOW.driver = None


@pytest.mark.usefixtures("stepped")
@pytest.mark.parametrize(
    ("wait", "asked"), [(in_task, Command.TASK), (lambda: wait_readable(0), Command.READ)]
)
def test_a_stepped_coroutine_asks_its_driver(wait: Any, asked: Command) -> None:
    coroutine = wait()
    assert coroutine.send(None) is asked
    with pytest.raises(StopIteration):
        coroutine.send(None)


@pytest.mark.usefixtures("stepped")
def test_a_stepped_coroutine_is_in_steps_already() -> None:
    with pytest.raises(StopIteration):
        in_steps().send(None)


def test_a_coroutine_in_a_task_asks_for_steps_only() -> None:
    with pytest.raises(StopIteration):
        in_task().send(None)
    assert in_steps().send(None) is Command.STEPS


async def test_in_a_task_trio_waits_for_input(nursery: trio.Nursery) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        with trio.fail_after(10):
            await wait_readable(ours.fileno())
        assert ours.recv(1) == b"x"
