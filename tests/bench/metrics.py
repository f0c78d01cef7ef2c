"""What metrics cost, against a real server: ``python -m tests.bench.metrics [--topics
1000,100000]``.

count    one call of `RequestCounts.count`: < 0.5 us
scrape   how long /v0/metrics takes with so many topics, and how many bytes it has
beside   what probes of the same front take beside a client that scrapes without a pause, and
         without it: the difference of the largest is how long a scrape holds the loop, <= 10 ms
         on a machine that does nothing else
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import timeit
from collections.abc import Iterator
from pathlib import Path

from tests.bench.http_load import Load, drive, post, quantiles_ms, several, verdict
from tests.support.server import Server
from topics.front.request_counts import RequestCounts

RECORD = b'{"disable_backpressure":true,"records":[{"data":1}]}'
SCRAPE = b"GET /v0/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
PROBE = b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def count() -> None:
    call = RequestCounts().count
    calls = lambda: [call(1, 200, 0.0003, 400, 300) for _ in range(1000)]  # noqa: E731
    took = min(timeit.repeat(calls, number=100, timer=time.process_time))
    us = took / 100_000 * 1e6
    print(f"count    {us:.2f} us {verdict(us < 0.5)}", flush=True)


def scrape(folder: Path, topics: int) -> None:
    with Server(folder / f"data-{topics}", shards=2, max_topics=0) as server:
        made = drive(server.address, [Load("make", 64, _appends(topics).__next__)])
        print(f"         made {topics:,} topics in {made:.0f} s", flush=True)
        single = Load("scrape", 1, several(SCRAPE, 20))
        drive(server.address, [single])
        middle = statistics.median(single.seconds) * 1000
        alone = Load("probe", 1, several(PROBE, 2000))
        drive(server.address, [alone])
        beside, busy = Load("probe", 1, lambda: PROBE), Load("scrape", 1, lambda: SCRAPE)
        drive(server.address, [beside, busy], 3)
        print(f"scrape   {topics:,} topics: {middle:.1f} ms", flush=True)
        for name, load in (("alone", alone), ("beside", beside)):
            p50, p99, _, most = quantiles_ms(load.seconds)
            print(f"{name:8} p50 {p50:.2f} ms, p99 {p99:.2f} ms, most {most:.2f} ms", flush=True)


def _appends(topics: int) -> Iterator[bytes | None]:
    for number in range(topics):
        yield post(f"/v0/topics/topic-{number:06d}", RECORD)
    while True:
        yield None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", default="1000,100000")
    arguments = parser.parse_args()
    count()
    with tempfile.TemporaryDirectory() as folder:
        for topics in arguments.topics.split(","):
            scrape(Path(folder), int(topics))


if __name__ == "__main__":
    main()
