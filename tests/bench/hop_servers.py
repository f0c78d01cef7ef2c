"""Servers that take time stamps, and the clients that `tests.bench.hops` sends through them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from tests.bench.bare import BarePath
from tests.bench.hop_paths import FRONT, SHARD, Span, Stamped
from tests.bench.http_load import Client, append
from tests.bench.live_clients import opened, stream, until
from tests.bench.preload.hop_stamps import FOLDER, Stamps, install
from tests.support.server import ROOT, Server

PRELOAD = ROOT / "tests/bench/preload"
BARE_BORDERS = ("recv", "bell", "awake", "bare write", "bare written", "synced")
Ask = Callable[[int], list[Span]]


class StampedServer(Server):
    """A server of a checkout whose processes write their stamps into ``folder``."""

    module = "hop_stamps"

    def __init__(self, data_dir: Path, root: Path, folder: Path, shards: int) -> None:
        super().__init__(data_dir, **({"shards": shards} if shards else {}))
        self.root, self._folder = root, folder

    def start(self, timeout_s: float = 30.0) -> None:
        self._folder.mkdir()
        told = {"PYTHONPATH": str(PRELOAD), FOLDER: str(self._folder)}
        self.env |= told
        super().start(timeout_s)


class StampedBarePath(BarePath):
    """The bare path whose two processes write their stamps into ``folder``."""

    def __init__(self, folder: Path, *, synced: bool) -> None:
        folder.mkdir()
        super().__init__(folder, synced=synced)
        self.stamps = folder

    def processes(self) -> dict[str, list[Stamped]]:
        front, shard = (Stamped(self.stamps / str(pid)) for pid in self._processes)
        return {FRONT: [front], SHARD: [shard]}

    def _front(self) -> NoReturn:
        install(Stamps(self.stamps), BARE_BORDERS)
        super()._front()

    def _shard(self) -> NoReturn:
        install(Stamps(self.stamps), BARE_BORDERS)
        super()._shard()


def stamped_of(roles: Mapping[str, int], folder: Path) -> dict[str, list[Stamped]]:
    """The stamps of the fronts and of the shards."""
    found: dict[str, list[Stamped]] = {FRONT: [], SHARD: []}
    for role, pid in roles.items():
        found[role.split()[0]].append(Stamped(folder / str(pid)))
    return found


@contextlib.contextmanager
def appender(
    address: tuple[str, int], durability: str, pause_s: float, _server: bool
) -> Iterator[Ask]:
    """Sends appends, one after the other, with a pause before each."""
    client, request = Client(address), append("hops", 1)
    client.ask(append("hops", 1, b'{"durability":"%b"}' % durability.encode()))

    def ask(count: int) -> list[Span]:
        spans = []
        for _ in range(count):
            if pause_s:
                time.sleep(pause_s)
            began = time.monotonic_ns()
            client.ask(request)
            spans.append((began, time.monotonic_ns()))
        return spans

    try:
        yield ask
    finally:
        client.close()


@contextlib.contextmanager
def publisher(
    address: tuple[str, int], durability: str, pause_s: float, server: bool
) -> Iterator[Ask]:
    """Publishes to one subscriber, one after the other, with a pause before each."""
    client, request = Client(address), append("hops", 1)
    client.ask(append("hops", 1, b'{"durability":"%b"}' % durability.encode()))
    sock = stream(address, client, "hops") if server else opened(address, "/")

    def ask(count: int) -> list[Span]:
        spans = []
        for _ in range(count):
            time.sleep(pause_s)
            began = time.monotonic_ns()
            client.send(request)
            until(sock, b"\n\n")
            spans.append((began, time.monotonic_ns()))
            while not client.collect():
                pass
        return spans

    try:
        yield ask
    finally:
        sock.close()
        client.close()
