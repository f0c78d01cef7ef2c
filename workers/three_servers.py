"""Past one machine: three servers, one load, one query, and a server that dies on the way.

    python -m workers.three_servers            or deploy/three-servers

Starts three servers on this machine, loads the flights of 2013 through one job, a topic for each
carrier, each topic on the server that its name places it on. One streaming query then counts the
flights of all servers by carrier and week. While it runs, one server is killed and started again.
The totals must be those of the source. Exit code 0 when they are, 1 when not.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from topics.errors import ExitCode
from topics.spark import register
from topics.spark.client.servers import Servers
from topics.spark.errors import JobError, last_line, spark_errors
from topics.spark.jobs.arguments import positive
from topics.spark.producer import quiet_pyspark, session
from topics.spark.reading import read
from workers.flights import table
from workers.local_server import LocalServer, interruptible, tell

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAMES = ("amber", "birch", "cedar")
PATTERN = r"flights\..*"
PARTS = 6  # batches that the query takes, at least
DOWN_S = 3.0
WAIT_S = 300.0
POLL_S = 0.2

Totals = dict[tuple[str, str], tuple[int, int]]  # flights and miles, by carrier and week


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        prog="three_servers", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--data-dir", type=Path, help="keeps the data (default: a temporary folder)"
    )
    parser.add_argument("--rows", type=positive, help="load only so many flights")
    options = parser.parse_args()
    return interruptible(lambda: show(options.data_dir, options.rows))


def show(data_dir: Path | None, rows: int | None) -> int:
    """Start the servers and Spark, and stop them at the end."""
    quiet_pyspark()
    with contextlib.ExitStack() as stack:
        folder = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        fleet = stack.enter_context(started(folder))
        with spark_errors():
            spark = session(name="three-servers", brief=True)
        stack.callback(spark.stop)
        register(spark)
        return run(spark, fleet, folder, rows)


@contextlib.contextmanager
def started(folder: Path) -> Iterator[list[LocalServer]]:
    """The three servers, stopped at the end."""
    fleet = [LocalServer(name, folder / name) for name in NAMES]
    try:
        for server in fleet:
            server.start()
            tell(f"server {server.name} runs on {server.url}")
        yield fleet
    finally:
        for server in fleet:
            server.stop()


def run(spark: SparkSession, fleet: list[LocalServer], folder: Path, rows: int | None) -> int:
    """Load, query, compare."""
    servers = ",".join(f"{server.name}={server.url}" for server in fleet)
    flights = read(spark, str(table("flights", folder, rows)), "csv", {"nullValue": "NA"}).cache()
    expected = totals_of(weekly(flights))
    load(flights, servers)
    tell_placement(expected, servers)
    query = start_query(spark, servers, folder / "checkpoint", sum_flights(expected))
    try:
        watch(query, fleet, sum_flights(expected))
    finally:
        query.stop()
    return compare(expected, totals_of(spark.table("totals")))


def load(flights: DataFrame, servers: str) -> None:
    """All rows through one job: the row says which topic, the topic's name says which server."""
    from pyspark.sql import functions as f

    began = time.monotonic()
    rows = flights.select(
        f.concat(f.lit("flights."), "carrier").alias("topic"),
        f.col("carrier").alias("key"),
        f.to_json(f.struct("*"), {"ignoreNullFields": "false"}).alias("value"),
    )
    writer = rows.write.format("topics").mode("append").option("servers", servers)
    writer.option("jobId", "flights-2013").save()
    count, seconds = flights.count(), time.monotonic() - began
    tell(f"{count:,} flights loaded by one job in {seconds:.1f} s, {count / seconds:,.0f} rows/s")


def weekly(flights: DataFrame) -> DataFrame:
    """Flights and miles by carrier and week."""
    from pyspark.sql import functions as f

    week = f.window(f.to_timestamp("time_hour"), "7 days").getField("start").cast("string")
    return flights.groupBy("carrier", week.alias("week")).agg(
        f.count("*").alias("flights"), f.sum("distance").alias("miles")
    )


def start_query(spark: SparkSession, servers: str, checkpoint: Path, total: int) -> StreamingQuery:
    """One query over the topics of all servers; its result is the table ``totals``."""
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.shuffle.partitions", "2")
    source = spark.readStream.format("topics").option("servers", servers)
    source = source.option("subscribePattern", PATTERN).option("startingOffsets", "earliest")
    source = source.option("maxOffsetsPerTrigger", str(max(1, total // PARTS)))
    shape = "carrier string, time_hour string, distance bigint"
    flights = source.load().select(f.from_json("value", shape).alias("flight")).select("flight.*")
    sink = weekly(flights).writeStream.format("memory").queryName("totals").outputMode("complete")
    return sink.option("checkpointLocation", str(checkpoint)).start()


def watch(query: StreamingQuery, fleet: list[LocalServer], total: int) -> None:
    """Follow the query to the last record, and kill a server after its first batch."""
    deadline, seen, down_until, victim = time.monotonic() + WAIT_S, -1, 0.0, fleet[1]
    killed = False
    while query.isActive and time.monotonic() < deadline:
        done = {each["batchId"]: each["numInputRows"] for each in query.recentProgress}
        count = sum(done.values())
        if count != seen:
            seen = count
            tell(f"the query has counted {count:,} of {total:,} flights")
        if killed and down_until and time.monotonic() > down_until:
            down_until = 0.0
            victim.start()
            tell(f"server {victim.name} is back, with what it had")
        if count and not killed:
            killed, down_until = True, time.monotonic() + DOWN_S
            victim.kill()
            tell(f"server {victim.name} killed (SIGKILL); the query goes on")
        if count >= total:
            return
        time.sleep(POLL_S)
    if failure := query.exception():
        raise JobError(f"the query has failed: {last_line(failure)}")
    raise JobError(f"the query has not come to its end in {WAIT_S:.0f} s")


def totals_of(df: DataFrame) -> Totals:
    """The rows of ``weekly``."""
    return {(row["carrier"], row["week"]): (row["flights"], row["miles"]) for row in df.collect()}


def sum_flights(totals: Totals) -> int:
    """All flights."""
    return sum(flights for flights, _ in totals.values())


def by_carrier(totals: Totals) -> dict[str, tuple[int, int]]:
    """The totals of all weeks."""
    found: dict[str, tuple[int, int]] = {}
    for (carrier, _), (flights, miles) in sorted(totals.items()):
        before = found.get(carrier, (0, 0))
        found[carrier] = before[0] + flights, before[1] + miles
    return found


def tell_placement(expected: Totals, servers: str) -> None:
    """Which server has which topics."""
    placed = Servers.parse(servers)
    for name in NAMES:
        topics = [
            topic
            for carrier in by_carrier(expected)
            if placed.owner(topic := f"flights.{carrier}").name == name
        ]
        tell(f"server {name} has {len(topics)} topics: {' '.join(topics)}")


def compare(expected: Totals, found: Totals) -> int:
    """The table, and the exit code."""
    tell("carrier     source     query        miles")
    there = by_carrier(found)
    for carrier, (flights, miles) in by_carrier(expected).items():
        count, sum_ = there.get(carrier, (0, 0))
        sign = "" if (count, sum_) == (flights, miles) else "   DIFFERS"
        tell(f"{carrier:8}{flights:10,}{count:10,}{miles:13,}{sign}")
    equal = expected == found
    weeks = f"{len(expected):,} totals by carrier and week"
    tell(f"{weeks}: {'equal to the source' if equal else 'NOT equal to the source'}")
    return ExitCode.DONE if equal else ExitCode.FAILED


if __name__ == "__main__":
    raise SystemExit(main())
