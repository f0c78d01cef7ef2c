"""Cost of a standby: ``python -m tests.bench.standby [--topics 100000] [--gib 5] [--windows 4]``.

A server gets many topics and then ``--gib`` of records, in batches that go to one topic after the
other, at the rate that its clients reach with a pause between two batches. In every second window a
standby runs (``topics standby run --every 5s``). In both kinds of windows one client appends single
records, class `fsync`, and measures them. Reported for each window: records/s, the quantiles of the
single appends in ms, CPU seconds of the server for each GiB of its log. Reported for each
generation: bytes received and bytes that the server has written to its log since the one before.
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
from pathlib import Path

from tests.bench.processes import cpu_s
from tests.support.api import Api, ok
from tests.support.server import ROOT, Server
from topics.storage.standby import Standby

BATCH_RECORDS = 1000
RECORD = json.dumps({"data": "x" * 180})
PAUSE_S = 0.02
WRITERS = 2


class Load:
    """Clients that append to many topics, and one that measures single appends."""

    def __init__(self, server: Server, topics: int) -> None:
        self._server, self._topics = server, topics
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
            self._post(connection, f"t{number % self._topics:06d}", body)
            number += WRITERS
            self.records += BATCH_RECORDS
            time.sleep(PAUSE_S)

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
        for number in range(topics):
            ok(api.put(f"t{number:06d}", {"durability": "disk"}), 201)


@contextmanager
def standby(server: Server, folder: Path) -> Iterator[None]:
    """Run a standby."""
    host, port = server.address
    command = [sys.executable, "-m", "topics", "--url", f"http://{host}:{port}", "standby", "run"]
    run = subprocess.Popen([*command, str(folder), "--every", "5s"], cwd=ROOT)
    try:
        yield
    finally:
        run.terminate()
        run.wait()


def quantile(values: list[float], share: float) -> float:
    """Return a quantile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--gib", type=float, default=5.0)
    parser.add_argument("--windows", type=int, default=4)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="topics-bench-") as directory:
        path = Path(directory)
        copy = Standby(path / "copy")
        with Server(path / "data", shards=2) as server:
            began = time.monotonic()
            make(server, asked.topics)
            print(f"{asked.topics:,} topics in {time.monotonic() - began:.0f} s", flush=True)
            total = int(asked.gib * 2**30 / len(RECORD))
            for window in range(asked.windows):
                with_standby = window % 2 == 1
                before, began = cpu_s(*server.pids()), time.monotonic()
                with Load(server, asked.topics) as load:
                    if with_standby:
                        with standby(server, copy.path):
                            wait(load, total // asked.windows)
                    else:
                        wait(load, total // asked.windows)
                seconds = time.monotonic() - began
                gib = load.records * len(RECORD) / 2**30
                found = load.latencies_ms
                cpu = (cpu_s(*server.pids()) - before) / gib
                print(
                    f"{'standby' if with_standby else 'alone  '} {load.records / seconds:>9,.0f}/s"
                    f" p50 {statistics.median(found):.2f} p99 {quantile(found, 0.99):.2f}"
                    f" p99.9 {quantile(found, 0.999):.2f} ms, CPU"
                    f" {cpu:.1f} s/GiB, load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
            report(copy)
    return 0


def wait(load: Load, records: int) -> None:
    """Wait until the clients have appended this number of records."""
    while load.records < records:
        time.sleep(0.1)


def report(copy: Standby) -> None:
    """Print the transfer of each generation."""
    before = None
    for number in copy.numbers():
        found = copy.generation(number)
        written = ""
        if before is not None and found.counters and before.counters:
            written = f", {(found.counters.bytes - before.counters.bytes) / 2**20:.1f} MiB written"
        print(
            f"generation {number}: {found.received_bytes / 2**20:.1f} MiB in {found.seconds:.1f} s"
            f"{written}"
        )
        before = found


if __name__ == "__main__":
    sys.exit(main())
