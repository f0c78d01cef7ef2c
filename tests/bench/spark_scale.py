"""Spark at length: many rows through one write, in bounded memory, and over several servers.

    python -m tests.bench.spark_scale [--rows ROWS] [--compare ROWS] [--turns TURNS]

The first part appends ``--rows`` rows (default 50 million of about 100 B) to one topic in one write
and prints, for each stretch of the write, the rate and the memory of the server, of Spark's JVM and
of its Python workers. The rate is flat when the slowest fifth is near the fastest.

The second part writes ``--compare`` rows over 12 topics, in turns to one server and to three, and
prints what a row costs in processor time of all servers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.bench.processes import cpu_s, quiet
from tests.bench.versions import stolen_s
from tests.support.server import Server
from topics.spark import register
from topics.spark.client.http import Target, TopicsClient
from topics.spark.producer import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA = '{"id":%d,"name":"name %d","amount":%d.25,"city":"Berlin","note":"a hundred bytes or so"}'
LOOK_S = 2.0
STRETCHES = 10
TOPICS = 12
MIB = 1 << 20


class Look(NamedTuple):
    """One look at a write: seconds, rows so far, and bytes of memory."""

    at_s: float
    rows: int
    server: int
    jvm: int
    workers: int


def rss(pids: Iterator[int] | list[int]) -> int:
    """Resident bytes of some processes, what they share counted for each."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
    return total * os.sysconf("SC_PAGE_SIZE")


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(each) for task in tasks for each in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    for child in children:
        found += [child, *descendants(child)]
    return found


class Watch:
    """Looks at a write from a thread while the block runs."""

    def __init__(self, server: Server, topic: str) -> None:
        self.looks: list[Look] = []
        self._server, self._topic = server, topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_failure: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        with TopicsClient(Target(url=url_of(self._server))) as client:
            while not self._over.wait(LOOK_S):
                state = client.state(self._topic)
                below = descendants(os.getpid())
                ours = set(self._server.pids())
                java = [pid for pid in below if is_java(pid)]
                workers = [pid for pid in below if pid not in ours and pid not in java]
                rows = state["head_seq"] if state else 0
                at_s = time.monotonic() - began
                self.looks.append(Look(at_s, rows, rss(list(ours)), rss(java), rss(workers)))


def is_java(pid: int) -> bool:
    """Whether a process is a JVM."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    except (FileNotFoundError, ProcessLookupError):
        return False


def url_of(server: Server) -> str:
    """The address of a server."""
    return f"http://{server.host}:{server.port}"


def rows_of(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    """So many rows, made as they are written."""
    from pyspark.sql import functions as f

    number = f.col("id")
    topic = f.concat(f.lit("scale:"), f.pmod(number, f.lit(TOPICS)).cast("string"))
    value = f.format_string(DATA, number, number, number)
    return spark.range(count, numPartitions=partitions).select(
        value.alias("value"), topic.alias("topic")
    )


def write(rows: DataFrame, servers: str, topic: str | None) -> float:
    """Append the rows to one topic, or to those that they name; the seconds it took."""
    options = {"servers": servers, **({"topic": topic} if topic else {})}
    began = time.perf_counter()
    rows.write.format("topics").options(**options).mode("append").save()
    return time.perf_counter() - began


@contextmanager
def started(directory: Path, count: int) -> Iterator[list[Server]]:
    """So many servers."""
    with ExitStack() as stack:
        yield [stack.enter_context(Server(directory / f"data{number}")) for number in range(count)]


def at_length(spark: SparkSession, directory: Path, count: int) -> None:
    """One long write, looked at on the way."""
    with started(directory, 1) as (server,):
        with Watch(server, "long") as watch:
            took = write(rows_of(spark, count, 64).drop("topic"), url_of(server), "long")
        with TopicsClient(Target(url=url_of(server))) as client:
            state = client.state("long")
        assert state is not None
        assert (state["head_seq"], state["count"]) == (count, count), state
    looks = watch.looks
    sys.stdout.write(f"{count:,} rows in {took:.0f} s, {count / took:,.0f} rows/s\n")
    sys.stdout.write(
        f"{'rows':>12}{'rows/s':>12}{'server MiB':>12}{'JVM MiB':>10}{'workers':>10}\n"
    )
    step = max(1, len(looks) // STRETCHES)
    for first, last in zip(looks[::step], looks[step::step], strict=False):
        rate = (last.rows - first.rows) / (last.at_s - first.at_s)
        memory = [last.server // MIB, last.jvm // MIB, last.workers // MIB]
        sys.stdout.write(
            f"{last.rows:12,}{rate:12,.0f}{memory[0]:12,}{memory[1]:10,}{memory[2]:10,}\n"
        )


def one_and_three(spark: SparkSession, directory: Path, count: int, turns: int) -> None:
    """What a row costs the servers, one of them or three."""
    costs: dict[int, list[float]] = {1: [], 3: []}
    rates: dict[int, list[float]] = {1: [], 3: []}
    for turn in range(turns):
        for number in (1, 3) if turn % 2 == 0 else (3, 1):
            with started(directory / f"turn{turn}-{number}", number) as servers:
                names = ",".join(f"s{at}={url_of(each)}" for at, each in enumerate(servers))
                for server in servers:
                    quiet(server)
                pids = [pid for server in servers for pid in server.pids()]
                before = sum(map(cpu_s, pids))
                took = write(rows_of(spark, count, 8), names, None)
                costs[number].append((sum(map(cpu_s, pids)) - before) / count * 1e6)
                rates[number].append(count / took)
    for number in (1, 3):
        rate, cost = statistics.median(rates[number]), statistics.median(costs[number])
        sys.stdout.write(
            f"servers: {number}  {rate:10,.0f} rows/s, {cost:6.2f} us of all servers a row\n"
        )


def main() -> int:
    """Run both parts."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark_scale")
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--compare", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=4)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        spark = session(cores=2, partitions=8, name="scale")
        try:
            register(spark)
            stolen, began = stolen_s(), time.perf_counter()
            if given.rows:
                at_length(spark, Path(name), given.rows)
            if given.compare:
                one_and_three(spark, Path(name), given.compare, given.turns)
        finally:
            spark.stop()
    share = (stolen_s() - stolen) / (time.perf_counter() - began)
    sys.stdout.write(f"steal {share:.1%} of a core\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
