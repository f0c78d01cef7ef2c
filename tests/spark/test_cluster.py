"""A cluster with two executors and two servers. The executors have the package from ``--py-files``
only. In each step, one executor is killed halfway and replaced. ``deploy/cluster`` also runs jobs,
a stream and a wheel, and kills workers and servers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.server import ROOT, Server
from topics.client import Record, Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROWS = 20_000
STEPS = ("write", "read")


def test_files_of_an_earlier_run_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    from tests.cluster import cluster

    installed = tmp_path / "pyspark"
    for path in cluster.SPARK_HOME.iterdir():
        (installed / path.name).parent.mkdir(exist_ok=True)
        (installed / path.name).symlink_to(path)
    (installed / "work").mkdir(exist_ok=True)
    monkeypatch.setattr(cluster, "SPARK_HOME", installed)
    cluster.Cluster(tmp_path / "cluster")
    home = tmp_path / "cluster/spark"
    assert {path.name for path in home.iterdir()} == {*cluster.SHIPPED}
    assert all((home / name).is_dir() for name in cluster.SHIPPED)


def written(url: str) -> list[int]:
    """Return the ids of all records of a server."""
    with Topics(url) as client:
        names = [info.name for info in client.topics("rows.write.")]
        events = [event for name in names for event in client.topic(name).read()]
    assert all(isinstance(event, Record) for event in events)
    return [event.data["id"] for event in events if isinstance(event, Record)]


def test_each_row_is_written_and_read_once_despite_killed_executors(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from tests.cluster.cluster import PROGRAMS, Cluster, Way, environment

    folder = tmp_path / "cluster"
    steps_folder = folder / "steps"
    steps_folder.mkdir(parents=True)
    environment(folder / "bare")
    archive = shutil.make_archive(str(folder / "topics"), "zip", ROOT, "topics")
    for path in PROGRAMS:
        shutil.copy(path, folder)
    way = Way("py-files", folder / "bare/bin/python", archive)
    with Server(tmp_path / "a") as one, Server(tmp_path / "b") as other:
        urls = [f"http://{server.host}:{server.port}" for server in (one, other)]
        given = (",".join(STEPS), f"a={urls[0]},b={urls[1]}", "rows", str(steps_folder), str(ROWS))
        with Cluster(folder, "local-cluster[2,1,1024]") as cluster:
            cluster.submit(way, "program", "program.py", *given, "executor")
            cluster.finish("program")
        found = [written(url) for url in urls]
    assert all(found), "the topics are on both servers"
    assert sorted(found[0] + found[1]) == [*range(ROWS)]
    _, read = json.loads((steps_folder / "read.found").read_text())
    assert sorted(read) == [*range(ROWS)]
    assert {path.stem for path in steps_folder.glob("*.died")} == {*STEPS}
    # Two executors ran at the start, one was killed in each step, and one finished the last step.
    assert len({path.suffix for path in steps_folder.glob("*.executor.*")}) > len(STEPS)
