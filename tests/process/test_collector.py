"""The cyclic garbage collector: collections stay short, and shards and the front create
no cycles.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    by_hand,
    delete,
    eager_merges,
    fill,
    no_syncs,
)
from tests.campaigns.backups import wait_for
from tests.support.api import Api, ok, request
from tests.support.reference_cycles import found_cycles
from tests.support.server import Server
from tests.support.ws import TEXT, frame_bytes, handshake
from topics.formats.api.diff_body import TagMatch
from topics.process import collector
from topics.process.collector import FREEZE_OBJECTS, freeze_survivors


@pytest.fixture(autouse=True)
def restore_collector() -> Iterator[None]:
    callbacks, enabled, thresholds = [*gc.callbacks], gc.isenabled(), gc.get_threshold()
    yield
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    (gc.enable if enabled else gc.disable)()


def test_surviving_objects_are_visited_only_until_they_are_frozen() -> None:
    gc.collect()
    freeze_survivors()
    assert not gc.get_objects(2)
    kept: list[list[int]] = []
    for _ in range(20):
        kept += ([] for _ in range(FREEZE_OBJECTS // 2))
        gc.collect()
        assert len(gc.get_objects(2)) < FREEZE_OBJECTS
    assert len(gc.get_objects()) < FREEZE_OBJECTS < gc.get_freeze_count()


@pytest.mark.slow
def test_garbage_cycles_are_collected_and_not_frozen() -> None:
    gc.collect()
    freeze_survivors()
    before = gc.get_freeze_count()
    for _ in range(FREEZE_OBJECTS):
        circle: list[Any] = []
        circle.append(circle)
    del circle
    gc.collect()
    # Other threads of the test create and delete objects in the meantime.
    assert gc.get_freeze_count() - before < FREEZE_OBJECTS // 2


@pytest.mark.slow
def test_only_a_collection_of_the_oldest_generation_freezes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector, "FREEZE_OBJECTS", 0)
    gc.collect()
    freeze_survivors()
    kept: list[list[int]] = [[] for _ in range(1000)]
    gc.collect(1)
    assert _observed_at(kept) == len(kept)
    gc.collect()
    assert not _observed_at(kept)


def _observed_at(objects: list[list[int]]) -> int:
    """Return how many of these objects are not frozen. Plain counts would include objects of other
    threads.
    """
    ids = {id(each) for each in objects}
    return sum(id(each) in ids for each in gc.get_objects())


@pytest.mark.slow
def test_a_shard_creates_no_reference_cycles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Create and remove topics, keys, tags, deletes, segments, merges and checkpoints."""
    by_hand(monkeypatch)
    no_syncs(monkeypatch)
    eager_merges(monkeypatch)
    client = Sealer(tmp_path / "data")
    run_all_changes(client)
    left = cycles(lambda: run_all_changes(client))
    client.kill()
    assert not left


def run_all_changes(client: Sealer) -> None:
    for number in range(6):
        fill(client, f"t{number}", "kept", rounds=6)
        delete(client, f"t{number}", match=TagMatch("Eq", "even"))
        client.put(f"t{number}", cap_records=3)
        client.seal()
    client.checkpoint()
    for number in range(6):
        client.delete(f"t{number}")
    client.checkpoint()
    client.later(200_000)


def cycles(act: Callable[[], None]) -> list[str]:
    gc.collect()
    gc.disable()
    act()
    return found_cycles()


class InspectedServer(Server):
    """A server whose front logs its reference cycles."""

    module, zygote = "tests.support.reference_cycles", None

    def cycles(self, number: int) -> list[str]:
        """Return the cycles that the front has created since the previous signal. This is signal
        ``number``.
        """
        assert self.log is not None, "the server has exited"
        os.kill(self.roles()["front 0"], signal.SIGUSR1)
        return list(self.log.event(f"cycles {number}", 10)["kinds"])


HELD = b'{"node":"n","wait_ms":20}'
WATCH = b'{"topics":{"a":{"from_seq":0}}}'
COMMANDS = (
    b'{"op":"subscribe","request_id":1,"topics":{"a":{"from_seq":0}}}',
    b'{"op":"publish","request_id":2,"topic":"a","records":[{"data":1}]}',
    b"{}",
)
EVENTS = "Accept: text/event-stream"
REQUESTS = [
    ("POST", "/v0/topics/a", b'{"records":[{"data":1}]}'),
    ("POST", "/v0/topics/a", b"[]"),
    ("GET", "/v0/topics/a", None),
    ("GET", "/v0/topics", None),
    ("GET", "/v0/topics/none", None),
    ("GET", "/v0/none", None),
    ("GET", "/metrics", None),
    ("POST", "/v0/topics/a/diff", b'{"from_seq":99,"wait_ms":20}'),
    ("POST", "/v0/topics/q/claim", HELD),
    ("POST", "/v0/topics/a/claim", HELD),
    ("POST", "/v0/watch", WATCH),
]
INPUTS = [
    *(request(*each) for each in REQUESTS),
    request("GET", "/v0/watch?topic=a", None),
    request("GET", "/v0/watch?topic=none", None),
    request("GET", "/v0/topics/q/work?node=n", None, EVENTS),
    request("GET", "/v0/topics/a/work?node=n", None, EVENTS),
    request("GET", "/v0/ws", None),
    b"no head\r\n\r\n",
    request("POST", "/v0/topics/a", WATCH)[:-3],
    handshake() + b"".join(frame_bytes(TEXT, each, mask=bytes(4)) for each in COMMANDS),
    handshake() + b"no frame, and no end",
]


@pytest.mark.slow
def test_a_front_creates_no_reference_cycles(tmp_path: Path) -> None:
    """Make requests, rejected requests, waiting calls, streams and sockets."""
    with InspectedServer(tmp_path / "data", shards=2) as server:
        with Api(server.address) as api:
            ok(api.put("a"), 201)
            ok(api.put("q", {"type": "queue"}), 201)
        server.cycles(1)  # Cycles of its start
        for data in INPUTS:
            leave_after(server, data)
        with Api(server.address) as api:
            wait_for_none(api)
        left = server.cycles(2)
    assert not left, ", ".join(left)


def leave_after(server: Server, data: bytes) -> None:
    """Connect, send these bytes, read the response and disconnect."""
    with socket.create_connection(server.address, timeout=5) as client:
        client.sendall(data)
        client.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while client.recv(65536):
                pass


def wait_for_none(api: Api) -> None:
    """Wait until this client's connection is the only one."""
    wait_for(lambda: b"topics_connections_open 1\n" in api.call("GET", "/metrics").body, 10.0)
