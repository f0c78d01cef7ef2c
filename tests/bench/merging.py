"""What a long history of slow capped topics costs: files, start, tag look-ups, and appends beside
the merges.

    python -m tests.bench.merging [SEALS]

A fast topic fills log files of 4 MiB; beside it 1,000 slow topics get a record each in turn, ten to
a log file, and one topic a tagged record in each file. SEALS is how many files are sealed (300).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path

from tests.bench.http_load import Client, append, post, quantiles_ms
from tests.bench.processes import cpu_s, quiet
from tests.support.server import Server

FILE_BYTES = 4 << 20
BATCHES = 15  # of 1,000 records that fill a log file
SLOW_TOPICS, SLOW_IN_A_FILE = 1000, 10
LOOKS, STARTS = 30, 3
CAP = b'{"durability":"disk","cap_records":%d}'


def run(folder: Path, seals: int) -> None:
    server = Server(folder / "data", shards=1, wal_file_bytes=FILE_BYTES)
    with server:
        client, seconds = Client(server.address), array("d")
        fast = append("fast", 1000, CAP % 1000)
        slow = [append(f"slow-{number}", 1, CAP % 5) for number in range(SLOW_TOPICS)]
        began = cpu_s(server.roles()["shard 0"])
        for file in range(seals):
            for _ in range(BATCHES):
                client.ask(fast)
            client.ask(post("/v0/topics/tagged", _tagged(file)))
            for number in range(SLOW_IN_A_FILE):
                request = slow[(file * SLOW_IN_A_FILE + number) % SLOW_TOPICS]
                sent = time.perf_counter()
                client.ask(request)
                seconds.append(time.perf_counter() - sent)
        quiet(server)
        time.sleep(12)  # a checkpoint that only frees room comes 5 s after the last one
        used = cpu_s(server.roles()["shard 0"]) - began
        p50, p99, p999, _ = quantiles_ms(seconds)
        print(f"single appends: p50 {p50:.2f}, p99 {p99:.1f}, p99.9 {p999:.1f} ms")
        print(f"CPU of the shard, {seals} seals: {used:.1f} s", flush=True)
        _look(server, "after the load")
        starts = [_restart(server) for _ in range(STARTS)]
        print(f"start after a kill: {statistics.median(starts):.2f} s")
        _look(server, "after a start")


def _tagged(number: int) -> bytes:
    record = b'{"data":%d,"tag":"t%d"}' % (number, number)
    return b'{"config":%b,"records":[%b]}' % (CAP % 100_000, record)


def _restart(server: Server) -> float:
    server.kill()
    began = time.perf_counter()
    server.start()
    return time.perf_counter() - began


def _look(server: Server, when: str) -> None:
    """Files, and a look-up of a tag that no record has."""
    paths = [*(server.data_dir / "segment" / "00").glob("*.seg")]
    room = sum(path.stat().st_blocks * 512 for path in paths)
    client, times = Client(server.address), []
    request = post("/v0/topics/tagged/delete", b'{"match":["tag","Eq","none"]}')
    for _ in range(LOOKS):
        began = time.perf_counter()
        client.ask(request)
        times.append(time.perf_counter() - began)
    first, later = times[0] * 1000, statistics.median(times[1:]) * 1000
    print(
        f"{when}: {len(paths)} segments, {room / 1e6:.1f} MB; tag look-up {later:.2f} ms"
        f" (the first {first:.1f})",
        flush=True,
    )


def main() -> None:
    seals = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    with tempfile.TemporaryDirectory(prefix="topics-merging-") as folder:
        run(Path(folder), seals)


if __name__ == "__main__":
    main()
