"""Spark benchmark: the rates of writes and reads, the delay of a micro-batch, and the server's
processor time per record.

    python -m tests.bench.spark [--rows ROWS] [--rounds ROUNDS] [--probes PROBES]

One server and one session with two cores share the machine, as in a small installation. Each path
through Spark is compared with the same path without Spark: one client that only appends, or only
reads. The paths run in turn, and each number is the median of the rounds. A first round warms up
the JVM and is not counted. "server" is the processor time of all server processes per record.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.processes import cpu_s, quantiles_ms, quiet, stolen_s, verdict
from tests.support.server import Server
from topics.spark import register
from topics.spark.client.http import TopicsClient
from topics.spark.client.ranges import Loss, Range, read_range
from topics.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA = '{"id":%d,"name":"name %d","amount":%d.25,"city":"Berlin","note":"a hundred bytes or so"}'
BATCH_RECORDS = 5000
SOURCE = "bench:source"  # the topic that is read
AIMS = {"DataFrame to topic": 120_000, "topic to DataFrame": 100_000, "topic to Parquet": 80_000}
LATENCY_AIM_MS = 1000.0
PROBE_PAUSE_S = 0.3
PROBE_TIMEOUT_S = 30.0


@dataclass
class Figures:
    """Results of the rounds of one path."""

    rows_per_s: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)


class Bench:
    """A server with a full topic, a warm session, and the paths between them."""

    def __init__(self, server: Server, spark: SparkSession, rows: int, directory: Path) -> None:
        self.server, self.spark, self.rows, self.directory = server, spark, rows, directory
        self.url = "http://{}:{}".format(*server.address)
        self._numbers = count()
        self._bodies = bodies_of(rows)
        fill(self.url, SOURCE, self._bodies)
        self._frame = self._records()

    def _records(self) -> DataFrame:
        """Return the rows to write, cached in memory, so that their creation is not measured."""
        from pyspark.sql import functions as f

        number = f.col("id")
        value = f.format_string(DATA, number, number, number)
        frame = self.spark.range(self.rows, numPartitions=4).select(value.alias("value")).cache()
        assert frame.count() == self.rows
        return frame

    def _read(self) -> DataFrame:
        options = {"servers": self.url, "subscribe": SOURCE, "maxRecordsPerPartition": "50000"}
        return self.spark.read.format("topics").options(**options).load()

    def spark_write(self) -> None:
        """DataFrame to topic."""
        topic = self._topic()
        options = {"servers": self.url, "topic": topic, "batchRecords": str(BATCH_RECORDS)}
        self._frame.write.format("topics").options(**options).mode("append").save()
        self._check(topic)

    def spark_read(self) -> None:
        """Topic to DataFrame, all columns."""
        self._read().write.format("noop").mode("overwrite").save()

    def spark_pruned(self) -> None:
        """Topic to DataFrame, two columns of it."""
        options = {"servers": self.url, "subscribe": SOURCE, "maxRecordsPerPartition": "50000"}
        frame = self.spark.read.format("topics").schema("offset BIGINT, value STRING")
        frame.options(**options).load().write.format("noop").mode("overwrite").save()

    def spark_parquet(self) -> None:
        """Topic to Parquet."""
        path = self.directory / f"parquet-{next(self._numbers)}"
        self._read().write.parquet(str(path))
        shutil.rmtree(path)

    def client_append(self) -> None:
        """Append without Spark."""
        topic = self._topic()
        fill(self.url, topic, self._bodies)
        self._check(topic)

    def client_read(self) -> None:
        """Read without Spark: decode pages, but create no columns."""
        with TopicsClient(self.url) as client:
            state = client.state(SOURCE)
            assert state is not None
            topic_range = Range("", SOURCE, 0, self.rows, state.epoch)
            pages = read_range(client, topic_range, refuse)
            assert sum(map(len, pages)) == self.rows

    def _topic(self) -> str:
        return f"bench:written:{next(self._numbers)}"

    def _check(self, topic: str) -> None:
        """Check that the topic has all rows."""
        with TopicsClient(self.url) as client:
            state = client.state(topic)
        assert state is not None
        assert state.head_seq == self.rows, state

    def run(self, path: Callable[[], None], figures: Figures) -> None:
        """Run one round of one path."""
        quiet(self.server)
        pids = self.server.pids()
        before, began = cpu_s(*pids), time.perf_counter()
        path()
        took = time.perf_counter() - began
        figures.rows_per_s.append(self.rows / took)
        figures.server_us.append((cpu_s(*pids) - before) / self.rows * 1e6)

    def latencies(self, probes: int) -> array[float]:
        """Return the seconds from each append to its row in ``foreachBatch``, one at a time."""
        topic, seen = "bench:probes", array("d")

        def take(frame: DataFrame, _batch: int) -> None:
            seen.extend([time.perf_counter()] * len(frame.select("offset").collect()))

        with TopicsClient(self.url) as client, self._stream(topic, client, take):
            taken = array("d")
            for number in range(probes):
                began = time.perf_counter()
                client.append(topic, b'{"records":[{"data":1}]}', 1, f"probe-{number}")
                while len(seen) <= number:
                    assert time.perf_counter() - began < PROBE_TIMEOUT_S, "no batch was received"
                    time.sleep(0.001)
                taken.append(seen[number] - began)
                time.sleep(PROBE_PAUSE_S)
        return taken[1:]  # the first batch loads Python and the plan

    @contextmanager
    def _stream(
        self, topic: str, client: TopicsClient, take: Callable[[DataFrame, int], None]
    ) -> Iterator[None]:
        client.put_topic(topic, {})
        read = self.spark.readStream.format("topics").option("servers", self.url)
        write = read.option("subscribe", topic).option("startingOffsets", "earliest").load()
        checkpoint = str(self.directory / "checkpoint")
        query = write.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        running = query.start()
        try:
            yield
        finally:
            running.stop()


def bodies_of(rows: int) -> list[tuple[int, bytes]]:
    """Return append bodies of ``rows`` records in large batches, each with its record count."""
    bodies = []
    for first in range(0, rows, BATCH_RECORDS):
        last = min(first + BATCH_RECORDS, rows)
        records = (f'{{"data":{DATA % (row, row, row)}}}' for row in range(first, last))
        bodies.append((last - first, f'{{"records":[{",".join(records)}]}}'.encode()))
    return bodies


def fill(url: str, topic: str, bodies: list[tuple[int, bytes]]) -> None:
    """Append all ``bodies`` with one client."""
    with TopicsClient(url) as client:
        client.put_topic(topic, {})
        for number, (records, body) in enumerate(bodies):
            client.append(topic, body, records, f"{topic}-{number}")


def refuse(lost: Loss) -> None:
    raise AssertionError(f"records are lost: {lost}")


def measure(bench: Bench, rounds: int) -> dict[str, Figures]:
    """Measure all paths in each round, after a warm-up round."""
    paths = {
        "append, one client": bench.client_append,
        "DataFrame to topic": bench.spark_write,
        "read, one client": bench.client_read,
        "topic to DataFrame": bench.spark_read,
        "offset and value only": bench.spark_pruned,
        "topic to Parquet": bench.spark_parquet,
    }
    found = {name: Figures() for name in paths}
    for path in paths.values():
        bench.run(path, Figures())
    for _ in range(rounds):
        for name, path in paths.items():
            bench.run(path, found[name])
    return found


def report(found: dict[str, Figures]) -> bool:
    """Print the medians. Return whether all aims are reached."""
    good = True
    sys.stdout.write(
        f"{'path':24}{'rows/s':>10}{'lowest':>10}{'highest':>10}{'server us/row':>15}\n"
    )
    for name, figures in found.items():
        speed, aim = statistics.median(figures.rows_per_s), AIMS.get(name)
        good &= aim is None or speed >= aim
        sys.stdout.write(
            f"{name:24}{speed:10,.0f}{min(figures.rows_per_s):10,.0f}"
            f"{max(figures.rows_per_s):10,.0f}{statistics.median(figures.server_us):15.2f}"
            + (f"   aim {aim:,}: {verdict(speed >= aim)}\n" if aim else "\n")
        )
    return good


def main() -> int:
    """Run all paths. Return 1 if an aim is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--probes", type=int, default=100)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        directory = Path(name)
        with Server(directory / "data") as server:
            spark = session(cores=2, partitions=4, name="bench")
            try:
                register(spark)
                stolen, began = stolen_s(), time.perf_counter()
                bench = Bench(server, spark, given.rows, directory)
                good = report(measure(bench, given.rounds))
                p50, p99, _, worst = quantiles_ms(bench.latencies(given.probes + 1))
            finally:
                spark.stop()
    took = time.perf_counter() - began
    sys.stdout.write(
        f"micro-batch latency     p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, longest {worst:,.0f} ms"
        f"   aim p50 {LATENCY_AIM_MS:,.0f} ms: {verdict(p50 <= LATENCY_AIM_MS)}\n"
        f"steal                   {(stolen_s() - stolen) / took:.1%} of a core\n"
    )
    return 0 if good and p50 <= LATENCY_AIM_MS else 1


if __name__ == "__main__":
    raise SystemExit(main())
