"""The longest turn of a shard while it does one large thing: ``python -m tests.bench.turns
[SCENARIO...] [--scale 1.0]``.

A server of one shard over HTTP. Beside each scenario a probe appends single records to another
topic of the shard, one after another. A row tells

    wait    ms, the longest that one of these appends took
    cpu     ms of processor time that the shard took during that append: the turn that it waited
            for, whatever else the machine did meanwhile
    p50     ms, of all of them
    took    s, of the scenario
    refused answers to the probe that were no 2xx

Required: cpu <= 50 ms in every row, and nothing refused.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.bench.peers.load import Connection, append
from tests.bench.peers.replies import BadReply, http
from tests.support.api import Api, ok
from tests.support.server import Server

LIMIT_MS = 50.0
DAY_MS = 86_400_000
Scenario = Callable[[Server, float], Iterator[None]]
"""Loads a server, yields, and does what the probe stands beside."""


class Probe(threading.Thread):
    """Appends single records until it is stopped."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server, self._ended = server, threading.Event()
        self.waits_ms: list[float] = []
        self.longest, self.refused = (0.0, 0.0), 0  # wait and CPU, ms
        self.start()

    def run(self) -> None:
        shard = Path(f"/proc/{self._server.roles()['shard 0']}/schedstat")
        client, request = Connection(self._server.address), append("probe", 1)
        while not self._ended.is_set():
            cpu_ns, began = int(shard.read_text().split()[0]), time.perf_counter()
            try:
                client.ask(request)
            except BadReply:
                self.refused += 1
            wait_ms = (time.perf_counter() - began) * 1e3
            used_ms = (int(shard.read_text().split()[0]) - cpu_ns) / 1e6
            self.waits_ms.append(wait_ms)
            self.longest = max(self.longest, (wait_ms, used_ms))
            time.sleep(0.0005)
        client.close()

    def stop(self) -> None:
        self._ended.set()
        self.join()


def fill(server: Server, topic: str, records: bytes, count: int, times: int) -> None:
    """Append so many batches; ``records``: one, with its fields."""
    client = Connection(server.address)
    body = b'{"records":[%b]}' % b",".join([records] * count)
    request = http("POST", f"/v0/topics/{topic}?return_seqs=false", body)
    for _ in range(times):
        client.ask(request)
    client.close()


def call(server: Server, path: str, body: object) -> None:
    """One request that may take long."""
    with Api(server.address, timeout_s=120) as api:
        ok(api.call("POST", f"/v0/topics/{path}", body))


def delete_by_tag(server: Server, scale: float) -> Iterator[None]:
    """3 M records, half of them deleted by tag."""
    rows = b'{"data":{"n":1},"tag":"a"},{"data":{"n":2},"tag":"b"}'
    fill(server, "large", rows, 5_000, int(300 * scale))
    yield
    call(server, "large/delete", {"match": ["tag", "Eq", "a"]})


def delayed_jobs(server: Server, scale: float, *, restart: bool = False) -> Iterator[None]:
    """1 M jobs that are due in a day, and one that is due: a claim of one."""
    with Api(server.address) as api:
        ok(api.put("jobs", {"type": "queue"}), 201)
    fill(server, "jobs", b'{"data":1,"delay_ms":%d}' % DAY_MS, 10_000, int(100 * scale))
    fill(server, "jobs", b'{"data":2}', 1, 1)
    if restart:
        server.restart("stop")
    yield
    call(server, "jobs/claim", {"node": "n", "max": 1, "lease_ms": 60_000})


def cohort(server: Server, scale: float) -> Iterator[None]:
    """8,000 claims wait in a cohort; 100 appends of one job each."""
    with Api(server.address) as api:
        ok(api.put("jobs", {"type": "queue", "claim_jitter_ms": 1}), 201)
    body = b'{"node":"n","max":1,"lease_ms":60000,"wait_ms":30000}'
    waiters = [Connection(server.address) for _ in range(int(8_000 * scale))]
    for waiter in waiters:
        waiter.send(http("POST", "/v0/topics/jobs/claim", body))
    time.sleep(2)
    yield
    fill(server, "jobs", b'{"data":1}', 1, 100)


def keys_end(server: Server, scale: float) -> Iterator[None]:
    """600,000 idempotency keys whose window ends at once, then one more."""
    with Api(server.address) as api:
        ok(api.put("keyed", {"idempotency_window_ms": DAY_MS}), 201)
        client = Connection(server.address)
        for number in range(int(600_000 * scale)):
            body = b'{"idempotency_key":"key-%d","records":[{"data":1}]}' % number
            client.ask(http("POST", "/v0/topics/keyed", body))
        yield
        ok(api.put("keyed", {"idempotency_window_ms": 1}))
        for number in range(20):
            ok(api.append("keyed", 1, idempotency_key=f"after-{number}"))
            time.sleep(0.1)


def checkpoint_of_topics(server: Server, scale: float) -> Iterator[None]:
    """100,000 topics, and a log file that becomes full, which a checkpoint follows."""
    client = Connection(server.address)
    for number in range(int(100_000 * scale)):
        client.ask(append(f"t{number:06}", 1))
    yield
    fill(server, "t000000", b'{"data":"%b"}' % (b"x" * 1000), 1_000, 100)
    time.sleep(5)


def long_bodies(server: Server, _: float) -> Iterator[None]:
    """Eight appends of 64 MiB, one after the other."""
    yield
    fill(server, "long", b'{"data":"%b"}' % (b"x" * 200_000), 330, 8)


CASES: dict[str, Scenario] = {
    "delete-by-tag": delete_by_tag,
    "delayed-jobs": delayed_jobs,
    "delayed-jobs-restart": partial(delayed_jobs, restart=True),
    "cohort": cohort,
    "keys-end": keys_end,
    "long-bodies": long_bodies,
    "topics-checkpoint": checkpoint_of_topics,
}


def measure(name: str, scale: float) -> bool:
    """Run one case and print its row; whether it is as required."""
    env = {"shards": 1, "max_inflight_per_key": 0, "max_topics": 0}
    with (
        tempfile.TemporaryDirectory(prefix="topics-turns-") as folder,
        Server(Path(folder) / "data", **env) as server,
    ):
        fill(server, "probe", b'{"data":1}', 1, 1)
        steps = CASES[name](server, scale)
        next(steps)
        probe = Probe(server)
        time.sleep(0.5)
        began = time.perf_counter()
        next(steps, None)
        took_s = time.perf_counter() - began
        time.sleep(0.5)
        probe.stop()
    (wait_ms, cpu_ms), p50 = probe.longest, statistics.median(probe.waits_ms)
    figures = f"{wait_ms:8.1f} {cpu_ms:8.1f} {p50:8.2f} {took_s:8.2f} {probe.refused:8}"
    print(f"{name:22} {figures}", flush=True)
    return cpu_ms <= LIMIT_MS and not probe.refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", nargs="*", help=", ".join(CASES))
    parser.add_argument("--scale", type=float, default=1.0)
    asked = parser.parse_args()
    print(f"{'':22} {'wait':>8} {'cpu':>8} {'p50':>8} {'took':>8} {'refused':>8}")
    good = [measure(name, asked.scale) for name in asked.scenario or CASES]
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
