"""The poller: who is told of input, in one batch, and what ends with it."""

from __future__ import annotations

from types import TracebackType

import trio
import trio.testing

from tests.support.driven import Scene, echo, scenes
from topics.actors.rpc.stepping import in_task


class Marked:
    """A batch that knows when it is open."""

    def __init__(self) -> None:
        self.is_open, self.count = False, 0

    def __enter__(self) -> None:
        self.is_open, self.count = True, self.count + 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.is_open = False


async def test_a_turn_steps_all_that_have_input_in_one_batch() -> None:
    batch = Marked()
    async with scenes(batch) as make:
        several = [make() for _ in range(50)]

        async def serve(scene: Scene) -> None:
            while await scene.connection.receive():
                scene.notes.append(batch.is_open)

        for scene in several:
            scene.serve(serve)
            scene.client.sendall(b"x")
        several[0].poller.turn()
        assert [scene.notes for scene in several] == [[True]] * 50
        assert (batch.count, batch.is_open) == (1, False)


async def test_a_connection_that_was_closed_in_this_turn_is_left_alone() -> None:
    async with scenes() as make:
        several = [make() for _ in range(3)]

        async def serve(scene: Scene) -> None:
            await scene.connection.receive()
            scene.notes.append("first")
            for each in several:
                each.connection.cut()

        for scene in several:
            scene.serve(serve)
            scene.client.sendall(b"x")
        several[0].poller.turn()
        notes = sorted(scene.notes for scene in several)
        assert notes == [["first", "over"], ["over"], ["over"]]


async def test_a_socket_that_cannot_be_watched_is_closed() -> None:
    async with scenes() as make:
        scene = make()
        scene.connection.sock.close()
        scene.serve(echo)
        assert scene.notes == ["over"]


async def test_run_polls_and_ends_every_connection_when_it_is_cancelled() -> None:
    async with scenes() as make:
        reading, calling, borrowing, late, later = (make() for _ in range(5))

        async def call(scene: Scene) -> None:
            await scene.call.wait()

        async def borrow(_: Scene) -> None:
            await in_task()
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reading.poller.run)
            for scene, serve in ((reading, echo), (calling, call), (borrowing, borrow)):
                scene.serve(serve)
            reading.client.sendall(b"x")
            with trio.fail_after(10):
                await trio.lowlevel.wait_readable(reading.client)
            assert reading.client.recv(9) == b"1"
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert [scene.notes for scene in (reading, calling, borrowing)] == [["over"]] * 3
        late.serve(echo)
        later.serve(borrow)
        assert late.notes == later.notes == ["over"], "the server is over"
