"""The ways in which the Python client sends records: rates, and CPU time of the program.

Runs as a program: ``python -m tests.bench.senders --records 50000 --rounds 3``. The ways alternate.
Each sends records of 100 bytes to a topic with the durability ``disk``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from tests.support.server import Server
from topics.client import Topics
from topics.client.aio import AsyncTopics

DATA = "x" * 98


def append(url: str, records: int) -> None:
    with Topics(url) as client:
        for _ in range(records // 20):
            client.topic("append").append(DATA)


def producer(url: str, records: int) -> None:
    with Topics(url) as client, client.topic("producer").producer() as producer:
        for _ in range(records):
            producer.send(DATA)


def publisher(url: str, records: int) -> None:
    with Topics(url) as client, client.publisher() as publisher:
        for _ in range(records):
            publisher.publish("publisher", DATA)


def async_producer(url: str, records: int) -> None:
    async def run() -> None:
        async with AsyncTopics(url) as client, client.topic("p").producer() as producer:
            for _ in range(records):
                await producer.send(DATA)

    anyio.run(run)


def async_publisher(url: str, records: int) -> None:
    async def run() -> None:
        async with AsyncTopics(url) as client, client.publisher() as publisher:
            for _ in range(records):
                await publisher.publish("p", DATA)

    anyio.run(run)


WAYS: dict[str, tuple[Callable[[str, int], None], int]] = {
    "append": (append, 20),
    "producer": (producer, 1),
    "publisher": (publisher, 1),
    "async producer": (async_producer, 1),
    "async publisher": (async_publisher, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "data") as server:
        url = "http://{}:{}".format(*server.address)
        for _ in range(args.rounds):
            for name, (send, records_per_call) in WAYS.items():
                began, cpu_s = time.monotonic(), time.process_time()
                send(url, args.records)
                count = args.records // records_per_call
                rate = count / (time.monotonic() - began)
                cpu_us = 1e6 * (time.process_time() - cpu_s) / count
                print(f"{name:16} {rate:10,.0f}/s {cpu_us:8.1f} us of CPU each")


if __name__ == "__main__":
    main()
