"""Event streams with the eventsource package on Node.js."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from tests.support.api import Api, ok
from tests.support.event_sources import (
    TIMEOUT_S,
    Event,
    at,
    leaves_the_session_to_another,
    reconnects_by_itself,
    works_again_after_a_cut,
)
from tests.support.queues import Queue, work_path
from tests.support.relay import Relay
from tests.support.sse import CAUGHT_UP, session

FOLDER = Path(__file__).parent


class NodeSource:
    """A Node.js process that prints events, and a thread that collects them."""

    def __init__(self, url: str, *bearer: str) -> None:
        program = shutil.which("node")
        if program is None:
            pytest.skip("Node.js is not installed")
        if not (FOLDER / "node_modules" / "eventsource").exists():
            pytest.skip(
                "the npm package eventsource is not installed: npm ci --prefix tests/contract/live"
            )
        self._process = subprocess.Popen(
            [program, "eventsource.mjs", url, *bearer],
            cwd=FOLDER,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self.events: list[Event] = []
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)
        self._thread.join(TIMEOUT_S)

    def wait(self, enough: Callable[[list[Event]], bool]) -> list[Event]:
        while not enough(self.events):
            self.events.append(json.loads(self._lines.get(timeout=TIMEOUT_S)))
        return self.events


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 63], ids=["map", "number"])
def test_eventsource_reconnects_automatically(
    api: Api, topic: str, url: str, relay: Relay, others: int
) -> None:
    names = [f"{topic}.{number}.".ljust(255, "n") for number in range(others)]
    for name in names:
        ok(api.put(name), 201)
    if others:
        url = session(api, [topic, *names])["stream_url"]
    with NodeSource(at(relay.address, url)) as source:
        reconnects_by_itself(source, api, topic, relay)
    assert relay.connections == 3


@pytest.mark.slow
def test_two_eventsources_on_one_session_do_not_disconnect_each_other_forever(
    api: Api, topic: str, url: str
) -> None:
    with NodeSource(at(api.address, url)) as first:
        first.wait(lambda events: any(event["event"] == CAUGHT_UP for event in events))
        with NodeSource(at(api.address, url)) as second:
            leaves_the_session_to_another(first, second, api, topic)


@pytest.mark.slow
def test_eventsource_gets_its_jobs_again_after_a_reconnect(queue: Queue, relay: Relay) -> None:
    path = work_path(queue.name, node="w", max=2, lease_ms=3_600_000)
    with NodeSource(at(relay.address, path)) as source:
        works_again_after_a_cut(source, queue, relay)
    assert relay.connections == 2
