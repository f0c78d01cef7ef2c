"""What keys and metrics cost: appends through the fast lane, with and without.

    python -m tests.bench.guard [--keys 100] [--rounds 12] [--seconds 1.5]

Two real servers run side by side, one without keys and one with a hundred. Loads alternate in short
slices, so that what else the machine does hits all of them:

    none      no keys, nobody asks for metrics
    keys      each request with one of the keys, each key in turn
    all       the same, and GET /v0/metrics once a second

The cost is the median of the differences within a round, in throughput and in the front's processor
time for a request. The aim is at most 5 % for all.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.http_load import DATA, Load, drive, round_robin, verdict
from tests.bench.processes import cpu_s
from tests.support.api import Api, ok
from tests.support.server import Server

AIM = 0.05
CONNECTIONS, TOPICS = 16, 20
SCRAPE_S = 1.0
NONE, KEYS, ALL = "none", "keys", "all"


def request_of(topic: str, secret: str | None) -> bytes:
    """An append of one record of 200 bytes."""
    body = b'{"records":[{"data":%b}]}' % DATA
    lines = [
        f"POST /v0/topics/{topic}?return_seqs=false HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *([f"Authorization: Bearer {secret}"] if secret else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def requests_for(secrets: list[str] | None) -> list[bytes]:
    """Every topic with every key."""
    each: list[str] | list[None] = secrets or [None]
    return [request_of(f"t-{number}", secret) for secret in each for number in range(TOPICS)]


@contextmanager
def scraped(server: Server, secret: str) -> Iterator[list[int]]:
    """Ask for the metrics once a second; the lengths of the answers."""
    done, lengths = threading.Event(), list[int]()

    def scrape() -> None:
        with Api(server.address, token=secret) as api:
            while True:
                answer = api.call("GET", "/v0/metrics")
                assert answer.status == 200, answer
                lengths.append(len(answer.body))
                if done.wait(SCRAPE_S):
                    return

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield lengths
    finally:
        done.set()
        thread.join()


class Slices:
    """What each load reached: requests a second, and the front's seconds for a request."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {NONE: [], KEYS: [], ALL: []}
        self.costs: dict[str, list[float]] = {NONE: [], KEYS: [], ALL: []}

    def run(self, name: str, server: Server, requests: list[bytes], seconds: float) -> None:
        front, source = server.roles()["front 0"], round_robin(requests)
        load = Load(name, CONNECTIONS, lambda: next(source))
        cpu = cpu_s(front)
        took = drive(server.address, [load], seconds)
        self.rates[name].append(len(load.seconds) / took)
        self.costs[name].append((cpu_s(front) - cpu) / len(load.seconds))

    def loss(self, name: str) -> tuple[float, float]:
        """Shares that throughput falls by, and that the front's time rises by."""
        rate = [
            1 - own / bare for own, bare in zip(self.rates[name], self.rates[NONE], strict=True)
        ]
        cost = [
            own / bare - 1 for own, bare in zip(self.costs[name], self.costs[NONE], strict=True)
        ]
        return statistics.median(rate), statistics.median(cost)


def measure(bare: Server, guarded: Server, secrets: list[str], rounds: int, seconds: float) -> bool:
    """All rounds; whether the aim is met."""
    slices, plain, keyed = Slices(), requests_for(None), requests_for(secrets)
    for number in range(rounds):
        for name in (NONE, KEYS, ALL) if number % 2 else (ALL, KEYS, NONE):
            if name == NONE:
                slices.run(name, bare, plain, seconds)
            elif name == KEYS:
                slices.run(name, guarded, keyed, seconds)
            else:
                with scraped(guarded, secrets[0]) as lengths:
                    slices.run(name, guarded, keyed, seconds)
    print(f"{rounds} rounds of {seconds} s; the metrics are {lengths[-1]} bytes long")
    for name in (NONE, KEYS, ALL):
        rate, cost = statistics.median(slices.rates[name]), statistics.median(slices.costs[name])
        slower, dearer = slices.loss(name)
        print(
            f"{name:5} {rate:8,.0f} appends/s ({slower:+.1%} lost), front {cost * 1e6:6.1f} us each"
            f" ({dearer:+.1%})"
        )
    holds = slices.loss(ALL)[0] <= AIM
    print(f"{verdict(holds)}  keys and metrics cost at most {AIM:.0%} of the throughput")
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.5)
    arguments = parser.parse_args()
    secrets = [f"a-secret-of-ordinary-length-{number:03d}" for number in range(arguments.keys)]
    with (
        tempfile.TemporaryDirectory(prefix="topics-guard-") as directory,
        Server(Path(directory) / "bare") as bare,
        Server(Path(directory) / "guarded", api_keys=",".join(secrets)) as guarded,
    ):
        for server, secret in ((bare, None), (guarded, secrets[0])):
            with Api(server.address, token=secret) as api:
                for number in range(TOPICS):
                    ok(api.put(f"t-{number}", {"cap_records": 50_000}), 201)
        time.sleep(1)
        holds = measure(bare, guarded, secrets, arguments.rounds, arguments.seconds)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
