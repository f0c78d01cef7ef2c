"""Many topics, checkpointed: ``python -m tests.bench.checkpointing [TOPICS]``.

Topics with a record each are made, then the log is filled until each shard has written another
checkpoint, which names them all. `many_topics_checkpointed` is that, for a server that runs; the
program prints what single appends took meanwhile, and what the server has on the disk.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.http_load import Client, Load, append, drive, post, quantiles_ms, several
from tests.support.server import Server

CONNECTIONS, FILL_RECORDS = 32, 1000
TOPICS = 100_000
_FIRST = b'{"disable_backpressure":true,"records":[{"data":1}]}'


def many_topics_checkpointed(server: Server, topics: int = TOPICS) -> None:
    """Make so many topics, and let all shards write a checkpoint of them."""
    make_topics(server, topics)
    checkpoint(server)


def make_topics(server: Server, topics: int) -> None:
    """Each by the append of its first record. The server must allow so many (TOPICS_MAX_TOPICS)."""
    numbers = itertools.count()

    def first() -> bytes:
        return post(f"/v0/topics/many-{next(numbers):07}", _FIRST)

    drive(server.address, [Load("make", CONNECTIONS, several(first, topics))])


def checkpoint(server: Server) -> None:
    """Fill log files until each shard has written one checkpoint that began after this call."""
    before, client = newest(server), Client(server.address)
    fillers = itertools.cycle([append(f"fill-{number}", FILL_RECORDS) for number in range(16)])
    # The one that may be under way does not count.
    while any(found < before[shard] + 2 for shard, found in newest(server).items()):
        client.ask(next(fillers))
    client.close()


def newest(server: Server) -> dict[str, int]:
    """Number of the newest checkpoint of each shard."""
    folders = (server.data_dir / "checkpoint").iterdir()
    return {
        folder.name: max((int(path.stem, 16) for path in folder.glob("*.ckpt")), default=0)
        for folder in folders
    }


def main() -> None:
    topics = int(sys.argv[1]) if len(sys.argv) > 1 else TOPICS
    with (
        tempfile.TemporaryDirectory(prefix="topics-checkpointing-") as folder,
        Server(Path(folder) / "data", shards=1, max_topics=topics + 100) as server,
    ):
        began = time.perf_counter()
        make_topics(server, topics)
        print(f"{topics} topics made in {time.perf_counter() - began:.1f} s", flush=True)
        beside = Load("beside", 1, lambda: append("beside", 1))
        fill = Load("fill", 1, lambda: append("fill", FILL_RECORDS))
        drive(server.address, [beside, fill], 10.0)
        p50, p99, p999, most = quantiles_ms(beside.seconds)
        print(f"appends: p50 {p50:.2f}, p99 {p99:.1f}, p99.9 {p999:.1f}, longest {most:.1f} ms")
        print(f"checkpoints: {newest(server)}")
        used = sum(path.stat().st_blocks * 512 for path in server.data_dir.rglob("*"))
        print(f"on the disk: {used / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
