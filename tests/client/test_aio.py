"""What the client for asyncio and trio does when a task is cancelled."""

from __future__ import annotations

import anyio
import pytest

from topics.client import Record
from topics.client.aio import AsyncTopics

pytestmark = [
    pytest.mark.parametrize("backend", ["asyncio", "trio"]),
    # The library, and the one below, leave their generators to the collector when a stream is left.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]


def test_a_cancelled_loop_saves_its_cursor(url: str, name: str, backend: str) -> None:
    async def run() -> None:
        async with AsyncTopics(url) as client:
            await client.topic(name).append(1, 2)
            with anyio.CancelScope() as scope:
                async with client.cursor(name) as cursor:
                    async for event in client.watch(name, cursor=cursor):
                        if isinstance(event, Record) and event.data == 2:
                            scope.cancel()
                            await anyio.sleep_forever()
            async with client.cursor(name) as cursor:
                assert cursor.positions[name][0] == 2

    anyio.run(run, backend=backend)


def test_a_cancelled_worker_gives_its_jobs_back(url: str, name: str, backend: str) -> None:
    async def run() -> None:
        async with AsyncTopics(url) as client:
            queue = client.queue(name)
            await queue.put()
            await queue.append(1, 2)
            with anyio.CancelScope() as scope:
                async with queue.worker(concurrency=2, lease=60.0) as worker:
                    async for job in worker:
                        async with job:
                            scope.cancel()
                            await anyio.sleep_forever()
            counts = (await queue.state()).queue
            assert counts is not None
            assert (counts.ready, counts.in_flight) == (2, 0)

    anyio.run(run, backend=backend)


def test_stop_ends_a_claim_that_waits(url: str, name: str, backend: str) -> None:
    async def run() -> None:
        async with AsyncTopics(url) as client:
            queue = client.queue(name)
            await queue.put()
            async with anyio.create_task_group() as tasks, queue.worker() as worker:

                async def stop() -> None:
                    await anyio.wait_all_tasks_blocked()
                    worker.stop()

                tasks.start_soon(stop)
                with anyio.fail_after(20):  # a claim waits for 25 s
                    assert [job async for job in worker] == []

    anyio.run(run, backend=backend)
