"""Much data and many topics, against a real server over HTTP: ``python -m tests.bench.retention
[--only abcde] [--gb 1]``.

    a  a topic of so many GB (records of 200 bytes), written 1,000 a request and read from its start
       by 1,000, while the server lives under a memory limit of a third of it: >= 1,000,000
       records/s, and memory stays flat; then what appends to another topic of the shard take beside
       a reader
    b  10,000 topics written in turn: >= 50 % of the throughput of one topic, with the same batches
       in the same run
    c  start after a clean stop with 10 M records in segments: <= 3 s until it is ready
    d  delete of one tag among a million in one topic: <= 5 ms, Eq and Glob, in the log and in
       segments
    e  one delete of 1.5 M records by their tag: no append to another topic of the shard waits for
       50 ms

The limit is a memory cgroup (v1, or v2 where it is mounted alone) when this may make one, and it
counts the page cache of the server's files, too; without, memory is only sampled. Beside a: reading
the same files with ``read``, writing as many bytes to a file, and one process that sends as long
answers to another. The clients take part of the same cores: ``CPU`` is what shard and front need
for 1,000 records, so that what waits for other processes of the machine can be told. Larger topics
need room: a takes 1.3 times its GB.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.http_load import (
    Client,
    Load,
    TaggedAppends,
    append,
    drive,
    post,
    round_robin,
    several,
    verdict,
)
from tests.bench.processes import quiet, rss_mb
from tests.bench.retention_large import BATCH, large_delete, large_topic
from tests.support.server import Server

TAGS = 1_000_000


def wait_sealed(server: Server, records: int, timeout_s: float = 120) -> None:
    """Until so many records are in segments, as the log tells."""
    assert server.log is not None
    deadline = time.monotonic() + timeout_s
    while (
        sum(
            event.get("records", 0)
            for event in server.log.events()
            if event.get("event") == "segment sealed"
        )
        < records
    ):
        assert time.monotonic() < deadline, f"not sealed:\n{server.log_tail}"
        time.sleep(0.1)


# b


def many_topics(folder: Path, topics: int, seconds: float) -> None:
    with Server(folder / "data", shards=1) as server:
        names = [f"topic-{number:05d}" for number in range(topics)]
        made = drive(
            server.address, [Load("make", 16, _iterator([append(name, 1) for name in names]))]
        )
        print(f"b  made {topics:,} topics in {made:.1f} s", flush=True)
        for batch, connections in ((1, 16), (100, 8), (1000, 4)):
            requests = (
                round_robin([append(name, batch) for name in names])
                if batch < BATCH
                else _large_round(names, batch)
            )
            rates: dict[str, list[float]] = {"one": [], "many": []}
            for _ in range(3):  # in turn, so that what the machine does besides meets both
                for kind, source in (
                    ("one", lambda batch=batch: append_one[batch]),
                    ("many", requests.__next__),
                ):
                    load = Load(kind, connections, source)
                    took = drive(server.address, [load], seconds / 3)
                    rates[kind].append(len(load.seconds) * batch / took)
            one, many = (statistics.median(rates[kind]) for kind in ("one", "many"))
            print(
                f"b  batch {batch}: one topic {one:,.0f} records/s, {topics:,} topics {many:,.0f}: "
                f"{many / one:.0%} {verdict(many >= one / 2)}",
                flush=True,
            )


append_one = {batch: append("one", batch) for batch in (1, 100, 1000)}


def _large_round(names: list[str], batch: int) -> Iterator[bytes]:
    """Made as they are sent: all of them at once would need gigabytes."""
    body = append_one[batch].split(b"\r\n\r\n", 1)[1]
    while True:
        for name in names:
            yield post(f"/v0/topics/{name}?return_seqs=false", body)


def _iterator(requests: list[bytes]) -> Callable[[], bytes | None]:
    left = iter(requests)
    return lambda: next(left, None)


# c


def start(folder: Path, records: int, topics: int) -> None:
    server = Server(folder / "data", shards=1)
    with server:
        names = [f"topic-{number:05d}" for number in range(topics)]
        requests = _large_round(names, BATCH)
        took = drive(
            server.address, [Load("write", 4, several(requests.__next__, records // BATCH))]
        )
        wait_sealed(server, int(records * 0.98 - 300_000))
        quiet(server)
    for _ in range(3):
        began = time.perf_counter()
        server.start()
        ready = time.perf_counter() - began
        assert server.log is not None
        recovered = next(
            event["seconds"] for event in server.log.events() if event.get("event") == "recovered"
        )
        rss = rss_mb(server.pids())
        server.stop()
        print(
            f"c  {records:,} records in {topics:,} topics (written in {took:.0f} s): ready after"
            f" {ready:.2f} s {verdict(ready <= 3)}, "
            f"of which recovery {recovered:.2f} s; anonymous {rss[0]:.0f} MB, mapped {rss[1]:.0f}"
            " MB",
            flush=True,
        )


# d


def deletes(folder: Path, *, sealed: bool, rounds: int) -> None:
    with Server(
        folder / "data", shards=1, **({} if sealed else {"wal_file_bytes": 1 << 30})
    ) as server:
        drive(
            server.address,
            [Load("write", 2, several(TaggedAppends("tagged", BATCH, TAGS), TAGS // BATCH))],
        )
        if sealed:
            wait_sealed(server, int(TAGS * 0.7))
        quiet(server)
        client = Client(server.address)
        for op, first in (("Eq", 11), ("Glob", 22)):
            server_ms, client_ms = array("d"), array("d")
            for number in range(first, TAGS, TAGS // rounds):
                tag = f"tag-{number:07d}"
                text = f'{{"match":["tag","{op}","{tag}{"*" * (op == "Glob")}"]}}'
                request = post("/v0/topics/tagged/delete", text.encode())
                began = time.perf_counter()
                answer = client.ask_json(request)
                client_ms.append((time.perf_counter() - began) * 1000)
                server_ms.append(answer["performance"]["server_total_ms"])
                assert answer["deleted"] == 1, answer
            where = "in segments" if sealed else "in the log"
            print(
                f"d  {op}, {where}: server median {statistics.median(server_ms):.2f} ms, worst"
                f" {max(server_ms):.2f} ms; client median "
                f"{statistics.median(client_ms):.2f} ms, first {client_ms[0]:.2f} ms, worst"
                f" {max(client_ms):.2f} ms "
                f"{verdict(statistics.median(client_ms) <= 5)} (worst:"
                f" {verdict(max(client_ms) <= 5)})",
                flush=True,
            )


# e


def delete_many(folder: Path) -> None:
    with Server(folder / "data", shards=1) as server:
        large_delete(server)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="abcde")
    options.add_argument("--gb", type=float, default=1.0)
    options.add_argument("--topics", type=int, default=10_000)
    options.add_argument("--records", type=int, default=10_000_000, help="of c")
    options.add_argument("--seconds", type=float, default=15.0, help="of each side of b")
    options.add_argument("--rounds", type=int, default=100, help="deletes of each kind")
    options.add_argument(
        "--dir",
        type=Path,
        default=None,
        help="where to write, default the system's folder for temporary files",
    )
    chosen = options.parse_args()
    parts: dict[str, list[Callable[[Path], None]]] = {
        "a": [lambda folder: large_topic(folder, chosen.gb)],
        "b": [lambda folder: many_topics(folder, chosen.topics, chosen.seconds)],
        "c": [
            lambda folder: start(folder, chosen.records, 1),
            lambda folder: start(folder, chosen.records, 1000),
        ],
        "d": [
            lambda folder: deletes(folder, sealed=False, rounds=chosen.rounds),
            lambda folder: deletes(folder, sealed=True, rounds=chosen.rounds),
        ],
        "e": [delete_many],
    }
    for name in chosen.only:
        for part in parts[name]:
            folder = Path(tempfile.mkdtemp(prefix="topics-retention-", dir=chosen.dir))
            try:
                part(folder)
            finally:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
