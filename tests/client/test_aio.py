"""The asynchronous client on both of its loops."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from topics.client import CaughtUp, NotFound, Record, calls
from topics.client.aio import AsyncTopics

pytestmark = [
    pytest.mark.parametrize("backend", ["asyncio", "trio"]),
    # The library, and the one below, leave their generators to the collector when a stream is left.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]


def test_topics_watches_and_cursors(url: str, name: str, backend: str) -> None:
    async def run() -> None:
        async with AsyncTopics(url, node="me") as client:
            topic = client.topic(name)
            assert (await topic.put(cap_records=9)).config["cap_records"] == 9
            with pytest.raises(NotFound):
                await client.topic(f"{name}.none").state()
            planned = await topic.plan(cap_records=1)
            assert (planned.created, planned.config["cap_records"], planned.dropped) == (
                False,
                1,
                0,
            )
            await topic.append(1, 2, node="you")
            await topic.append("mine")
            assert [event.topic async for event in topic.read(limit=1)] == [name]
            assert name in [info.name async for info in client.topics(name)]
            assert await topic.since(0) == 0
            seen = []
            async with client.cursor(name) as cursor, client.watch(name, cursor=cursor) as watch:
                async for event in watch:
                    if isinstance(event, CaughtUp):
                        break
                    assert isinstance(event, Record)
                    seen.append(event.data)
            assert seen == [1, 2]
            await topic.append(3, node="you")
            async with client.cursor(name) as cursor, client.watch(name, cursor=cursor) as watch:
                event = await anext(watch)
                assert isinstance(event, Record)
                assert event.data == 3
            assert (await client.call(calls.metrics()))["topics_ready"] == 1
            await client.put_router(f"{name}>r", name, f"{name}.copy")
            assert [router.name async for router in client.routers(source=name)] == [f"{name}>r"]
            assert await client.drop_router(f"{name}>r")
            assert (await topic.delete(before=3)).deleted == 2
            assert await topic.drop()

    anyio.run(run, backend=backend)


def test_workers_keep_their_leases_and_give_back(url: str, name: str, backend: str) -> None:
    async def work(client: AsyncTopics) -> list[object]:
        seen = []
        queue = client.queue(name)
        async with queue.worker(concurrency=3, lease=1.0, drain=True) as worker:
            async for job in worker:
                async with job:
                    seen.append(job.data)
                    if job.data == 0:
                        await anyio.sleep(2.5)
                        assert not job.lost
                    if job.data == 1:
                        raise ValueError("no good")
        return seen

    async def run() -> None:
        async with AsyncTopics(url) as client:
            queue = client.queue(name)
            await queue.put()
            await queue.append(0, 1, 2)
            assert (await work(client))[:3] == [0, 1, 2]
            async with anyio.create_task_group() as tasks, queue.worker() as worker:
                tasks.start_soon(partial(stop_later, worker.stop))
                assert [job.data async for job in worker if await job.ack()] in ([], [1])
            assert [lease async for lease in queue.leases()] == []

    async def stop_later(stop: object) -> None:
        await anyio.sleep(0.5)
        assert callable(stop)
        stop()

    anyio.run(run, backend=backend)
