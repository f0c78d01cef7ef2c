"""A server that stops and is killed beneath a producer, a watcher and a worker."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.conftest import url_of
from tests.client.subscribing import Answering, stream
from tests.support.server import Server
from topics.client import CaughtUp, Record, Tombstone, Topics
from topics.formats.api.watch import CursorsId

ROUNDS = 6


@pytest.mark.slow
def test_restarts_and_kills_are_pauses(tmp_path: Path) -> None:
    """Every record is seen once and in order, every job is worked on, and no exception comes."""
    sent, seen = 0, []
    worked: Counter[int] = Counter()
    is_over = threading.Event()
    with Server(tmp_path / "data", shards=2) as server:
        with Topics(url_of(server)) as client:
            client.topic("events").put(durability="fsync")
            client.queue("jobs").put(durability="fsync")

        def produce() -> None:
            nonlocal sent
            with Topics(url_of(server)) as client, client.topic("events").producer() as producer:
                while not is_over.is_set():
                    producer.send(sent)
                    sent += 1
                    client.queue("jobs").append(sent)
                    time.sleep(0.002)

        def watch() -> None:
            with Topics(url_of(server)) as client, client.watch("events") as events:
                for event in events:
                    assert not isinstance(event, Tombstone)
                    if isinstance(event, Record):
                        seen.append(event.data)
                        if event.data == -1:
                            return

        def work() -> None:
            queue = Topics(url_of(server)).queue("jobs")
            with queue.client, queue.worker(lease=5.0) as worker:
                for job in worker:
                    with job:
                        worked[job.data] += 1
                        if job.data == -1:
                            return

        failures: list[BaseException] = []
        threads = [
            threading.Thread(target=guarded, args=(each, failures))
            for each in (produce, watch, work)
        ]
        for thread in threads:
            thread.start()
        server.env["TOPICS_PORT"] = str(server.port)
        for number in range(ROUNDS):
            time.sleep(0.5)
            server.restart("stop" if number % 2 else "kill")
        is_over.set()
        threads[0].join(60)
        with Topics(url_of(server)) as client:
            client.topic("events").append(-1)
            client.queue("jobs").append(-1)
            for thread in threads[1:]:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads)
        assert failures == []
        assert seen == [*range(sent), -1]
        assert worked.keys() == {*range(1, sent + 1), -1}


@pytest.mark.slow
def test_pauses_grow_while_streams_tell_that_the_server_stops() -> None:
    stops = b'event: error\ndata: {"code":503,"error":"the server is shutting down"}\n\n'
    there = b'id: %b\nevent: caught-up\ndata: {"topic":"t","head_seq":1}\n\n'
    last = there % CursorsId({"t": (1, 7)}).text()
    pauses: list[float] = []
    with Answering(*[stream(stops)] * 4, stream(last, then=b": hb\n\n")) as server:
        client = Topics(server.url, on_pause=lambda _failure, pause_s: pauses.append(pause_s))
        with client, client.watch("t") as events:
            assert next(events) == CaughtUp(head_seq=1, topic="t")
    for pause_s, most_s in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=True):
        assert most_s / 2 <= pause_s <= most_s


def guarded(act: Callable[[], None], failures: list[BaseException]) -> None:
    try:
        act()
    except BaseException as failure:
        failures.append(failure)
        raise
