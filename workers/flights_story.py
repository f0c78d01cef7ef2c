"""The flights of 2013, from files to topics, to live figures, to an archive, and back.

    python -m workers.flights_story            or deploy/story

Loads five tables into five topics of a server of its own, counts delays by carrier and hour into
a sixth that a watcher follows, archives the flights to a Delta table, queries it without Spark,
and replays it into a seventh. Every job is one that topics-spark has. Counts and sums must be the
same everywhere: exit code 0 when they are, 1 when not.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
from deltalake import DeltaTable

from topics.errors import ExitCode
from topics.spark.client.errors import RequestError
from topics.spark.client.http import Target, TopicsClient
from topics.spark.client.ranges import Lost, read_range
from topics.spark.jobs.arguments import positive
from topics.spark.jobs.cli import main as topics_spark
from workers.flights import TABLES, table
from workers.live_watch import LiveWatch
from workers.local_server import LocalServer, interruptible, tell

DELAYS, COPY = "delays", "flights.copy"
SHOWN = 5
CATCH_UP_S = 10.0
WINDOW_MS = 60 * 60 * 1000
ARCHIVED = ("flights archived", "miles archived", "delay archived")
REPLAYED = ("flights replayed", "miles replayed", "delay replayed")
LATENESS = "366 days"  # the file has October before February
BATCH_RECORDS = "60000"

Totals = tuple[int, int, int]  # flights, miles, minutes of delay


class Failed(Exception):
    """A job of the story has failed; it has said why."""


def main() -> int:
    """Tell it."""
    parser = argparse.ArgumentParser(
        prog="story", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=positive, help="load only so many flights")
    options = parser.parse_args()
    return interruptible(lambda: show(options.rows))


def show(rows: int | None) -> int:
    """Start the server, tell, and stop it at the end."""
    with tempfile.TemporaryDirectory() as folder:
        server = LocalServer("topics", Path(folder) / "server")
        try:
            server.start()
            return Story(server, Path(folder), rows).run()
        except (Failed, RequestError, OSError) as error:
            sys.stderr.write(f"{server.last_lines()}\nerror: {error}\n")
            return ExitCode.FAILED
        finally:
            server.stop()


class Story:
    """One server, one folder, and what was found on the way."""

    def __init__(self, server: LocalServer, folder: Path, rows: int | None) -> None:
        self._server = server
        self._folder = folder
        self._rows = rows
        self._client = TopicsClient(Target(url=server.url))
        self._archive = folder / "archive"

    def run(self) -> int:
        """The chapters, then the table."""
        began = time.monotonic()
        files = {
            name: table(name, self._folder, self._rows if name == "flights" else None)
            for name in TABLES
        }
        for name, file in files.items():
            self.load(name, file)
        watched = self.aggregate()
        self.job("archive", "flights", str(self._archive))
        self.ask()
        self.job("replay", str(self._archive), COPY)
        lines = {name: line_count(file) for name, file in files.items()}
        equal = self.compare(lines, file_totals(files["flights"]), watched)
        seconds = time.monotonic() - began
        tell(f"{'Everything agrees' if equal else 'NOT everything agrees'}, {seconds:.0f} s in all")
        return ExitCode.DONE if equal else ExitCode.FAILED

    def job(self, name: str, *arguments: str) -> None:
        """One job of topics-spark, shown as a shell would have it."""
        short = [text.replace(str(self._folder), "$DIR") for text in arguments]
        tell(f"\n$ topics-spark {name} " + " ".join(f"'{s}'" if " " in s else s for s in short))
        ended = topics_spark([name, *arguments, "--url", self._server.url, "--quiet"])
        if ended == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        if ended != ExitCode.DONE:
            raise Failed(f"topics-spark {name} has failed")

    def load(self, name: str, file: Path) -> None:
        """A table into the topic of its name."""
        tag = ["--tag-column", "carrier"] if name == "flights" else []
        self.job("backfill", str(file), name, "--option", "nullValue=NA", *tag)

    def aggregate(self) -> int:
        """Delays by carrier and hour, watched; returns how many results the watcher saw."""
        self._client.put_topic(DELAYS, {"idempotency_window_ms": WINDOW_MS})
        watch = LiveWatch(self._server.url, DELAYS, SHOWN, lambda data: tell(f"  watcher: {data}"))
        fields = ("--by", "data.carrier", "--time", "data.time_hour", "--sum", "data.dep_delay")
        where = str(self._folder / "checkpoint")
        how = ("--mode", "update", "--watermark", LATENESS, "--batch-records", BATCH_RECORDS)
        try:
            self.job("aggregate", "flights", DELAYS, where, "--window", "1 hour", *fields, *how)
            deadline = time.monotonic() + CATCH_UP_S
            while watch.count < self.head(DELAYS) and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            watch.close()
        tell(f"  watcher: {watch.count:,} results seen live")
        return watch.count

    def ask(self) -> None:
        """A question to the archive, without Spark and without the server."""
        query = """
            SELECT key AS carrier, count(*) AS flights,
                   round(avg(CAST(value ->> 'dep_delay' AS DOUBLE)), 1) AS delay
            FROM flights
            GROUP BY ALL ORDER BY delay DESC LIMIT 3
        """
        tell("\nDuckDB on the archive: the three carriers with the longest delays")
        for carrier, count, delay in self.archived(query):
            tell(f"  {carrier}  {count:7,} flights, {delay:5} minutes on average")

    def compare(self, lines: dict[str, int], source: Totals, watched: int) -> bool:
        """The table of counts and sums; whether all rows of it agree."""
        tell(f"\n{'':34}{'source':>14}{'topics':>14}")
        copied, live = self.topic_totals(COPY), self.delay_totals()
        archived = self.archive_totals()
        rows: list[tuple[str, int, int]] = [
            *((f"rows of {name}", count, self.head(name)) for name, count in lines.items()),
            *zip(ARCHIVED, source, archived, strict=True),
            *zip(REPLAYED, source, copied, strict=True),
            ("flights in delays by hour", source[0], live[0]),
            ("delay in delays by hour", source[2], live[1]),
            ("results seen by the watcher", self.head(DELAYS), watched),
        ]
        for what, expected, found in rows:
            sign = "" if expected == found else "   DIFFERS"
            tell(f"{what:34}{expected:14,}{found:14,}{sign}")
        return all(expected == found for _, expected, found in rows)

    def head(self, topic: str) -> int:
        """How many records a topic that lost none has."""
        state = self._client.state(topic)
        return int(state["head_seq"]) if state else 0

    def records(self, topic: str) -> Iterator[tuple[str | None, dict[str, Any]]]:
        """Tag and data of every record."""
        for page in read_range(self._client, topic, 0, self.head(topic), on_loss=lost):
            for record in page:
                yield record.tag, msgspec.json.decode(record.data)

    def topic_totals(self, topic: str) -> Totals:
        """Of a topic of flights."""
        return add_up(data for _, data in self.records(topic))

    def delay_totals(self) -> tuple[int, int]:
        """Flights and delay of all hours; the last record of a tag counts."""
        hours = dict(self.records(DELAYS)).values()
        delay = sum(hour["sum_dep_delay"] or 0 for hour in hours)
        return sum(hour["count"] for hour in hours), int(delay)

    def archive_totals(self) -> Totals:
        """Of the archive, by DuckDB."""
        found = self.archived("""
            SELECT count(*), sum(CAST(value ->> 'distance' AS BIGINT)),
                   sum(CAST(value ->> 'dep_delay' AS BIGINT))
            FROM flights
        """)[0]
        return int(found[0]), int(found[1]), int(found[2])

    def archived(self, query: str) -> list[Any]:
        """DuckDB's answer about the archive."""
        with duckdb.connect() as connection:
            table = DeltaTable(str(self._archive)).to_pyarrow_dataset()
            return connection.register("flights", table).execute(query).fetchall()


def lost(gone: Lost) -> None:
    """Nothing may be."""
    raise Failed(f"records are lost: {gone}")


def add_up(flights: Iterator[dict[str, Any]]) -> Totals:
    """Flights, miles and minutes of delay."""
    count = miles = delay = 0
    for flight in flights:
        count += 1
        miles += flight["distance"]
        delay += flight["dep_delay"] or 0
    return count, miles, delay


def file_totals(file: Path) -> Totals:
    """Of the CSV file, by Python's own reader."""

    def number(text: str) -> int | None:
        return None if text == "NA" else int(text)

    with file.open(newline="") as lines:
        rows = csv.DictReader(lines)
        columns = ("distance", "dep_delay")
        return add_up({name: number(row[name]) for name in columns} for row in rows)


def line_count(file: Path) -> int:
    """Rows of a CSV file after its header."""
    with file.open(newline="") as lines:
        return sum(1 for _ in csv.reader(lines)) - 1


if __name__ == "__main__":
    raise SystemExit(main())
