"""A cluster of two executors, which are processes of their own: they have the package by
``--py-files`` and nothing else of ours. Two servers are one source. In each step, one executor is
killed half way, and another one comes.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ROOT, Server
from topics.client import Record, Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROWS = 20_000
STEPS = ("write", "read", "stream")
JOB = ("backfill", "rows.csv", "rows.job.rows", "--option", "inferSchema=true")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The addresses of two servers."""
    folder = tmp_path_factory.mktemp("servers")
    with Server(folder / "a") as one, Server(folder / "b") as other:
        yield [f"http://{server.host}:{server.port}" for server in (one, other)]


@pytest.fixture(scope="module")
def left(servers: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the steps have left, all in one session: a folder of files."""
    pytest.importorskip("pyspark")
    from tests.cluster.cluster import PROGRAMS, Cluster, Way, environment

    folder = tmp_path_factory.mktemp("cluster")
    steps = folder / "steps"
    steps.mkdir()
    environment(folder / "bare")
    archive = shutil.make_archive(str(folder / "topics"), "zip", ROOT, "topics")
    for path in PROGRAMS:
        shutil.copy(path, folder)
    (folder / "rows.csv").write_text("\n".join(["id", *map(str, range(ROWS))]))
    named = f"a={servers[0]},b={servers[1]}"
    with Cluster(folder, "local-cluster[2,1,1024]") as cluster:
        way = Way("py-files", folder / "bare/bin/python", archive)
        given = (",".join(STEPS), named, "rows", str(steps), str(ROWS), "executor")
        cluster.submit(way, "program", "program.py", *given)
        cluster.finish("program")
        cluster.submit(way, "job", "spark.py", *JOB, "--url", named)
        cluster.finish("job")
    return steps


def test_what_an_earlier_run_left_beside_spark_is_not_used(
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


def written(servers: list[str], step: str) -> list[list[dict[str, Any]]]:
    """The data of all records that a step wrote, by server."""
    found: list[list[dict[str, Any]]] = []
    for url in servers:
        with Topics(url) as client:
            names = [info.name for info in client.topics(f"rows.{step}.")]
            events = [event for name in names for event in client.topic(name).read()]
        assert all(isinstance(event, Record) for event in events)
        found.append([event.data for event in events if isinstance(event, Record)])
    return found


@pytest.mark.parametrize("step", ["write", "stream", "job"])
def test_each_row_is_appended_once(left: Path, servers: list[str], step: str) -> None:
    """``left`` has run all steps, and a job of its own on the same master."""
    found = itertools.chain(*written(servers, step))
    assert sorted(data["id"] for data in found) == [*range(ROWS)]


def test_the_topics_are_spread_over_both_servers(left: Path, servers: list[str]) -> None:
    assert all(written(servers, "write"))


def test_a_pattern_reads_each_row_of_both_servers_once(left: Path) -> None:
    _, found = json.loads((left / "read.found").read_text())
    assert sorted(found) == [*range(ROWS)]


def test_a_job_runs_on_the_cluster_that_it_was_submitted_to(left: Path) -> None:
    executors = left.parent.glob("spark/work/*/*/topics.zip")
    assert len({path.parents[1] for path in executors}) == 2, "of two applications"


def test_an_executor_that_starts_late_goes_on_for_one_that_was_killed(left: Path) -> None:
    """Tasks see by themselves that their package is the one that was submitted."""
    assert {path.stem for path in left.glob("*.died")} == {*STEPS}
    # One is killed in each step, and somebody ends the last one; at the start there were two.
    assert len({path.suffix for path in left.glob("*.executor.*")}) > len(STEPS)
