"""The driver: steps, calls, borrowed tasks, and every way in which a connection ends."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
import trio
import trio.testing

from tests.support.driven import Scene, echo, scenes
from topics.actors.rpc.stepping import NOW, in_steps, in_task
from topics.front.http.driver import Driver


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def ask(scene: Scene) -> None:
    """One call, then echo."""
    scene.notes.append(await scene.call.wait())
    await echo(scene)


async def borrow(scene: Scene) -> None:
    """A task for a moment, then echo."""
    await in_task()
    scene.notes.append(trio.lowlevel.current_task().name)
    await trio.lowlevel.checkpoint()
    await in_steps()
    assert NOW.driver is not None
    await echo(scene)


async def test_input_is_read_in_steps_without_a_task() -> None:
    async with scenes() as make:
        scene = make()
        scene.serve(echo)
        before = trio.lowlevel.current_statistics().tasks_living
        scene.say(b"hello")
        assert scene.client.recv(9) == b"5"
        scene.poller.turn()  # nothing is ready
        scene.say(b"you")
        assert scene.client.recv(9) == b"3"
        assert trio.lowlevel.current_statistics().tasks_living == before
        scene.client.close()
        scene.poller.turn()
        assert scene.notes == ["over"]


async def test_an_answer_is_handled_by_who_brings_it() -> None:
    async with scenes() as make:
        scene = make()
        scene.serve(ask)
        scene.answer("yes")
        assert scene.notes == ["yes"]
        scene.say(b"x")
        assert scene.client.recv(9) == b"1"


async def test_a_failed_call_is_raised_in_the_coroutine() -> None:
    async with scenes() as make:
        scene = make()

        async def serve(scene: Scene) -> None:
            with pytest.raises(ValueError, match="no"):
                await scene.call.wait()
            scene.notes.append("told")

        scene.serve(serve)
        scene.call.fail(ValueError("no"))
        assert scene.notes == ["told", "over"]


async def test_a_task_is_borrowed_and_given_back() -> None:
    async with scenes() as make:
        scene = make()
        scene.serve(borrow)
        assert scene.notes == []
        await settled()
        (name,) = scene.notes
        assert "run_in_task" in str(name)
        scene.say(b"12")
        assert scene.client.recv(9) == b"2"


async def test_in_a_task_all_of_trio_works() -> None:
    async with scenes() as make:
        scene = make()

        async def serve(scene: Scene) -> None:
            await in_task()
            with trio.move_on_after(0) as scope:
                await trio.sleep_forever()
            scene.notes.append(scope.cancelled_caught)
            with pytest.raises(trio.TooSlowError), trio.fail_after(0):
                await scene.connection.receive()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 0)
            await scene.call.wait()
            await in_steps()
            await echo(scene)

        scene.serve(serve)
        await settled()
        assert scene.notes == [True]
        scene.answer()
        await settled()
        scene.say(b"123")
        assert scene.client.recv(9) == b"3"


async def waits_for_input(scene: Scene) -> None:
    scene.serve(echo)


async def waits_for_an_answer(scene: Scene) -> None:
    scene.serve(ask)


async def waits_in_a_task(scene: Scene) -> None:
    async def serve(_: Scene) -> None:
        await in_task()
        await trio.sleep_forever()

    scene.serve(serve)
    await settled()


async def waits_for_an_answer_in_a_task(scene: Scene) -> None:
    async def serve(scene: Scene) -> None:
        await in_task()
        await scene.call.wait()

    scene.serve(serve)
    await settled()


async def waits_for_its_task(scene: Scene) -> None:
    scene.serve(borrow)


WAITS = [
    waits_for_input,
    waits_for_an_answer,
    waits_in_a_task,
    waits_for_an_answer_in_a_task,
    waits_for_its_task,
]


@pytest.mark.parametrize("how", ["cut", "end_idle"])
@pytest.mark.parametrize("wait", WAITS)
async def test_a_connection_ends_once_wherever_it_waits(
    wait: Callable[[Scene], Coroutine[Any, Any, None]], how: str
) -> None:
    async with scenes() as make:
        scene, other = make(), make()
        other.serve(echo)
        await wait(scene)
        getattr(scene.connection, how)()
        getattr(scene.connection, how)()
        await settled()
        assert scene.notes[-1] == "over"
        assert scene.notes.count("over") == 1
        assert scene.call.is_abandoned == ("answer" in wait.__name__)
        assert len(scene.connections) == 1
        assert scene.client.recv(9) == b""
        other.say(b"x")
        assert other.client.recv(9) == b"1", "nobody else is touched"


@pytest.mark.parametrize("then", ["reads", "calls", "borrows", "returns"])
async def test_a_connection_that_is_cut_in_its_own_step_ends_after_it(then: str) -> None:
    async with scenes() as make:
        scene = make()

        async def serve(scene: Scene) -> None:
            scene.connection.cut()
            scene.notes.append("goes on")
            if then == "reads":
                await scene.connection.receive()
            elif then == "calls":
                await scene.call.wait()
            elif then == "borrows":
                await in_task()
            if then != "returns":
                scene.notes.append("too far")

        scene.serve(serve)
        assert scene.notes == ["goes on", "over"]
        assert scene.call.is_abandoned == (then == "calls")


async def test_a_connection_that_is_cut_in_its_task_does_not_go_on_in_steps() -> None:
    async with scenes() as make:
        scene = make()

        async def serve(scene: Scene) -> None:
            await in_task()
            scene.connection.cut()
            await in_steps()
            scene.notes.append("too far")

        scene.serve(serve)
        await settled()
        assert scene.notes == ["over"]


async def test_a_connection_may_cut_another_one_in_its_step() -> None:
    async with scenes() as make:
        first, second = make(), make()
        second.serve(ask)

        async def serve(scene: Scene) -> None:
            driver = NOW.driver
            second.connection.cut()
            assert NOW.driver is driver
            await echo(scene)

        first.serve(serve)
        assert second.notes == ["over"]
        first.say(b"xy")
        assert first.client.recv(9) == b"2"


async def test_input_during_a_call_is_left_to_the_kernel_until_it_is_read() -> None:
    async with scenes() as make:
        scene = make()

        async def serve(scene: Scene) -> None:
            assert await scene.connection.receive()
            await scene.call.wait()
            scene.connection.buffer = b""
            await echo(scene)

        scene.serve(serve)
        scene.say(b"x")
        assert scene.is_watched, "an ordinary call costs nothing"
        scene.say(b"pipelined")
        assert not scene.is_watched, "it would be told again and again"
        scene.poller.turn()
        scene.answer()
        assert scene.is_watched
        scene.poller.turn()
        assert scene.client.recv(9) == b"9"


async def test_a_hang_up_during_a_call_that_does_not_wait_is_seen_once_the_coroutine_reads() -> (
    None
):
    async with scenes() as make:
        scene = make()

        async def serve(scene: Scene) -> None:
            assert await scene.connection.receive()
            await scene.call.wait()
            scene.notes.append(await scene.connection.receive())

        scene.serve(serve)
        scene.say(b"x")
        scene.client.close()
        scene.poller.turn()
        assert not scene.is_watched
        assert scene.notes == [], "the call goes on"
        scene.answer()
        scene.poller.turn()
        assert scene.notes == [False, "over"]


async def test_a_connection_that_is_over_leaves_no_circle() -> None:
    async with scenes() as make:
        scene = make()
        scene.serve(echo)
        driver = weakref.ref(cast("Driver", scene.connection.driver))
        scene.client.close()
        scene.poller.turn()
        assert driver() is None


async def test_a_descriptor_that_comes_again_belongs_to_its_new_connection() -> None:
    async with scenes() as make:
        first = make()
        first.serve(echo)
        fd = first.connection.fd
        first.client.close()
        first.poller.turn()
        assert first.notes == ["over"]
        again = make()
        assert again.connection.fd == fd, "the kernel gives the lowest"
        again.serve(echo)
        again.say(b"abc")
        assert again.client.recv(9) == b"3"


async def test_a_wait_for_trio_without_a_task_fails_loudly_and_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scenes() as make:
        scene, other = make(), make()
        other.serve(echo)

        async def serve(scene: Scene) -> None:
            with pytest.raises(RuntimeError, match="in_task"):
                await trio.lowlevel.cancel_shielded_checkpoint()
            scene.notes.append("told")
            await echo(scene)

        with caplog.at_level(logging.ERROR):
            scene.serve(serve)
        assert "without a task" in caplog.text
        assert scene.notes == ["told"]
        scene.say(b"x")
        assert scene.client.recv(9) == b"1"
        other.say(b"x")
        assert other.client.recv(9) == b"1"


@pytest.mark.parametrize("borrows", [False, True])
async def test_an_unexpected_error_ends_its_connection_only(
    borrows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with scenes() as make:
        scene, other = make(), make()
        other.serve(echo)

        async def serve(scene: Scene) -> None:
            if borrows:
                await in_task()
            raise ValueError("a bug")

        with caplog.at_level(logging.ERROR):
            scene.serve(serve)
            await settled()
        assert "a bug" in caplog.text
        assert scene.notes == ["over"]
        other.say(b"x")
        assert other.client.recv(9) == b"1"


async def test_a_coroutine_that_waits_while_it_is_closed_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scenes() as make:
        scene = make()

        async def serve(scene: Scene) -> None:
            try:
                await scene.connection.receive()
            finally:
                await scene.connection.receive()

        scene.serve(serve)
        with caplog.at_level(logging.ERROR):
            scene.connection.cut()
        assert "GeneratorExit" in caplog.text
