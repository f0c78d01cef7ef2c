"""The client for asyncio and trio: its coroutines, and the effect of a cancellation on its tasks.

The rules of the client are tested with the client for threads, which is generated from this one.
"""

from __future__ import annotations

import gc
import time

import anyio
import pytest

from topics.client import (
    CaughtUp,
    ClientClosed,
    Conflict,
    ConnectionLost,
    Invalid,
    NotFound,
    Record,
)
from topics.client.aio import AsyncJob, AsyncQueue, AsyncTopics, AsyncWorker
from topics.client.aio.caller import AsyncCaller

pytestmark = [
    pytest.mark.parametrize("backend", ["asyncio", "trio"]),
    # The HTTP libraries leave their async generators to the garbage collector if a stream is not
    # read to its end.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]


async def queue_of(client: AsyncTopics, name: str, *jobs: object) -> AsyncQueue:
    queue = client.queue(name)
    await queue.put()
    await queue.append(*jobs)
    return queue


async def counts(queue: AsyncQueue) -> tuple[int, int]:
    found = (await queue.state()).queue
    assert found is not None
    return found.ready, found.in_flight


def test_topics_watches_and_cursors(url: str, name: str, backend: str) -> None:
    async def run() -> None:
        async with AsyncTopics(url, node="me") as client:
            topic = client.topic(name)
            with pytest.raises(NotFound):
                await topic.state()
            assert (await topic.put(cap_records=9)).config["cap_records"] == 9
            assert (await topic.plan(cap_records=1)).dropped == 0
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
            await client.put_router(f"{name}>r", name, f"{name}.copy")
            assert (await client.router(f"{name}>r")).source == name
            assert [router.name async for router in client.routers(source=name)] == [f"{name}>r"]
            assert await client.drop_router(f"{name}>r")
            assert (await topic.delete(before=3)).deleted == 2
            assert await topic.drop()

    anyio.run(run, backend=backend)


def test_queues_and_workers(
    url: str, name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.client.aio.worker.EXTEND_DIVISOR", 6000.0)  # every 10 ms
    extend = AsyncWorker._extend

    async def run() -> None:
        extended = anyio.Event()

        async def noted(worker: AsyncWorker, own: AsyncCaller) -> bool:
            is_extended = await extend(worker, own)
            if is_extended and worker._held:
                extended.set()
            return is_extended

        monkeypatch.setattr(AsyncWorker, "_extend", noted)
        async with AsyncTopics(url) as client:
            queue = await queue_of(client, name, "extended", "bad", "by hand")
            async with queue.worker(lease=60.0, drain=True) as worker:
                async for job in worker:
                    async with job:
                        if job.data == "extended":
                            with anyio.fail_after(60):
                                await extended.wait()
                        if job.data == "bad":
                            raise ValueError("no good")
                        assert await job.ack()
            (again,) = await queue.claim("me", wait=10)
            assert (again.data, again.last_error) == ("bad", "ValueError: no good")
            assert await queue.nack("me", again) == []
            assert await queue.ack("me", again) == [again.seq]  # its lease has expired

    anyio.run(run, backend=backend)


def test_stop_ends_a_waiting_claim(url: str, name: str, backend: str) -> None:
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


def test_an_exception_in_the_loop_is_not_wrapped_in_an_exception_group(
    url: str, name: str, backend: str
) -> None:
    async def run() -> None:
        async with AsyncTopics(url) as client:
            queue = await queue_of(client, name, 1, 2)
            with pytest.raises(KeyError):
                async with queue.worker(lease=60.0) as worker:
                    raise KeyError((await anext(worker)).data)
            assert await counts(queue) == (2, 0)  # the job was released

    anyio.run(run, backend=backend)


def test_run_handles_jobs_concurrently(url: str, name: str, backend: str) -> None:
    async def run() -> None:
        together, held = anyio.Event(), list[int]()

        async def handle(job: AsyncJob) -> None:
            held.append(job.data)
            if len(held) == 3:
                together.set()
            await together.wait()
            if job.data == 2:
                raise ValueError("no good")

        async with AsyncTopics(url) as client:
            queue = await queue_of(client, name, *range(3))
            with anyio.fail_after(60):
                await queue.worker(drain=True).run(handle, concurrency=3)
            assert sorted(held) == [0, 1, 2]
            (again,) = await queue.claim("me", wait=10)
            assert (again.data, again.last_error) == (2, "ValueError: no good")

    anyio.run(run, backend=backend)


def test_a_failure_of_run_is_not_wrapped_in_an_exception_group(
    url: str, name: str, backend: str
) -> None:
    async def run() -> None:
        async with AsyncTopics(url) as client:
            await client.topic(name).append(1)
            with pytest.raises(Conflict):
                await client.queue(name).worker().run(anyio.sleep, concurrency=2)  # type: ignore[arg-type]

    anyio.run(run, backend=backend)


def test_breaking_out_of_a_loop_releases_all_resources(
    url: str, name: str, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "topics.client")

    async def run() -> None:
        async with AsyncTopics(url) as client:
            await client.topic(name).append(1, 2)
            async for event in client.watch(name):
                assert isinstance(event, Record)
                break
        with anyio.CancelScope() as scope:
            async with AsyncTopics(url) as client, client.watch(name) as watch:
                async for event in watch:
                    if isinstance(event, CaughtUp):
                        scope.cancel()

    anyio.run(run, backend=backend)
    gc.collect()
    assert caplog.records == []


def test_a_watch_may_be_closed_by_another_task(url: str, name: str, backend: str) -> None:
    async def run() -> None:
        async with AsyncTopics(url) as client, anyio.create_task_group() as tasks:
            await client.topic(name).append(1)
            watch = client.watch(name)
            assert isinstance(await anext(watch), Record)
            tasks.start_soon(watch.close)
            with anyio.fail_after(10):
                assert [event async for event in watch if isinstance(event, Record)] == []

    anyio.run(run, backend=backend)


def test_closing_the_client_ends_its_calls(url: str, name: str, backend: str) -> None:
    ended: list[object] = []

    async def run() -> None:
        async with AsyncTopics(url) as client, anyio.create_task_group() as tasks:
            await client.topic(name).append(1)
            await client.queue(f"{name}.q").put()

            async def watch() -> None:
                ended.append([event async for event in client.watch(name)][:1])

            async def claim() -> None:
                with pytest.raises(ClientClosed):
                    await client.queue(f"{name}.q").claim("n", wait=20)
                ended.append("claim")

            tasks.start_soon(watch)
            tasks.start_soon(claim)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(10):
                await client.close()

    anyio.run(run, backend=backend)
    assert "claim" in ended
    assert len(ended) == 2


def test_a_producer_and_a_publisher_send_from_a_background_task(
    url: str, name: str, backend: str
) -> None:
    async def run() -> None:
        async with AsyncTopics(url, node="me") as client:
            topic = client.topic(name)
            async with topic.producer() as producer:
                sent = [await producer.send(number, tag="t") for number in range(1500)]
                await producer.flush(timeout=60)
                assert [await each for each in sent[:3]] == [1, 2, 3]
            async with client.publisher() as publisher:
                sent = [await publisher.publish(name, number) for number in range(500)]
                assert [await each for each in sent[:2]] == [1501, 1502]
            assert (await topic.state()).head_seq == 2000
            with pytest.raises(RuntimeError, match="async with"):
                await topic.producer().send(1)
            async with topic.producer() as producer:
                sent = [await producer.send(1), await producer.send(2, tag="t" * 300)]
                with pytest.raises(ExceptionGroup, match="1 of 2 records failed"):
                    await producer.close()
            assert await sent[0] == 2001
            with pytest.raises(Invalid):
                await sent[1]

    anyio.run(run, backend=backend)


def test_a_cancelled_producer_ends_quickly_without_a_server(name: str, backend: str) -> None:
    async def run() -> None:
        async with AsyncTopics("http://127.0.0.1:1") as client:
            with anyio.move_on_after(0.1):
                async with client.topic(name).producer() as producer:
                    sent = await producer.send(1)
                    await anyio.sleep_forever()
            assert isinstance(sent.exception(), ConnectionLost)

    began = time.monotonic()
    anyio.run(run, backend=backend)
    assert time.monotonic() - began < 10  # far less than the deadline of a record

    anyio.run(run, backend=backend)


def test_a_record_whose_handling_was_cancelled_is_read_again_by_the_next_run(
    url: str, name: str, backend: str
) -> None:
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
                assert cursor.positions[name][0] == 1

    anyio.run(run, backend=backend)


def test_a_cancelled_worker_releases_its_jobs(url: str, name: str, backend: str) -> None:
    async def run() -> None:
        async with AsyncTopics(url) as client:
            queue = await queue_of(client, name, 1, 2)
            with anyio.CancelScope() as scope:
                async with queue.worker(lease=60.0) as worker:
                    async for job in worker:
                        async with job:
                            scope.cancel()
                            await anyio.sleep_forever()
            assert await counts(queue) == (2, 0)

    anyio.run(run, backend=backend)
