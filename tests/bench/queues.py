"""What queues cost on a real server: ``python -m tests.bench.queues [--only abcdef] [--turns 5]``.

a   16 workers that claim 8 jobs and ack 8 in turn, and 16 clients that append one record at a time,
    turn by turn in one run, class disk: jobs a second, their ratio
b   a claim of one job with 1,000,000 ready against one with 100; with 900,000 acked in the middle,
    after a restart, up to the hole and across it: their ratios
d   16 streams with acks of 8 jobs or more, turn by turn with the workers of a: jobs a second
e   how late 200 delayed jobs come to a waiting claim, and to a stream
f   from just before an append is sent to when a waiting claim has its job

Records are of 200 bytes. The clients are this process. ``stolen`` is what the host took away; the
machine's other load is in every figure.
"""

from __future__ import annotations

import argparse
import random
import select
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from tests.bench.http_load import Client, Load, append, drive, quantiles_ms, verdict
from tests.bench.live_clients import RECV_BYTES, line, running
from tests.bench.processes import Usage, cpu_s, quiet
from tests.bench.queue_clients import (
    Poller,
    Pushed,
    Worker,
    ack,
    claim,
    delayed,
    fill,
    jobs_a_second,
    make,
    seqs_in,
    state,
    work_stream,
)
from tests.bench.versions import stolen_s
from tests.support.server import Server

WORKERS, BATCH, DEPTH = 16, 8, 32
NAMES = {
    "append": "a 16 appends of 1",
    "claim": "a 16 claim 8, ack 8",
    "push": "d 16 streams, acks of 8",
}
RATIO_MIN = 3.0
FILLED = 400_000
MANY, FEW, ACKED = 1_000_000, 100, 900_000
CLAIMS = 2000
CLAIM_RATIO_MAX = 1.3
LATE_JOBS, LATE_MS_MAX = 200, 50.0
DELAYS_MS = (300, 4000)
WAKES = 300


# a, d: jobs a second


class Run(NamedTuple):
    """One turn: jobs or records a second, and what each took of the server's processors."""

    per_s: float
    cpu_us: float


def throughput(folder: Path | None, turns: int, seconds: float, only: str) -> None:
    with running(folder) as server:
        client = Client(server.address)
        make(client, "jobs")
        client.ask(append("log", 1, b'{"durability":"disk","cap_records":200000}'))
        kinds: dict[str, Callable[[], Run]] = {
            "append": lambda: _appends(server, seconds),
            "claim": lambda: _work(server, client, _poller, seconds),
        }
        if "d" in only:
            kinds["push"] = lambda: _work(server, client, _pushed, seconds)
        figures: dict[str, list[Run]] = {kind: [] for kind in kinds}
        for run in kinds.values():
            run()  # caches filled, topics known
        stolen, usage = stolen_s(), Usage(server)
        for turn in range(turns):
            for kind in [*kinds] if turn % 2 else [*reversed(kinds)]:
                figures[kind].append(kinds[kind]())
        shown = f"stolen {stolen_s() - stolen:.1f} s; {usage}"
        peer = statistics.median(run.per_s for run in figures["append"])
        for kind, name in NAMES.items():
            if kind in figures:
                runs = figures[kind]
                rates, cpu_us = [run.per_s for run in runs], [run.cpu_us for run in runs]
                rate = statistics.median(rates)
                spread = f"({min(rates):,.0f}-{max(rates):,.0f})"
                figure = f"{rate:>10,.0f}/s {spread:<16} {statistics.median(cpu_us):>5.0f} us CPU"
                ratio, is_peer = rate / peer, kind == "append"
                holds = "peer" if is_peer else verdict(ratio >= RATIO_MIN)
                line(name, figure + ("" if is_peer else f"  ratio {ratio:.2f}; {shown}"), holds)


def _appends(server: Server, seconds: float) -> Run:
    load = Load("append", WORKERS, repeat(append("log", 1)).__next__)
    before = _server_cpu_s(server)
    took = drive(server.address, [load], seconds)
    count = len(load.seconds)
    return Run(count / took, (_server_cpu_s(server) - before) / count * 1e6)


def _work(
    server: Server, client: Client, hire: Callable[[Server, int], Worker], seconds: float
) -> Run:
    fill(client, "jobs", FILLED)
    workers = [hire(server, number) for number in range(WORKERS)]
    before = _server_cpu_s(server)
    rate = jobs_a_second(workers, seconds)
    used_s = _server_cpu_s(server) - before
    assert state(client, "jobs")["ready"], "the queue has run empty"
    return Run(rate, used_s / sum(worker.acked for worker in workers) * 1e6)


def _server_cpu_s(server: Server) -> float:
    return sum(map(cpu_s, server.pids()))


def _poller(server: Server, number: int) -> Worker:
    return Poller(server.address, "jobs", f"poller-{number}", BATCH)


def _pushed(server: Server, number: int) -> Worker:
    return Pushed(server.address, "jobs", f"pushed-{number}", DEPTH, BATCH)


# b: what a claim costs


def claims(folder: Path | None, turns: int) -> None:
    with running(folder) as server:
        client = Client(server.address)
        for queue, jobs in (("many", MANY), ("few", FEW), ("holes", MANY)):
            make(client, queue)
            fill(client, queue, jobs)
        _hole(client)
        client.close()
        server.kill()  # the jobs in front of the hole are claimable again
        server.start()
        quiet(server)
        client, stolen = Client(server.address), stolen_s()
        times: dict[str, array[float]] = {name: array("d") for name in ("many", "few", "holes")}
        for turn in range(2 * turns):
            for queue in [*times] if turn % 2 else [*reversed(times)]:
                _claims(client, queue, CLAIMS // turns // 2, times[queue])
        few = statistics.median(times["few"])
        for queue, found in times.items():
            ratio = statistics.median(found) / few
            p50, p99, _, most = quantiles_ms(found)
            shown = f"p50 {p50:.3f}  p99 {p99:.3f}  max {most:.2f} ms  ratio {ratio:.2f}"
            line(f"b claim of 1, {queue}", shown, verdict(ratio <= CLAIM_RATIO_MAX))
        across = _across(client)
        shown = f"{across:.2f} ms, {across / few / 1000:.1f} x; stolen {stolen_s() - stolen:.1f} s"
        line("b claim of 16 across the hole", shown, "info")


def _hole(client: Client) -> None:
    """Ack `ACKED` jobs in the middle of ``holes``; those before them are held."""
    front = (MANY - ACKED) // 2
    for first in range(0, front + ACKED, 1000):
        seqs = seqs_in(bytes(client.ask(claim("holes", "n", 1000, lease_ms=3_600_000))))
        assert len(seqs) == 1000, "jobs are claimed in order"
        if first >= front:
            client.ask(ack("holes", "n", seqs))


def _claims(client: Client, queue: str, count: int, seconds: array[float]) -> None:
    """Time single claims; each job is acked and replaced."""
    request = claim(queue, "n", 1)
    for _ in range(count):
        began = time.perf_counter()
        answer = client.ask(request)
        seconds.append(time.perf_counter() - began)
        seqs = seqs_in(bytes(answer))
        assert len(seqs) == 1, "a job is ready"
        client.ask(ack(queue, "n", seqs))
        client.ask(append(queue, 1))


def _across(client: Client) -> float:
    """Milliseconds of the claim that gets jobs from both sides of the hole."""
    front = (MANY - ACKED) // 2
    request, longest = claim("holes", "n", 16), 0.0
    while True:
        began = time.perf_counter()
        answer = client.ask(request)
        took = (time.perf_counter() - began) * 1000
        seqs = [*map(int, seqs_in(bytes(answer)))]
        assert seqs, "jobs are ready behind the hole"
        if seqs[-1] > front:
            return max(longest, took)
        longest = took


# e: delayed jobs


def lateness(folder: Path | None) -> None:
    with running(folder) as server:
        client, dice = Client(server.address), random.Random(1)
        for name, listen in (("a waiting claim", _by_claim), ("a stream", _by_stream)):
            queue, stolen = name.replace(" ", "-"), stolen_s()
            make(client, queue)
            now_ms = time.time_ns() // 1_000_000
            dues = sorted(now_ms + dice.randint(*DELAYS_MS) for _ in range(LATE_JOBS))
            due_by_seq = {}
            for due_ms in dues:
                body = client.ask_json(delayed(queue, due_ms))
                due_by_seq[body["first_seq"]] = due_ms
            late = listen(server, queue, due_by_seq)
            p50, p99, _, most = quantiles_ms(late)
            shown = (
                f"p50 {p50:.2f}  p99 {p99:.2f}  max {most:.2f}  min {min(late) * 1000:.2f} ms late"
            )
            line(
                f"e {LATE_JOBS} delayed, {name}",
                f"{shown}; stolen {stolen_s() - stolen:.1f} s",
                verdict(most <= LATE_MS_MAX and min(late) >= 0),
            )


def _by_claim(server: Server, queue: str, dues: dict[int, int]) -> array[float]:
    """Seconds that each job came too late."""
    client, late = Client(server.address), array("d")
    request = claim(queue, "n", 16, wait_ms=10_000)
    while len(late) < len(dues):
        seqs = seqs_in(bytes(client.ask(request)))
        now_ms = time.time_ns() / 1e6
        assert seqs, "a job is due within the wait"
        late.extend((now_ms - dues[int(seq)]) / 1000 for seq in seqs)
        client.ask(ack(queue, "n", seqs))
    return late


def _by_stream(server: Server, queue: str, dues: dict[int, int]) -> array[float]:
    sock, rest = work_stream(server.address, queue, "n", len(dues))
    late = array("d")
    while len(late) < len(dues):
        data = sock.recv(RECV_BYTES)
        now_ms = time.time_ns() / 1e6
        assert data, "the server has ended the stream"
        whole, _, rest = (rest + data).rpartition(b"\n\n")
        late.extend((now_ms - dues[int(seq)]) / 1000 for seq in seqs_in(whole))
    sock.close()
    return late


# f: wake-ups


def wakes(folder: Path | None) -> None:
    with running(folder) as server:
        client, waiter, dice = Client(server.address), Client(server.address), random.Random(1)
        stolen = stolen_s()
        make(client, "jobs")
        woken, alone = array("d"), array("d")
        request = append("jobs", 1)
        poll = select.epoll()
        poll.register(waiter.sock, select.EPOLLIN)
        for _ in range(WAKES):
            waiter.send(claim("jobs", "n", 1, wait_ms=10_000))
            time.sleep(dice.uniform(0.003, 0.01))  # it waits by then
            began = time.perf_counter()
            client.send(request)
            while poll.poll(10) and not waiter.collect():
                pass
            woken.append(time.perf_counter() - began)
            while not client.collect():
                pass
            seqs = seqs_in(bytes(waiter.collected))
            assert len(seqs) == 1, "the claim got the job"
            client.ask(ack("jobs", "n", seqs))
            began = time.perf_counter()
            client.ask(append("log", 1))
            alone.append(time.perf_counter() - began)
        p50, p99, _, most = quantiles_ms(woken)
        line("f an append alone", f"p50 {quantiles_ms(alone)[0]:.3f} ms", "peer")
        shown = f"p50 {p50:.3f}  p99 {p99:.3f}  max {most:.2f} ms"
        ratio = statistics.median(woken) / statistics.median(alone)
        figure = f"{shown}  ratio {ratio:.2f}; stolen {stolen_s() - stolen:.1f} s"
        line("f append to waiting claim", figure, "info")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="abcdef")
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.5, help="of one turn of a and d")
    options.add_argument(
        "--dir", type=Path, help=f"where to write, default {tempfile.gettempdir()}"
    )
    chosen = options.parse_args()
    if {*"ad"} & {*chosen.only}:
        throughput(chosen.dir, chosen.turns, chosen.seconds, chosen.only)
    if "b" in chosen.only:
        claims(chosen.dir, chosen.turns)
    if "e" in chosen.only:
        lateness(chosen.dir)
    if "f" in chosen.only:
        wakes(chosen.dir)


if __name__ == "__main__":
    main()
