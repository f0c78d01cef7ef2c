"""A standalone Spark master and its workers on this machine, programs that are submitted to it, and
the ways in which executors get the package.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import venv
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import pyspark

from topics.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = (ROOT / "tests/cluster/program.py", ROOT / "workers/spark.py")
SPARK_HOME = Path(pyspark.__file__).parent
# The files that Spark's programs need. Other files in the folder may be of an earlier run: a local
# cluster creates a folder ``work`` there, and executors of this one would run in it.
SHIPPED = ("bin", "jars", "python", "sbin")
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for programs that run a few seconds
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
WAIT_S = 600.0
LOG_CHARS = 3000


class Way(NamedTuple):
    """How executors get the package: their Python, and the files that are submitted with the
    program.
    """

    name: str
    python: Path
    archive: str = ""


class Cluster:
    """A master, its workers, and submitted programs, each with a log of its name in ``folder``,
    which is their working directory. They do not inherit this environment. ``url``: of another
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
        (folder / "spark").mkdir()  # workers store the folders of executors here, in ``work``
        for name in SHIPPED:
            (folder / "spark" / name).symlink_to(SPARK_HOME / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        for name in self.processes:
            self.kill(name)

    def start(self) -> None:
        """Start the master and the workers that are not running."""
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
                start_new_session=True,  # so that one signal can kill all of its processes
            )

    def submit(self, way: Way, name: str, *program: str) -> None:
        """Submit a program with its arguments."""
        files = ("--py-files", way.archive) if way.archive else ()
        start = ("--master", self.url, *files, *program)
        self.run(name, "spark-submit", *start, PYSPARK_PYTHON=str(way.python))

    def finish(self, name: str) -> None:
        """Wait until a program ends. A failure stops the cluster and reports the end of the log."""
        with suppress(subprocess.TimeoutExpired):
            if self.processes[name].wait(WAIT_S) == ExitCode.DONE:
                return
        log = (self.folder / f"{name}.log").read_text(errors="replace")
        raise SystemExit(f"{log[-LOG_CHARS:]}\nerror: {name} failed or took too long")

    def kill(self, name: str) -> None:
        """Send SIGKILL to a process and to its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()


def environment(folder: Path) -> Path:
    """Create an environment with the dependencies, without the package. Return its package
    folder.
    """
    venv.create(folder, symlinks=True)
    (library,) = folder.glob("lib/python*/site-packages")
    (library / "dependencies.pth").write_text(f"{SPARK_HOME.parent}\n")
    return library


def ways(folder: Path) -> tuple[Way, Way]:
    """Return the package as an archive, and as an installed wheel."""
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "topics", folder / "topics")  # pip creates files next to the source
    library, python = environment(folder / "installed"), folder / "installed/bin/python"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", folder], check=True)
    shutil.rmtree(folder / "topics")
    environment(folder / "bare")
    archive = shutil.make_archive(str(folder / "package"), "zip", library)
    return Way("py-files", folder / "bare/bin/python", archive), Way("wheel", python)
