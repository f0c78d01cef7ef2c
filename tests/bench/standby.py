"""Cost of a standby: ``python -m tests.bench.standby [--topics 100000] [--gib 5] [--windows 2]``.

A server gets many topics and then ``--gib`` of records, in batches that go to one topic after the
other, with a pause between two batches. One more client appends single records, class `fsync`, and
measures them. Windows without and with a standby (``topics standby run --every 5s``) alternate.
Before each window with a standby, one round copies all earlier data, which is measured separately.
Reported for each window: records/s, the quantiles of the single appends in ms, CPU seconds of the
server for each GiB appended. Reported for each generation that is still kept: bytes received, and
bytes that the server has written to its log since the one before. The standby belongs to another
machine, so its process has the lowest priority here, and its directory is in memory (``--copy``).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.bench.processes import cpu_s
from tests.support.api import Api, ok
from tests.support.server import ROOT, Server
from topics.storage.standby import Standby

BATCH_RECORDS = 1000
RECORD = json.dumps({"data": "x" * 180})
WRITERS = 2


class Load:
    """Clients that append to many topics, and one that measures single appends."""

    def __init__(self, server: Server, topics: int, pause_s: float) -> None:
        self._server, self._topics, self._pause_s = server, topics, pause_s
        self.ending = threading.Event()
        self.records = 0
        self.latencies_ms: list[float] = []
        self._threads = [
            *(threading.Thread(target=self._write, args=(n,)) for n in range(WRITERS)),
            threading.Thread(target=self._measure),
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        for thread in self._threads:
            thread.join()

    def _post(self, connection: http.client.HTTPConnection, topic: str, body: str) -> None:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/v0/topics/{topic}", body, headers)
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, text

    def _write(self, number: int) -> None:
        connection = http.client.HTTPConnection(*self._server.address)
        body = f'{{"records":[{",".join([RECORD] * BATCH_RECORDS)}]}}'
        while not self.ending.is_set():
            self._post(connection, f"t{number % (self._topics - 1):06d}", body)
            number += WRITERS
            self.records += BATCH_RECORDS
            time.sleep(self._pause_s)

    def _measure(self) -> None:
        connection = http.client.HTTPConnection(*self._server.address)
        while not self.ending.is_set():
            began = time.perf_counter()
            self._post(connection, "single", f'{{"records":[{RECORD}]}}')
            self.latencies_ms.append(1000 * (time.perf_counter() - began))
            time.sleep(0.002)


def make(server: Server, topics: int) -> None:
    """Create the topics."""
    with Api(server.address) as api:
        ok(api.put("single", {"durability": "fsync"}), 201)
        for number in range(topics - 1):
            ok(api.put(f"t{number:06d}", {"durability": "disk"}), 201)


def command(server: Server, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a standby."""
    host, port = server.address
    args = ["nice", "-n", "19", sys.executable, "-m", "topics", "--url", f"http://{host}:{port}"]
    args += ["standby", "run"]
    return subprocess.Popen([*args, str(folder), *options], cwd=ROOT)


def quantile(values: list[float], share: float) -> float:
    """Return the smallest value that is not below this share of the values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--gib", type=float, default=5.0)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two batches")
    parser.add_argument("--copy", default="/dev/shm", help="directory of the copy")
    args = parser.parse_args()
    temporary = partial(tempfile.TemporaryDirectory, prefix="topics-bench-")
    with temporary() as directory, temporary(dir=args.copy) as other:
        copy = Standby(Path(other) / "copy")
        with Server(Path(directory) / "data", shards=2) as server:
            began = time.monotonic()
            make(server, args.topics)
            print(f"{args.topics:,} topics in {time.monotonic() - began:.0f} s", flush=True)
            bench = Bench(server, copy, args.topics, args.pause)
            records = int(args.gib * 2**30 / len(RECORD)) // (2 * args.windows)
            for _ in range(args.windows):
                bench.without_standby(records)
                bench.one_round()
                bench.with_standby(records)
            report(copy)
    return 0


class Bench:
    """Measures appends without a standby, during one round, and while a standby runs."""

    def __init__(self, server: Server, copy: Standby, topics: int, pause_s: float) -> None:
        self._server, self._copy, self._topics, self._pause_s = server, copy, topics, pause_s

    def without_standby(self, records: int) -> None:
        """Append without a standby."""
        with self._window("alone") as load:
            wait(load, records)

    def one_round(self) -> None:
        """Append while one round receives the data that was written since the last round."""
        with self._window("1 round") as load:
            assert command(self._server, self._copy.path, "--once").wait() == 0
            load.ending.set()

    def with_standby(self, records: int) -> None:
        """Append while a standby runs."""
        with self._window("standby") as load:
            process = command(self._server, self._copy.path, "--every", "5s")
            wait(load, records)
            process.terminate()
            process.wait()

    @contextmanager
    def _window(self, name: str) -> Iterator[Load]:
        before, began = cpu_s(*self._server.pids()), time.monotonic()
        with Load(self._server, self._topics, self._pause_s) as load:
            yield load
        seconds = time.monotonic() - began
        gib = load.records * len(RECORD) / 2**30
        found = load.latencies_ms
        cpu = (cpu_s(*self._server.pids()) - before) / gib
        print(
            f"{name:<8}{seconds:>6.1f} s {load.records / seconds:>9,.0f}/s"
            f" p50 {statistics.median(found):.2f} p99 {quantile(found, 0.99):.2f}"
            f" p99.9 {quantile(found, 0.999):.2f} ms, CPU"
            f" {cpu:.1f} s/GiB, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def wait(load: Load, records: int) -> None:
    """Wait until the clients have appended this number of records."""
    while load.records < records:
        time.sleep(0.1)


def report(copy: Standby) -> None:
    """Print the transfer of each generation."""
    before = None
    for generation in copy.intact():
        written = ""
        if before is not None and generation.counters and before.counters:
            size = generation.counters.bytes - before.counters.bytes
            written = f", {size / 2**20:.1f} MiB written"
        print(
            f"generation {generation.number}: {generation.received_bytes / 2**20:.1f} MiB in"
            f" {generation.seconds:.1f} s{written}"
        )
        before = generation


if __name__ == "__main__":
    sys.exit(main())
