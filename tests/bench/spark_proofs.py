"""Two long runs of Spark, whose counts and sums must be those of the source.

    python -m tests.bench.spark_proofs volume --rows 5000000
    python -m tests.bench.spark_proofs kills --minutes 20

volume: rows of 200 bytes are written and read, twice, by a driver of 1 GB. kills: on a cluster of
two workers, one query copies a topic and another one archives it as a Delta table, while each
minute an executor, a driver or a server is killed. Exit code 0 when all is equal, 1 when not.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from deltalake import DeltaTable

from tests.cluster.cluster import ROOT, WORKERS, Cluster, Way, ways
from tests.cluster.local_server import LocalServer, print_line, started
from topics.client import Record, Topics
from topics.spark import register
from topics.spark.session import session

VALUE = f"""'{{"id":"' || lpad(id, 7, '0') || '","pad":"{"x" * 175}"}}' AS value"""  # 200 bytes
BLOCK = 100  # rows in an append
EVERY_S = 60.0  # between kills
DOWN_S = 3.0
WAIT_S = 300.0
ARCHIVE = ("--format", "delta", "--follow", "2s", "--url")
COPY = """
import sys
from pyspark.sql import SparkSession
from topics.spark import register
servers, checkpoint = sys.argv[1:]
spark = SparkSession.builder.appName("copy").getOrCreate()
register(spark)
read = spark.readStream.format("topics").option("startingOffsets", "earliest")
rows = read.options(servers=servers, subscribe="source").load().select("value")
write = rows.writeStream.format("topics").options(servers=servers, topic="copy")
write.option("checkpointLocation", checkpoint).start().awaitTermination()
"""


def volume(rows: int, folder: Path) -> bool:
    """Write and read rows, cold and warm. Return whether all rows are present."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 1g pyspark-shell"
    server, equal = LocalServer("volume", folder / "server"), True
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.start()
        spark = session(cores=2, partitions=8, name="volume")
        stack.callback(spark.stop)
        register(spark)
        for when in ("cold", "warm"):
            options, began = {"servers": server.url, "topic": f"volume.{when}"}, time.monotonic()
            df = spark.range(0, rows, 1, 8).selectExpr(VALUE)
            df.write.format("topics").mode("append").options(**options).save()
            written = time.monotonic()
            read = spark.read.format("topics").schema("value STRING").options(**options).load()
            sums = ("count(*)", "sum(length(value))", "sum(substr(value, 8, 7)::bigint)")
            found, read_s = [*read.selectExpr(*sums).collect()[0]], time.monotonic() - written
            wanted = [rows, 200 * rows, rows * (rows - 1) // 2]
            verdict = "equal" if found == wanted else f"DIFFERS: {found}, not {wanted}"
            rates = f"{rows / (written - began):,.0f} rows/s in, {rows / read_s:,.0f} rows/s out"
            print_line(f"{when}: {rates}, {verdict}")
            equal &= found == wanted
    return equal


def figures(numbers: Sequence[int]) -> list[int]:
    """Return count, sum, and the number of distinct values."""
    return [len(numbers), sum(numbers), len({*numbers})]


class Kills:
    """A stream of rows to a copy and to an archive while processes are killed."""

    def __init__(self, cluster: Cluster, fleet: list[LocalServer], way: Way) -> None:
        self.cluster, self.fleet, self.way = cluster, fleet, way
        self.archive = cluster.folder / "archive"
        (cluster.folder / "copy_topic.py").write_text(COPY)
        shutil.copy(ROOT / "workers/spark.py", cluster.folder)
        servers = ",".join(f"{server.name}={server.url}" for server in fleet)
        self.programs = {
            "copy": ("copy_topic.py", servers, str(cluster.folder / "checkpoint")),
            "archive": ("spark.py", "archive", "source", str(self.archive), *ARCHIVE, servers),
        }

    def submit(self, name: str) -> None:
        """Start a query, or resume it. Each query has one of the two cores."""
        cores = ("--conf", "spark.cores.max=1")
        self.cluster.submit(self.way, name, *cores, *self.programs[name])

    def victims(self) -> Iterator[str]:
        """Kill the victims in turn, and restart each victim that does not restart on its own."""
        names = itertools.cycle(self.programs)
        for server in itertools.cycle(self.fleet):
            while not (found := self.executors()):
                time.sleep(1)
            os.kill(found[0], signal.SIGKILL)
            yield "an executor"
            name = next(names)
            self.cluster.kill(name)
            self.submit(name)
            yield f"the driver of {name}"
            server.kill()
            time.sleep(DOWN_S)
            server.start()
            yield f"the server {server.name}"

    def executors(self) -> list[int]:
        """Return the executor processes that the workers started."""
        folders = [Path(f"/proc/{self.cluster.processes[name].pid}/task") for name in WORKERS]
        files = [file for folder in folders for file in folder.glob("*/children")]
        return [int(pid) for file in files for pid in file.read_text().split()]

    def run(self, minutes: float) -> bool:
        """Append for this time, then compare."""
        victims, rows = self.victims(), 0
        with Topics(self.fleet[0].url) as client:
            source = client.topic("source")
            source.put()
            for name in self.programs:
                self.submit(name)
            end, at = time.monotonic() + 60 * minutes, time.monotonic() + EVERY_S
            while time.monotonic() < end:
                source.append(*({"id": number} for number in range(rows, rows + BLOCK)))
                rows += BLOCK
                time.sleep(0.1)
                if time.monotonic() > at:
                    print_line(f"{rows:10,} rows appended, {next(victims)} killed")
                    at = time.monotonic() + EVERY_S
                for name in self.programs:
                    if (code := self.cluster.processes[name].poll()) is not None:
                        print_line(
                            f"{name} has ended by itself with exit code {code}; it is restarted"
                        )
                        self.submit(name)
        wanted, deadline = figures(range(rows)), time.monotonic() + WAIT_S
        while (found := [self.copied(), self.archived()]) != [wanted, wanted]:
            if time.monotonic() > deadline:
                break
            time.sleep(5)
        for name, each in zip(self.programs, found, strict=True):
            print_line(
                f"{name:8}{each[0]:10,} rows, {'equal' if each == wanted else f'DIFFERS: {each}'}"
            )
        return found == [wanted, wanted]

    def copied(self) -> list[int]:
        """Return the figures of the copy."""
        found: list[int] = []
        for server in self.fleet:
            with Topics(server.url) as client:
                for info in client.topics("copy"):
                    records = client.topic(info.name).read()
                    found += [each.data["id"] for each in records if isinstance(each, Record)]
        return figures(found)

    def archived(self) -> list[int]:
        """Return the figures of the Delta table."""
        if not DeltaTable.is_deltatable(str(self.archive)):
            return figures([])  # its first batch is not written yet
        values = DeltaTable(self.archive).to_pyarrow_table(columns=["value"])["value"].to_pylist()
        return figures([msgspec.json.decode(value)["id"] for value in values])


def main() -> int:
    """Run one of the proofs."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark_proofs")
    commands = parser.add_subparsers(dest="proof", required=True)
    commands.add_parser("volume").add_argument("--rows", type=int, default=5_000_000)
    commands.add_parser("kills").add_argument("--minutes", type=float, default=20.0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-"))
        )
        if given.proof == "volume":
            return 0 if volume(given.rows, folder) else 1
        fleet = stack.enter_context(started(folder))
        cluster = stack.enter_context(Cluster(folder / "cluster"))
        cluster.start()
        way, _ = ways(folder / "cluster")
        return 0 if Kills(cluster, fleet, way).run(given.minutes) else 1


if __name__ == "__main__":
    sys.exit(main())
