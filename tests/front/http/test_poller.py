"""The poller: who is told of input, and what ends with it."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio

from tests.support.driven import scenes
from tests.support.fake_backend import FakeBackend
from tests.support.front import RECORD, running
from tests.support.raw_client import request
from topics.front.http.request_tasks import Poller

HEALTH = request("GET", "/v0/health")


async def test_a_connection_that_was_closed_in_this_turn_is_left_alone() -> None:
    async with running() as run, scenes(run) as make:
        several = [make() for _ in range(3)]
        heads = run.server.lanes.heads
        decide = heads.decide

        def cut_all(raw: bytes) -> Any:
            for scene in several:
                scene.connection.cut()
            heads.decide = decide  # type: ignore[method-assign]
            return decide(raw)

        heads.decide = cut_all  # type: ignore[method-assign]
        for scene in several:
            scene.client.sendall(HEALTH)
        several[0].turn()
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
    backend = FakeBackend(topics={"slow": []}, gate=trio.Event())
    async with running(backend=backend) as run, scenes(run) as make:
        reading, calling, in_task = (make() for _ in range(3))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reading.poller.run)
            calling.client.sendall(request("POST", "/v0/topics/slow", RECORD))
            in_task.client.sendall(request("POST", "/v0/topics/a", b" " * 100_000)[:-9])
            reading.client.sendall(HEALTH)
            with trio.fail_after(10):
                await trio.lowlevel.wait_readable(reading.client)
            assert reading.client.recv(4096)[9:12] == b"200"
            await run.until(lambda: backend.waiting == 1)
            assert not any(scene.is_over for scene in (reading, calling, in_task))
            nursery.cancel_scope.cancel()
        await run.until(lambda: all(scene.is_over for scene in (reading, calling, in_task)))
        assert make().is_over, "the server is over"
        backend.gate.set()  # type: ignore[union-attr]
