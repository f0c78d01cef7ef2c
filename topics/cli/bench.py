"""The command bench: generates a small load from one process, on a temporary topic.

    each client's thread:  operation, operation, ... until the time is up
    at the end:            records per second, latencies, processor time of this process

A client starts its next operation when the previous one has completed. A kind of load is a
generator. Its first step prepares it, and each further step is one operation and yields the number
of records.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from threading import Event
from time import monotonic, process_time
from typing import Final, get_args

import click

from topics.cli import units
from topics.cli.measure import own_topic, percentile
from topics.cli.shell import Shell, command, pass_shell
from topics.client import TAIL, CaughtUp, Queue, Record, TopicsError, calls
from topics.formats.api.topic_config import Durability

Operations = Generator[int]

# The benchmark ``read`` reads this number of records repeatedly, or fewer if they exceed
# FILL_BYTES.
FILL_RECORDS: Final = 10_000
FILL_BYTES: Final = 64 << 20
BATCH_BYTES: Final = 16 << 20
WAIT_S: Final = 0.5
# If the client uses at least this share of a core, the client is the bottleneck.
CLIENT_BOUND_SHARE: Final = 0.8


def _append(topic: Queue, data: list[str]) -> Operations:
    yield 0
    while True:
        topic.append(*data)
        yield len(data)


def _read(topic: Queue, data: list[str]) -> Operations:
    chunk = [data[0]] * max(min(1000, (1 << 20) // (len(data[0]) + 2)), 1)
    while (held := topic.state()).count < FILL_RECORDS and held.bytes < FILL_BYTES:
        topic.append(*chunk)  # only the first client does this
    yield 0
    seq = 0
    while True:
        page = topic.client.call(calls.diff(topic.name, seq, limit=len(data)))
        seq = 0 if page.caught_up else page.next_from_seq
        yield len(page.records)


def _live(topic: Queue, data: list[str]) -> Operations:
    with topic.client.watch((topic.name, TAIL)) as events:
        while not isinstance(next(events), CaughtUp):
            pass
        yield 0
        while True:
            count, seq, last = 0, 0, topic.append(*data).last_seq
            while seq < last:
                if isinstance(event := next(events), Record):
                    count, seq = count + 1, event.seq
            yield count


def _queue(topic: Queue, data: list[str]) -> Operations:
    yield 0
    while True:
        topic.append(*data)
        jobs = topic.claim("bench", len(data))
        topic.ack("bench", *jobs)
        yield len(jobs)


KINDS: Final = {"append": _append, "read": _read, "live": _live, "queue": _queue}


@command("bench")
@click.argument("kind", type=click.Choice([*KINDS]), metavar=f"[{'|'.join(KINDS)}]")
@click.option("--seconds", type=click.FloatRange(0.1), default=5.0, show_default=True)
@click.option("--clients", type=click.IntRange(1, 256), default=4, show_default=True,
              help="Threads, each with its own connections.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="Records per request.")  # fmt: skip
@click.option("--size", type=units.BYTES, default="100", show_default=True, metavar="BYTES",
              help="The size of each record's data.")  # fmt: skip
@click.option("--durability", type=click.Choice(get_args(Durability)), default="disk",
              show_default=True)  # fmt: skip
@pass_shell
def bench(
    shell: Shell, kind: str, seconds: float, clients: int, batch: int, size: int, durability: str
) -> None:
    """Run a small benchmark.

    \b
    append  append a batch of records
    read    read a batch of records, from 10,000
    live    append a batch, and wait until an open stream has received it
    queue   append a batch of jobs, claim them, and ack them

    The client is written in Python and is often the bottleneck: compare its processor time with the
    duration. topics/BENCHMARKS.md has figures that were measured with faster clients. The
    benchmark's topic is deleted at the end.
    """
    if size * batch > BATCH_BYTES:
        raise click.UsageError(f"a batch may have at most {units.size(BATCH_BYTES)}")
    data = ["x" * max(size - 2, 0)] * batch
    config = {"durability": durability, "type": "queue" if kind == "queue" else "log"}
    stop = Event()
    with ExitStack() as stack:
        client = stack.enter_context(shell.client())
        name = stack.enter_context(own_topic(shell, client, "bench", **config))
        operations = []
        for _ in range(clients):
            own = stack.enter_context(shell.client())
            operations.append(stack.enter_context(closing(KINDS[kind](own.queue(name), data))))
            next(operations[-1])
        pool = stack.enter_context(ThreadPoolExecutor(clients))
        stack.callback(stop.set)  # runs before the pool waits for its threads
        began, cpu_s = monotonic(), process_time()
        loads = [pool.submit(_load, each, began + seconds, stop) for each in operations]
        # Each wait is short, because a signal just before a wait is handled only after the wait.
        while wait(loads, WAIT_S).not_done:
            pass
        took_s, cpu_s = monotonic() - began, process_time() - cpu_s
    results = [load.result() for load in loads]
    times = [each for _, found in results for each in found]
    found = {
        "kind": kind,
        "seconds": round(took_s, 3),
        "records_per_s": round(sum(count for count, _ in results) / took_s, 1),
        "operations_per_s": round(len(times) / took_s, 1),
        "p50_ms": percentile(times, 0.5),
        "p99_ms": percentile(times, 0.99),
        "client_cpu_s": round(cpu_s, 3),
    }
    if shell.is_json:
        shell.emit(found)
    else:
        asked = f"{kind}: {clients} clients, batches of {batch}, {units.size(size)}, {durability}"
        figures = (
            "{records_per_s:,.0f} records/s  {operations_per_s:,.0f} operations/s"
            "  p50 {p50_ms:.2f} ms  p99 {p99_ms:.2f} ms"
            "  client {client_cpu_s:.1f} s of CPU in {seconds:.1f} s"
        )
        click.echo(f"{asked}\n{figures.format(**found)}")
    if cpu_s > CLIENT_BOUND_SHARE * took_s:
        shell.print_note(
            "this client was the bottleneck; the server can do more (topics/BENCHMARKS.md)"
        )


def _load(operations: Operations, until: float, stop: Event) -> tuple[int, list[float]]:
    """Repeat an operation until the deadline ``until``, or until another client has failed. Return
    the number of records, and the duration of each operation in ms. Raise `TopicsError`.
    """
    count, times = 0, list[float]()
    try:
        while not stop.is_set() and ((began := monotonic()) < until or not times):
            count += next(operations)
            times.append(round(1000 * (monotonic() - began), 3))
    except TopicsError:
        stop.set()
        raise
    return count, times
