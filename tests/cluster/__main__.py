"""Runs programs and jobs on a Spark cluster on this machine, and kills parts of the cluster.

    python -m tests.cluster              or deploy/cluster

Starts a standalone master, two workers and three topics servers, all on loopback. The executors do
not see this checkout: first the package is submitted with ``--py-files``, then it is installed as a
wheel. After each step, the count and the sum of the numbers in its rows must equal those of the
source. If a step differs, the program ends with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.cluster.cluster import PROGRAMS, Cluster, Way, ways
from tests.cluster.local_server import LocalServer, interruptible, print_line, started
from topics.client import Record, Topics
from topics.errors import ExitCode
from topics.spark.jobs.arguments import positive

STEPS = ("write", "read", "stream")
VICTIMS = ("executor", "worker", "server")
KINDS = 7
DOWN_S = 2.0
POLL_S = 0.1


def print_step(label: str, found: list[int], wanted: Sequence[int], seconds: float) -> None:
    """Print one row of the table. Raise `SystemExit` if the figures differ."""
    if sorted(found) != sorted(wanted):
        got, source = ((len(each), sum(each), len({*each})) for each in (found, wanted))
        raise SystemExit(f"error: {label}: count, sum, different: {got}; the source has {source}")
    print_line(f"{label:40}{len(found):10,}{seconds:9.1f}  equal")


class Show:
    """The steps of the demonstration."""

    def __init__(self, cluster: Cluster, fleet: list[LocalServer], rows: int) -> None:
        self.cluster, self.fleet, self.folder, self.rows = cluster, fleet, cluster.folder, rows
        self.servers = ",".join(f"{server.name}={server.url}" for server in fleet)

    def run(self) -> int:
        """Run all steps."""
        lines = (f"{number},k{number % KINDS}" for number in range(self.rows))
        (self.folder / "rows.csv").write_text("\n".join(["id,kind", *lines]))
        archived, installed = ways(self.folder)
        for path in PROGRAMS:
            shutil.copy(path, self.folder)
        print_line(f"{'step':40}{'rows':>10}{'seconds':>9}")
        for way, victims in ((archived, VICTIMS), (installed, ("",))):
            for victim in victims:
                self.program(way, victim)
            self.jobs(way)
        print_line("All counts and sums are those of the source.")
        return ExitCode.DONE

    def program(self, way: Way, victim: str) -> None:
        """Run a user's program. It kills the victim halfway through each step, and the victim is
        restarted.
        """
        name, server = f"{way.name}-{victim}", self.fleet[0]
        folder = self.folder / name
        folder.mkdir()
        (folder / "server").write_text(str(server.pid))
        given = (",".join(STEPS), self.servers, name, str(folder), str(self.rows), victim)
        self.cluster.submit(way, name, "program.py", *given)
        for step in STEPS if victim else ():
            while not (folder / f"{step}.died").exists():
                time.sleep(POLL_S)
                if self.cluster.processes[name].poll() is not None:
                    break
            time.sleep(DOWN_S)
            self.cluster.start()
            if victim == "server":
                server.kill()  # the program has killed it; reap the process
                server.start()
                (folder / "server").write_text(str(server.pid))
        self.cluster.finish(name)
        for step in STEPS:
            seconds, found = json.loads((folder / f"{step}.found").read_text())
            label = f"{way.name}: {step}{victim and f', {victim} killed'}"
            found = found or self.numbers(f"{name}.{step}.")
            print_step(label, found, range(self.rows), seconds)

    def jobs(self, way: Way) -> None:
        """Run the jobs of ``topics-spark``, and check the records that they write."""
        rows, last, again = (f"{way.name}.{end}" for end in ("rows", "last", "again"))
        files, load = f"{way.name}-files", ("--tag-column", "kind", "--option", "inferSchema=true")
        for (job, *given), topic, wanted in (
            (("backfill", "rows.csv", rows, *load), rows, range(self.rows)),
            (("archive", rows, files), rows, range(self.rows)),
            (("replay", files, again), again, range(self.rows)),
            (("compact", rows, last), last, range(self.rows)[-KINDS:]),
        ):
            name, began = f"{way.name}-{job}", time.monotonic()
            given += ["--url", self.servers]
            if way.archive:
                self.cluster.submit(way, name, "spark.py", job, *given)
            else:
                command = str(way.python.parent / "topics-spark")
                master = f"--master {self.cluster.url} pyspark-shell"
                env = {"PYSPARK_PYTHON": str(way.python), "PYSPARK_SUBMIT_ARGS": master}
                self.cluster.run(name, command, job, *given, **env)
            self.cluster.finish(name)
            seconds = time.monotonic() - began
            print_step(f"{way.name}: {job}", self.numbers(topic), wanted, seconds)

    def numbers(self, prefix: str) -> list[int]:
        """Return the rows of all topics with this prefix on all servers."""
        found: list[int] = []
        for server in self.fleet:
            with Topics(server.url) as client:
                for info in client.topics(prefix):
                    for record in client.topic(info.name).read():
                        assert isinstance(record, Record), record
                        found.append(record.data["id"])
        return found


def main() -> int:
    """Start the servers and the cluster, and stop them at the end."""
    parser = argparse.ArgumentParser(prog="cluster", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=positive, default=20_000, help="(default: %(default)s)")
    rows = parser.parse_args().rows
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fleet = stack.enter_context(started(folder))
        cluster = stack.enter_context(Cluster(folder / "cluster"))
        cluster.start()
        return Show(cluster, fleet, rows).run()


if __name__ == "__main__":
    raise SystemExit(interruptible(main))
