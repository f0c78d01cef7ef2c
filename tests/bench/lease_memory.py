"""What a job in flight costs: ``python -m tests.bench.lease_memory [--leases 1000000]``.

Jobs of a queue are leased 1, 16 and 1,000 at a time, without records, each in a process of its own:
what the process holds more by then, as the kernel tells (RSS) and as the allocator does
(tracemalloc). Then all are acked: what is left.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.bench.http_load import verdict
from tests.bench.live_clients import line
from tests.support.server import rss_bytes
from topics.engine.queue.jobs import Jobs
from topics.engine.queue.leases import Holder

LEASES = 1_000_000
BATCHES = (1, 16, 1000)
BYTES_MAX = 150
LEASE_MS = 30_000
FIRST_NUMBER = 1 << 59  # as high as numbers of leases are
CLAIMS_A_MS = 5
WORKERS = 16


def bytes_a_lease(leases: int, batch: int, *, traced: bool) -> tuple[float, float, float]:
    """Bytes a lease when all are held and when all are acked, and microseconds a lease."""
    if traced:
        tracemalloc.start()
    measure: Callable[[], int] = (
        (lambda: tracemalloc.get_traced_memory()[0]) if traced else lambda: rss_bytes(os.getpid())
    )
    jobs = Jobs()
    holders = [Holder(f"worker-{number}") for number in range(WORKERS)]
    gc.collect()
    before, began = measure(), time.perf_counter()
    for first in range(1, leases + 1, batch):
        seqs = range(first, min(first + batch, leases + 1))
        claims = first // batch
        deadline_ms = claims // CLAIMS_A_MS + LEASE_MS
        jobs.deliver(seqs, FIRST_NUMBER + first, deadline_ms, holders[claims % WORKERS])
    took = time.perf_counter() - began
    gc.collect()
    held = measure() - before
    for seq in range(1, leases + 1):
        jobs.begin_ack(seq)
        del jobs.acking[seq]
    gc.collect()
    left = measure() - before
    return held / leases, left / leases, took / leases * 1e6


def apart(work: Callable[[], Any]) -> Any:
    """What ``work`` gives in a process of its own."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if not child:
        os.write(write_fd, json.dumps(work()).encode())
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        result = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the measurement failed"
    return json.loads(result)


def lease_memory(leases: int = LEASES) -> None:
    for batch in BATCHES:
        measure = partial(bytes_a_lease, leases, batch)
        rss, rss_left, us = apart(partial(measure, traced=False))
        traced, traced_left, _ = apart(partial(measure, traced=True))
        line(
            f"c {leases:,} leases, {batch:,} a claim",
            f"RSS {rss:>6.1f}  tracemalloc {traced:>6.1f} bytes a lease;"
            f" after all acks {rss_left:>6.1f} and {traced_left:>6.1f}; {us:>5.2f} us a lease",
            verdict(max(rss, traced) <= BYTES_MAX),
        )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--leases", type=int, default=LEASES)
    lease_memory(options.parse_args().leases)


if __name__ == "__main__":
    main()
