"""The poller: who is told of input, in one batch, and what ends with it."""

from __future__ import annotations

import errno
from types import TracebackType

import pytest
import trio

from tests.support.driven import scenes
from tests.support.fake_shards import FakeShards
from tests.support.front import RECORD, running
from tests.support.raw_client import request
from topics.front.http.poller import Poller

HEALTH = request("GET", "/v0/health")


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


async def test_a_turn_serves_all_that_have_input_in_one_batch() -> None:
    batch = Marked()
    async with running() as run, scenes(run, batch) as make:
        several = [make() for _ in range(50)]
        for scene in several:
            scene.client.sendall(HEALTH)
        several[0].poller.turn()
        assert {scene.client.recv(4096)[9:12] for scene in several} == {b"200"}
        assert (batch.count, batch.is_open) == (1, False)


async def test_a_connection_that_was_closed_in_this_turn_is_left_alone() -> None:
    async with running() as run, scenes(run) as make:
        several = [make() for _ in range(3)]
        enter = run.server.guard.enter

        def cut_all(asked: object) -> None:
            for scene in several:
                scene.connection.cut()
            run.server.guard.enter = enter  # type: ignore[method-assign]

        run.server.guard.enter = cut_all  # type: ignore[method-assign,assignment]
        for scene in several:
            scene.client.sendall(HEALTH)
        several[0].poller.turn()
        assert all(scene.is_over for scene in several)


async def test_a_socket_that_cannot_be_watched_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def watch(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no memory for it")

    async with running() as run, scenes(run) as make:
        monkeypatch.setattr(Poller, "watch", watch)
        scene = make()
        assert scene.is_over
        assert scene.connection not in run.server.connections


async def test_run_polls_and_ends_every_connection_when_it_is_cancelled() -> None:
    shards = FakeShards(topics={"slow": []}, gate=trio.Event())
    async with running(shards=shards) as run, scenes(run) as make:
        reading, calling, in_task = (make() for _ in range(3))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reading.poller.run)
            calling.client.sendall(request("POST", "/v0/topics/slow", RECORD))
            in_task.client.sendall(request("POST", "/v0/topics/a", b" " * 100_000)[:-9])
            reading.client.sendall(HEALTH)
            with trio.fail_after(10):
                await trio.lowlevel.wait_readable(reading.client)
            assert reading.client.recv(4096)[9:12] == b"200"
            await run.until(lambda: shards.waiting == 1)
            assert not any(scene.is_over for scene in (reading, calling, in_task))
            nursery.cancel_scope.cancel()
        await run.until(lambda: all(scene.is_over for scene in (reading, calling, in_task)))
        assert make().is_over, "the server is over"
        shards.gate.set()  # type: ignore[union-attr]
