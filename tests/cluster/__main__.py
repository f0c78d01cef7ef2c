"""A Spark cluster on this machine, programs and jobs on it, and parts of it that are killed.

    python -m tests.cluster              or deploy/cluster

Starts a standalone master, two workers and three topics servers, all on loopback. The executors do
not see this checkout: the package comes by ``--py-files``, then it is installed as a wheel. Each
step is submitted; the numbers of its rows are counted and summed, and must be those of the source.
The first that differs ends it with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, Self

import pyspark

from tests.cluster.local_server import LocalServer, interruptible, started, tell
from topics.client import Record, Topics
from topics.errors import ExitCode
from topics.spark.jobs.arguments import positive

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = (ROOT / "tests/cluster/program.py", ROOT / "workers/spark.py")
SPARK_HOME = Path(pyspark.__file__).parent
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for programs of seconds
CONF = f"""
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.driver.memory 512m
spark.driver.defaultJavaOptions {JAVA}
spark.executor.memory 512m
spark.executor.defaultJavaOptions {JAVA}
spark.ui.enabled false
"""
WORKERS = ("one", "two")
STEPS = ("write", "read", "stream")
VICTIMS = ("executor", "worker", "server")
KINDS = 7
WAIT_S = 600.0
DOWN_S = 2.0
POLL_S = 0.1
LOG_CHARS = 3000


class Way(NamedTuple):
    """How executors get the package: their Python, and what is submitted beside the program."""

    name: str
    python: Path
    archive: str = ""


class Cluster:
    """A master, workers, and programs that are submitted, each with a log of its name in
    ``folder``, where all of them run. They see nothing of this environment. ``url``: of another
    master.
    """

    def __init__(self, folder: Path, url: str = "") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = str(free.getsockname()[1])
        self.folder, self.url = folder, url or f"spark://127.0.0.1:{self._port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "conf").mkdir(parents=True)
        (folder / "conf/spark-defaults.conf").write_text(CONF)
        (folder / "spark").mkdir()  # workers keep executors' folders beside their program
        for path in SPARK_HOME.iterdir():
            (folder / "spark" / path.name).symlink_to(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        for name in self.processes:
            self.kill(name)

    def start(self) -> None:
        """Start the master and the workers, those that do not run."""
        worker = ("worker.Worker", self.url, "--cores", "1", "--memory", "1g")
        kinds = dict.fromkeys(WORKERS, worker)
        for name, (kind, *more) in {
            "master": ("master.Master", "--port", self._port),
            **kinds,
        }.items():
            if name not in self.processes or self.processes[name].poll() is not None:
                where = ("--host", "127.0.0.1", "--webui-port", "0")
                self.run(name, "spark-class", f"org.apache.spark.deploy.{kind}", *more, *where)

    def run(self, name: str, program: str, *arguments: str, **more: str) -> None:
        """Start a process, by default one of Spark's programs."""
        env = {key: os.environ[key] for key in ("PATH", "HOME", "JAVA_HOME") if key in os.environ}
        env |= {"SPARK_HOME": f"{self.folder}/spark", "SPARK_LOCAL_IP": "127.0.0.1"}
        env |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JAVA}
        env |= {"SPARK_CONF_DIR": f"{self.folder}/conf", "SPARK_LOCAL_DIRS": f"{self.folder}/tmp"}
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                (self.folder / "spark/bin" / program, *arguments),
                cwd=self.folder,
                env=env | more,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that all of it can be killed at once
            )

    def submit(self, way: Way, name: str, *program: str) -> None:
        """Submit a program with its arguments."""
        beside = ("--py-files", way.archive) if way.archive else ()
        start = ("--master", self.url, *beside, *program)
        self.run(name, "spark-submit", *start, PYSPARK_PYTHON=str(way.python))

    def finish(self, name: str) -> None:
        """Wait for its end. A failure ends all, with the end of its log."""
        with suppress(subprocess.TimeoutExpired):
            if self.processes[name].wait(WAIT_S) == ExitCode.DONE:
                return
        log = (self.folder / f"{name}.log").read_text(errors="replace")
        raise SystemExit(f"{log[-LOG_CHARS:]}\nerror: {name} failed or took too long")

    def kill(self, name: str) -> None:
        """SIGKILL to a process, and to what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()


def environment(folder: Path) -> Path:
    """A new environment with the dependencies, without the package; where packages go."""
    venv.create(folder, symlinks=True)
    (library,) = folder.glob("lib/python*/site-packages")
    (library / "dependencies.pth").write_text(f"{SPARK_HOME.parent}\n")
    return library


def ways(folder: Path) -> tuple[Way, Way]:
    """The package as an archive, and as a wheel that is installed."""
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "topics", folder / "topics")  # pip leaves files beside the source
    library, python = environment(folder / "installed"), folder / "installed/bin/python"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", folder], check=True)
    shutil.rmtree(folder / "topics")
    environment(folder / "bare")
    archive = shutil.make_archive(str(folder / "package"), "zip", library)
    return Way("py-files", folder / "bare/bin/python", archive), Way("wheel", python)


def tell_step(what: str, found: list[int], wanted: Sequence[int], seconds: float) -> None:
    """One line of the table. Raises `SystemExit` when they differ."""
    if sorted(found) != sorted(wanted):
        got, source = ((len(each), sum(each), len({*each})) for each in (found, wanted))
        raise SystemExit(f"error: {what}: count, sum, different: {got}; the source has {source}")
    tell(f"{what:40}{len(found):10,}{seconds:9.1f}  equal")


class Show:
    """The steps."""

    def __init__(self, cluster: Cluster, fleet: list[LocalServer], rows: int) -> None:
        self.cluster, self.fleet, self.folder, self.rows = cluster, fleet, cluster.folder, rows
        self.servers = ",".join(f"{server.name}={server.url}" for server in fleet)

    def run(self) -> int:
        """All steps."""
        lines = (f"{number},k{number % KINDS}" for number in range(self.rows))
        (self.folder / "rows.csv").write_text("\n".join(["id,kind", *lines]))
        archived, installed = ways(self.folder)
        for path in PROGRAMS:
            shutil.copy(path, self.folder)
        tell(f"{'step':40}{'rows':>10}{'seconds':>9}")
        for way, victims in ((archived, VICTIMS), (installed, ("",))):
            for victim in victims:
                self.program(way, victim)
            self.jobs(way)
        tell("All counts and sums are those of the source.")
        return ExitCode.DONE

    def program(self, way: Way, victim: str) -> None:
        """A user's program. In each step it kills the victim half way, which starts again."""
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
                server.kill()  # it is dead, and left to be waited for
                server.start()
                (folder / "server").write_text(str(server.pid))
        self.cluster.finish(name)
        for step in STEPS:
            seconds, found = json.loads((folder / f"{step}.found").read_text())
            what = f"{way.name}: {step}{victim and f', {victim} killed'}"
            found = found or self.numbers(f"{name}.{step}.")
            tell_step(what, found, range(self.rows), seconds)

    def jobs(self, way: Way) -> None:
        """The jobs of ``topics-spark``, and what they leave in topics."""
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
            tell_step(f"{way.name}: {job}", self.numbers(topic), wanted, seconds)

    def numbers(self, prefix: str) -> list[int]:
        """The rows of all topics whose names begin so, on all servers."""
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
