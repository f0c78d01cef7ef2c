"""How a whole server comes back: ``python -m tests.bench.restarts [BEFORE] [--only NAME]
[--turns 2] [--topics 100000] [--seconds 12] [--dir DIR]``.

Each start is one of a server process, until /v0/ready says 200. The page cache is dropped before
it, where the user may do that (root). With BEFORE, another checkout, both take turns.

    stop            many topics with one record each, stopped in order; one shard
    kill            the same topics, and a kill
    CLASS N x M     killed in the middle of writing at full speed: N clients, M records a request,
                    default sizes of files, a shard for each core

``recovered`` is the longest recovery of a shard, which the other shards and the fronts run beside,
``CPU`` what the processes of the server have used by then, ``shards`` the anonymous memory of
the shards, ``log`` the log files on the disk when the server was killed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec import Raw

from tests.bench.peers.load import RECORD, Client, Connection, append, drive, repeated
from tests.bench.peers.replies import Http
from tests.bench.processes import anon_mb, cpu_s, server_of
from tests.support.server import ROOT, Server
from topics.config import Settings
from topics.engine.changes import reservation
from topics.engine.changes.append import Append, decide
from topics.engine.locators import in_log
from topics.engine.now import Now
from topics.formats.api.append_body import AppendBody, RecordIn
from topics.storage.data_dir import encode_meta
from topics.storage.recovery.steps import recover

TOPICS = 16
GROUP_BYTES = 4 << 20
LOADS = (("fsync", 16, 1), ("disk", 16, 1), ("fsync", 4, 1000), ("disk", 4, 1000))
START_S = 120.0
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


class Start(NamedTuple):
    """One start."""

    seconds: float
    recovered_s: float
    cpu_s: float
    shards_mb: float
    log_mb: float


Scene = Callable[[Path, Path], Server]  # a root and a folder; its server is stopped or killed


def many_topics(count: int, *, stop: bool) -> Scene:
    """A server of so many topics."""

    def run(root: Path, folder: Path) -> Server:
        build(folder, count)
        (folder / "meta").write_bytes(encode_meta(1))
        server = server_of(root, folder, shards=1)
        server.start(START_S)
        server.stop() if stop else server.kill()
        return server

    return run


def build(folder: Path, topics: int) -> None:
    """Write a record to each of so many topics, as a shard does."""
    settings = Settings()
    sync_ms, file_bytes = settings.wal_sync_ms, settings.wal_file_bytes
    shard = recover(folder, 0, 1, now(), wal_file_bytes=file_bytes, wal_sync_ms=sync_ms)
    engine, wal, flushed = shard.engine, shard.wal, 0
    for number in range(topics):
        change = decide(engine.table, f"topic-{number}", AppendBody([RecordIn(Raw(RECORD))]), now())
        assert isinstance(change, Append)
        for frame in change.frames:
            wal.append(frame)
        reserved = reservation.decide(change.topic)
        for frame in reserved.frames if reserved else ():
            wal.append(frame)
        engine.commit(change, in_log(0), now())
        if wal.next_lsn - flushed > GROUP_BYTES:
            flushed = wal.next_lsn
            wal.flush(sync=False)
            wal.take_progress()
    wal.stop()


def now() -> Now:
    return Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)


def full_speed(durability: str, clients: int, records: int, seconds: float) -> Scene:
    """A server that is killed while its clients write."""
    config = b'"config":{"durability":"%b"},' % durability.encode()
    requests = [append(f"topic-{number}", records, config) for number in range(TOPICS)]

    def run(root: Path, folder: Path) -> Server:
        server = server_of(root, folder)
        server.start(START_S)
        writers = [
            (Connection(server.address), repeated(requests[number % TOPICS], Http(), records))
            for number in range(clients)
        ]
        writing = threading.Thread(target=_write, args=(writers,))
        writing.start()
        time.sleep(seconds)
        server.kill()
        writing.join()
        return server

    return run


def _write(writers: list[Client]) -> None:
    with contextlib.suppress(OSError, AssertionError):  # the server is killed
        drive(writers, 1e6)


def start_again(server: Server) -> Start:
    """Start with cold caches, and look at it; the server is killed afterwards."""
    log_bytes = sum(path.stat().st_size for path in server.data_dir.glob("wal/*/*.wal"))
    drop_caches()
    began = time.perf_counter()
    server.start(START_S)
    seconds = time.perf_counter() - began
    shards = [pid for role, pid in server.roles().items() if role.startswith("shard")]
    used_s = cpu_s(*server.pids())
    assert server.log is not None
    lines = server.log.events()
    recovered_s = max(line["seconds"] for line in lines if line["event"] == "recovered")
    found = Start(seconds, recovered_s, used_s, anon_mb(shards), log_bytes / 1e6)
    server.kill()
    return found


def drop_caches() -> None:
    """Let the next start read from the disk, where that is allowed."""
    os.sync()
    if os.access(DROP_CACHES, os.W_OK):
        DROP_CACHES.write_text("3")


def show(name: str, root: Path, starts: list[Start]) -> None:
    columns = map(statistics.median, zip(*starts, strict=True))
    print(f"{name:<16}{root.name:<14}" + "".join(f"{each:>11.2f}" for each in columns), flush=True)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("before", type=Path, nargs="?", help="another checkout")
    options.add_argument("--only", default="", help="scenes whose name holds this")
    options.add_argument("--turns", type=int, default=2)
    options.add_argument("--topics", type=int, default=100_000)
    options.add_argument("--seconds", type=float, default=12.0, help="of writing before a kill")
    options.add_argument("--dir", type=Path, default=None, help="where the data are")
    chosen = options.parse_args()
    scenes: dict[str, Scene] = {
        "stop": many_topics(chosen.topics, stop=True),
        "kill": many_topics(chosen.topics, stop=False),
    }
    for durability, clients, records in LOADS:
        name = f"{durability} {clients} x {records}"
        scenes[name] = full_speed(durability, clients, records, chosen.seconds)
    roots = [chosen.before.resolve(), ROOT] if chosen.before else [ROOT]
    names = ("seconds", "recovered", "CPU", "shards MB", "log MB")
    print(f"{'':<16}{'checkout':<14}" + "".join(f"{name:>11}" for name in names))
    for name, scene in scenes.items():
        if chosen.only not in name:
            continue
        starts: dict[Path, list[Start]] = {root: [] for root in roots}
        for root in roots * chosen.turns:
            with tempfile.TemporaryDirectory(prefix="topics-restarts-", dir=chosen.dir) as folder:
                starts[root].append(start_again(scene(root, Path(folder))))
        for root in roots:
            show(name, root, starts[root])


if __name__ == "__main__":
    main()
