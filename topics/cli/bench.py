"""The command bench: a small load from one process, on a topic of its own.

    a thread for each client:  turn, turn, turn ... until the time is over
    the end:                   records a second, times of the turns, processor time of this client

A client begins its next turn when the last one has ended. A kind of load is a generator that makes
itself ready, and then does one turn at a time and tells how many records it moved.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing
from threading import Event, Thread
from time import monotonic, process_time
from typing import Final, get_args

import click

from topics.cli import units
from topics.cli.measure import own_topic, percentile
from topics.cli.shell import Shell, command, pass_shell
from topics.client import TAIL, CaughtUp, Queue, Record, TopicsError, calls
from topics.formats.api.topic_config import Durability

Turns = Generator[int]

FILL: Final = 10_000  # records that are read again and again, or so many bytes
FILL_BYTES: Final = 64 << 20
BATCH_BYTES: Final = 16 << 20
WAIT_S: Final = 0.5
BOUND: Final = 0.8  # of a core, and the client is what limits


def _append(topic: Queue, data: list[str]) -> Turns:
    yield 0
    while True:
        topic.append(*data)
        yield len(data)


def _read(topic: Queue, data: list[str]) -> Turns:
    chunk = [data[0]] * max(min(1000, (1 << 20) // (len(data[0]) + 2)), 1)
    while (held := topic.state()).count < FILL and held.bytes < FILL_BYTES:
        topic.append(*chunk)  # the first client does it
    yield 0
    seq = 0
    while True:
        page = topic.client.call(calls.diff(topic.name, seq, limit=len(data)))
        seq = 0 if page.caught_up else page.next_from_seq
        yield len(page.records)


def _live(topic: Queue, data: list[str]) -> Turns:
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


def _queue(topic: Queue, data: list[str]) -> Turns:
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
              help="Threads, each with connections of its own.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="Records of one request.")  # fmt: skip
@click.option("--size", type=units.BYTES, default="100", show_default=True, metavar="BYTES",
              help="Of the data of one record.")  # fmt: skip
@click.option("--durability", type=click.Choice(get_args(Durability)), default="disk",
              show_default=True)  # fmt: skip
@pass_shell
def bench(
    shell: Shell, kind: str, seconds: float, clients: int, batch: int, size: int, durability: str
) -> None:
    """Measure with a small load.

    \b
    append  append a batch of records
    read    read a batch of records, from 10,000
    live    append a batch, until an open stream has shown all of it
    queue   append a batch of jobs, claim as many, ack them

    A client in Python is often the bound, not the server: its processor time tells. The figures of
    the server, with clients that are fast enough, are in topics/BENCHMARKS.md. The topic of the run
    is removed at the end.
    """
    if size * batch > BATCH_BYTES:
        raise click.UsageError(f"a batch has at most {units.size(BATCH_BYTES)}")
    data = ["x" * max(size - 2, 0)] * batch
    config = {"durability": durability, "type": "queue" if kind == "queue" else "log"}
    stop = Event()
    with ExitStack() as stack:
        client = stack.enter_context(shell.client())
        name = stack.enter_context(own_topic(shell, client, "bench", **config))
        turns = []
        for _ in range(clients):
            own = stack.enter_context(shell.client())
            turns.append(stack.enter_context(closing(KINDS[kind](own.queue(name), data))))
            next(turns[-1])
        began, cpu_s = monotonic(), process_time()
        loads = [_Load(each, began + seconds, stop) for each in turns]
        stack.callback(_end, loads, stop)
        for load in loads:
            load.start()
        results = [load.result() for load in loads]
        took_s, cpu_s = monotonic() - began, process_time() - cpu_s
    times = [each for _, found in results for each in found]
    found = {
        "kind": kind,
        "seconds": round(took_s, 3),
        "records_per_s": round(sum(count for count, _ in results) / took_s, 1),
        "turns_per_s": round(len(times) / took_s, 1),
        "p50_ms": percentile(times, 0.5),
        "p99_ms": percentile(times, 0.99),
        "client_cpu_s": round(cpu_s, 3),
    }
    if shell.is_json:
        shell.emit(found)
    else:
        asked = f"{kind}: {clients} clients, batches of {batch}, {units.size(size)}, {durability}"
        figures = (
            "{records_per_s:,.0f} records/s  {turns_per_s:,.0f} turns/s  p50 {p50_ms:.2f} ms"
            "  p99 {p99_ms:.2f} ms  client {client_cpu_s:.1f} s of CPU in {seconds:.1f} s"
        )
        click.echo(f"{asked}\n{figures.format(**found)}")
    if cpu_s > BOUND * took_s:
        shell.say("this client was the bound: the server can do more (topics/BENCHMARKS.md)")


class _Load(Thread):
    """A client at work until it is time, or until one of them has failed."""

    def __init__(self, turns: Turns, until: float, stop: Event) -> None:
        super().__init__()
        self._turns, self._until, self._stopped = turns, until, stop
        self._count, self._times = 0, list[float]()
        self._failure: TopicsError | None = None
        self.ended = Event()  # a `join` that Ctrl-C interrupts lets the next one return at once

    def run(self) -> None:
        """Take turns."""
        try:
            while not self._stopped.is_set() and (
                (began := monotonic()) < self._until or not self._times
            ):
                self._count += next(self._turns)
                self._times.append(round(1000 * (monotonic() - began), 3))
        except TopicsError as failure:
            self._failure = failure
            self._stopped.set()
        finally:
            self.ended.set()

    def wait(self) -> None:
        """Wait for the end. Ctrl-C just before a wait is noticed behind it."""
        while not self.ended.wait(WAIT_S):
            pass

    def result(self) -> tuple[int, list[float]]:
        """Records that were moved, and the ms of each turn. Raises `TopicsError`."""
        self.wait()
        if self._failure is not None:
            raise self._failure
        return self._count, self._times


def _end(loads: list[_Load], stop: Event) -> None:
    """Wait for those that have begun: Ctrl-C may come at any moment."""
    stop.set()
    for load in loads:
        if load.ident is not None:
            load.wait()
